// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Training with given gradients, on a device and on the CPU, for tests that compare the two under every hook.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/ddp/device_test_support.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing {

struct DeviceHookCase {
  std::string name;
  double tolerance;  // between the gradients of the device and of the CPU; 0: the same bits
};

// Every hook of the registry, with options under which it compresses these gradients. fp16_compress and bf16_compress
// add in half precision, where an engine may round after each rank; PowerSGD's products and one_bit's sums have the
// order of the device.
inline std::vector<DeviceHookCase> device_hook_cases() {
  std::vector<DeviceHookCase> cases;
  for (const std::string& name : hook_names()) {
    if (name.find("power_sgd") != std::string::npos) {
      cases.push_back({name + ":start=2,min_rate=0", 1e-5});
    } else {
      cases.push_back({name, name == "fp16_compress"   ? 1e-3
                             : name == "bf16_compress" ? 1e-2
                             : name == "one_bit"       ? 1e-6
                                                       : 0});
    }
  }
  for (const char* more :
       {"int4:rounding=stochastic,block=64", "int8:memory=ef21,exchange=all_gather", "int8:memory=ef21",
        "top_k:ratio=0.1,exchange=all_reduce", "threshold:threshold=0.001,exchange=all_reduce", "int2:vectors=plain",
        "random_k:unbiased=1,memory=none", "dgc:ratio=0.1,ramp=0,clip=0.5", "int8:warm_up=1", "int4:wrap=bf16"})
    cases.push_back({more, std::string(more).find("clip") != std::string::npos ? 1e-6 : 0});
  return cases;
}

constexpr int kSteps = 4;
constexpr std::int64_t kWidth = 24;
// A GPU adds products and sums in an order of its own. What has the CPU's bits on the fake device has them on a GPU,
// but for divisions.
inline double tolerance_here(double on_fake, int world) {
  if (!on_gpu()) return on_fake;
  if (on_fake > 0) return std::max(on_fake, 1e-3);
  // CUDA divides by a number as it multiplies by the reciprocal, which rounds unless that is a power of two.
  return (world & (world - 1)) == 0 ? 0 : 1e-6;
}

inline constexpr int kTrainingSteps = 4;
inline constexpr std::int64_t kTrainingWidth = 24;
inline constexpr std::size_t kGradientBytes = 3 * (kTrainingWidth * kTrainingWidth + kTrainingWidth) * sizeof(float);

// A module whose gradients are given, so that they have the same bits on every device: each step has its own.
struct GivenGradientsImpl : torch::nn::Module {
  explicit GivenGradientsImpl(const c10::Device& device) : device_(device) {
    for (int i = 0; i < 3; ++i) {
      values.push_back(register_parameter(concat("weight", i), made({kTrainingWidth, kTrainingWidth}, 2 * i)));
      values.push_back(register_parameter(concat("bias", i), made({kTrainingWidth}, 2 * i + 1)));
    }
  }
  // The sum of parameter times gradient.
  at::Tensor forward(int rank, int step) {
    at::Tensor sum;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int seed = 100 + 1000 * step + 100 * rank + static_cast<int>(i);
      const at::Tensor term = values[i].mul(made(values[i].sizes(), seed)).sum();
      sum = sum.defined() ? sum + term : term;
    }
    return sum;
  }
  at::Tensor made(at::IntArrayRef sizes, int seed) const { return random_tensor(sizes, seed).to(device_); }

  std::vector<at::Tensor> values;

 private:
  const c10::Device device_;
};
TORCH_MODULE(GivenGradients);

// The gradients of the last step, and the state of the hook.
struct Trained {
  std::vector<at::Tensor> gradients;
  HookState state;
};

// `before_reading` is called when all ranks have trained, and before this rank reads a result.
inline Trained train(
    int rank, const std::shared_ptr<ProcessGroup>& group, const c10::Device& device,
    const std::shared_ptr<CommHook>& hook, const std::function<void()>& before_reading = [] {}) {
  GivenGradients model(device);
  DdpOptions options = options_for({group->name(), 1, group->size() % 2 == 0}, group);
  options.bucket_cap_mb = 2500.0 / (1 << 20);  // a layer a bucket
  DistributedDataParallel ddp(model, options);
  ddp.register_comm_hook(hook);
  for (int step = 0; step < kTrainingSteps; ++step) {
    model->zero_grad();
    ddp(rank, step).backward();
  }
  group->barrier()->wait();
  before_reading();
  Trained trained{{}, hook->state_dict()};
  for (const at::Tensor& gradient : gradients_of(*model)) trained.gradients.push_back(gradient.cpu());
  group->barrier()->wait();
  return trained;
}

inline void expect_same_state(const HookState& actual, const HookState& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [key, value] : expected) {
    ASSERT_TRUE(actual.contains(key)) << key;
    if (!value.isTensor()) continue;
    const at::Tensor& tensor = actual.at(key).toTensor();
    EXPECT_TRUE(tensor.is_cpu()) << key;
    EXPECT_TRUE(at::allclose(tensor, value.toTensor(), tolerance, tolerance)) << key;
  }
}
// What the device gave beside what the CPU gave.
inline void expect_same_training(const Trained& actual, const Trained& expected, double tolerance) {
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    const at::Tensor &one = actual.gradients[i], &other = expected.gradients[i];
    EXPECT_TRUE(tolerance == 0 ? one.equal(other) : at::allclose(one, other, tolerance, tolerance))
        << "parameter " << i << " differs by " << (one - other).abs().max().item<float>();
  }
  expect_same_state(actual.state, expected.state, tolerance == 0 ? 0 : 1e-3);
}

}  // namespace gradwire::testing
