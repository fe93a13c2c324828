// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks and models on a device, for the tests of this room and of the hooks.
#pragma once

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/process_group/c10d/from_c10d.h"
#include "gradwire/process_group/c10d/nccl_internal.h"
#include "gradwire/process_group/device_group_internal.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "tests/support/fake_engine.h"

namespace gradwire::testing {

inline at::Tensor on_fake(int index, at::IntArrayRef sizes = {8}) {
  return at::zeros(sizes, at::TensorOptions(fake_device(index)).dtype(at::kFloat));
}

// An Mlp whose parameters are made on a device: libtorch moves none to the fake one afterwards.
struct LayersImpl : torch::nn::Module {
  explicit LayersImpl(const c10::Device& device = at::kCPU, std::int64_t width = 8) {
    for (int i = 0; i < 3; ++i) {
      weights.push_back(register_parameter(concat("weight", i), random_tensor({width, width}, 2 * i).to(device)));
      biases.push_back(register_parameter(concat("bias", i), random_tensor({width}, 2 * i + 1).to(device)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (std::size_t i = 0; i < weights.size(); ++i) x = torch::tanh(at::addmm(biases[i], x, weights[i]));
    return x;
  }
  std::vector<at::Tensor> weights, biases;
};
TORCH_MODULE(Layers);

// One step of `ddp` on the fake device of this rank.
inline void step_on_fake(DistributedDataParallel<Layers>& ddp, int rank, int seed = 0) {
  ddp(random_tensor({4, 8}, 10 * seed + rank).to(fake_device(rank))).sum().backward();
}

// Runs `work` on a stream of the program's, as programs do: an exception leaves that stream's work behind.
inline void run_on(const c10::Stream& own, const std::function<void()>& work) {
  const c10::Stream current = current_stream(own.device());
  c10::Event begins(own.device_type());
  begins.record(current);
  begins.block(own);
  {
    const c10::StreamGuard guard(own);
    work();
  }
  c10::Event ends(own.device_type());
  ends.record(own);
  ends.block(current);
}

// The meetings of the engines of one test, by the place in the store where they were made.
class Meetings {
 public:
  // The meeting of the `size` ranks that meet in `place`.
  std::shared_ptr<Meeting> at(Store& place, int size) {
    // The first of the ranks gives the place its number.
    const std::lock_guard lock(mutex_);
    std::string number = place.compare_set("number", "", std::to_string(meetings_.size()));
    const auto index = static_cast<std::size_t>(std::stoul(number));
    if (index == meetings_.size()) meetings_.push_back(std::make_shared<Meeting>(size));
    return meetings_[index];
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return meetings_.size();
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Meeting>> meetings_;
};

using DeviceBody = std::function<void(int, std::shared_ptr<ProcessGroup>)>;

// `size` ranks as threads, each with the device of its number and a group for it and for the CPU: over the fake engine,
// or over NCCL, which wants a GPU for each rank (device_count()). Throws what the lowest rank threw. Returns the number
// of communicators of the fake engine that were made.
inline std::size_t run_device_ranks(int size, const DeviceBody& body,
                                    const std::shared_ptr<FakeFaults>& faults = nullptr) {
  test_device(0);
  Meetings meetings;
  auto store = std::make_shared<HashStore>();
  const internal::DeviceGroup::Maker maker = [&](const std::shared_ptr<Store>& place, int rank, int of, Milliseconds) {
    FromC10dOptions options;
    options.store = std::make_shared<PrefixStore>("engine", place);
    return from_c10d(make_fake_engine(meetings.at(*place, of), rank, of, faults), options);
  };
  const auto make = [&](const std::shared_ptr<ProcessGroup>& cpu, const c10::Device& device) {
    auto place = std::make_shared<PrefixStore>("both", store);
    if (on_gpu()) return internal::make_nccl_group(Deadline::after(cpu->timeout()), cpu, std::move(place), device);
    return std::shared_ptr<ProcessGroup>(
        std::make_shared<internal::DeviceGroup>(cpu, kFakeDevice, std::move(place), maker));
  };
  run_ranks({"threads"}, size, [&](int rank, const std::shared_ptr<ProcessGroup>& cpu) {
    const c10::Device device = test_device(rank);
    const c10::DeviceGuard here(device);
    const auto group = make(cpu, device);
    try {
      body(rank, group);
    } catch (const std::exception& error) {
      group->abort(error.what());
      throw;
    }
  });
  return meetings.count();
}

}  // namespace gradwire::testing
