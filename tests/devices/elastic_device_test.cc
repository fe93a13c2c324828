// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Elastic jobs whose models are on a device: the state of members, optimizers and hooks comes to newcomers on theirs,
// and the job ends with the values of a serial program on the CPU. Members are threads with a fake device each.
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/ddp/device_test_support.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"

namespace gradwire::testing::elastic_device_test {
namespace {

constexpr std::int64_t kSteps = 40;
constexpr std::int64_t kKillAt = 10;
constexpr std::int64_t kGrowAt = 16;
// An optimizer's state of this model is partly in its archive (biases), partly beside it (weights).
constexpr std::int64_t kWidth = 128;

// A model with a buffer that each forward pass changes, as batch normalization does.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const c10::Device& device) : layers(device, kWidth) {
    register_module("layers", layers);
    passes = register_buffer("passes", at::zeros({3}).to(device));
  }
  at::Tensor forward(const at::Tensor& x) {
    {
      const c10::NoGradGuard no_grad;
      passes.add_(1);
    }
    return layers->forward(x);
  }
  Layers layers;
  at::Tensor passes;
};
TORCH_MODULE(Net);

at::Tensor samples_of(const ElasticStep& at) {
  return random_tensor({4, kWidth}, static_cast<int>(at.step * 1000 + at.size * 100 + at.rank));
}

std::unique_ptr<torch::optim::Optimizer> make_adam(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::Adam>(parameters, adam_options());
}

// One way of training that jobs on devices are tested with.
struct Job {
  std::string name;
  std::string hook = {};
  bool shards = false;  // the optimizer shares its state out
};

struct MemberEnd {
  std::string error;
  bool killed = false;
  std::vector<at::Tensor> values;  // on the CPU
  std::vector<at::Tensor> moments;
  bool moments_are_on_device = true;
};

using BeforeStep = std::function<void(const ElasticStep& at)>;

std::unique_ptr<torch::optim::Optimizer> optimizer_for(const Job& job, const DistributedDataParallel<Net>& ddp,
                                                       const std::shared_ptr<ProcessGroup>& group) {
  if (!job.shards) return make_adam(ddp.parameters());
  ZeroOptions options;
  options.process_group = group;
  return std::make_unique<ZeroRedundancyOptimizer>(ddp.parameters(),
                                                   optimizer_factory<torch::optim::Adam>(adam_options()), options);
}

void run_member(const ElasticOptions& options, const Job& job, int index, const BeforeStep& before, MemberEnd& end) {
  const c10::Device device = fake_device(index);
  const c10::DeviceGuard here(device);
  try {
    Elastic elastic(options);
    DdpOptions ddp_options;
    ddp_options.process_group = elastic.group();
    Net net(device);
    DistributedDataParallel ddp(net, ddp_options);
    if (!job.hook.empty()) ddp.register_comm_hook(make_hook(job.hook));
    const auto optimizer = optimizer_for(job, ddp, elastic.group());
    elastic.add(ddp).add(*optimizer);
    try {
      elastic.run(kSteps, [&](const ElasticStep& at) {
        if (before) before(at);
        optimizer->zero_grad();
        ddp(samples_of(at).to(device)).square().sum().backward();
        optimizer->step();
      });
    } catch (const Killed&) {
      end.killed = true;
    }
    for (const at::Tensor& parameter : net->parameters()) end.values.push_back(parameter.detach().cpu().clone());
    end.values.push_back(net->passes.cpu().clone());
    for (const auto& [key, state] : optimizer->state()) {
      const at::Tensor& moment = static_cast<torch::optim::AdamParamState&>(*state).exp_avg();
      end.moments_are_on_device = end.moments_are_on_device && moment.device() == device;
    }
  } catch (const std::exception& error) {
    end.error = error.what();
  }
}

// The parameters and the buffer after the steps, when sizes[s] ranks did step s.
std::vector<at::Tensor> serial_values(const std::vector<int>& sizes) {
  Net net(at::kCPU);
  const auto optimizer = make_adam(net->parameters());
  for (std::size_t step = 0; step < sizes.size(); ++step) {
    std::vector<at::Tensor> sums;
    for (int rank = 0; rank < sizes[step]; ++rank) {
      net->zero_grad();
      net->layers->forward(samples_of({static_cast<std::int64_t>(step), rank, sizes[step], 0}))
          .square()
          .sum()
          .backward();
      std::vector<at::Tensor> parts;
      for (const at::Tensor& parameter : net->parameters())
        parts.push_back(parameter.grad().mul(static_cast<float>(1.0 / sizes[step])));
      add_to(sums, parts);
    }
    net->passes.add_(1);
    std::size_t i = 0;
    for (auto& parameter : net->parameters()) parameter.mutable_grad() = sums[i++];
    optimizer->step();
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : net->parameters()) values.push_back(parameter.detach());
  values.push_back(net->passes);
  return values;
}

class ElasticOnDevices : public ::testing::TestWithParam<Job> {};
INSTANTIATE_TEST_SUITE_P(Jobs, ElasticOnDevices,
                         ::testing::Values(Job{"average"}, Job{"ef21", "int8:memory=ef21"},
                                           Job{"error_feedback", "int8:memory=error_feedback"},
                                           Job{"power_sgd", "power_sgd:start=2,min_rate=0"}, Job{"shards", "", true}),
                         [](const auto& info) { return info.param.name; });

// World 3 loses one, goes on at 2, and grows to 3 again.
TEST_P(ElasticOnDevices, AJobLosesAMemberAndGetsANewOne) {
  const Job& way = GetParam();
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  std::atomic<bool> start_another{false};
  const BeforeStep tell = [&](const ElasticStep& at) {
    if (at.step == kGrowAt && at.size == 2) {
      start_another = true;
      job.decided(membership::change_key(at.epoch));  // for the new one
    }
  };
  const BeforeStep die = [](const ElasticStep& at) {
    if (at.step == kKillAt) throw Killed();
  };
  std::vector<MemberEnd> ends(4);
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  const auto start = [&](std::size_t index, const BeforeStep& before) {
    threads.emplace_back([&, index, before] {
      run_member(job.options(), way, static_cast<int>(index), before, ends[index]);
      if (index < 2) ++ended;
    });
  };
  start(0, tell);
  start(1, tell);
  start(2, die);
  while (!start_another && ended == 0) std::this_thread::yield();
  start(3, {});
  for (auto& thread : threads) thread.join();

  EXPECT_TRUE(ends[2].killed) << ends[2].error;
  const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
  EXPECT_EQ(sizes[kKillAt - 1], 3);
  EXPECT_EQ(sizes[kKillAt], 2);
  EXPECT_EQ(sizes.back(), 3) << "the new member came too late";
  for (const std::size_t i : {0, 1, 3}) {
    ASSERT_EQ(ends[i].error, "");
    EXPECT_TRUE(ends[i].moments_are_on_device);
    expect_equal_bits(ends[i].values, ends[0].values, concat("member ", i, " against member 0"));
  }
  EXPECT_EQ(ends[0].values.back()[0].item<float>(), static_cast<float>(kSteps));  // no pass counts twice
  if (way.hook.empty()) expect_equal_bits(ends[0].values, serial_values(sizes), "the serial program");
  EXPECT_EQ(races(), "");
}

}  // namespace
}  // namespace gradwire::testing::elastic_device_test
