// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Elastic jobs whose models are on a device: the state of members, optimizers and hooks comes to newcomers on theirs,
// and the job ends with the bits of a serial program, or of the same job on the CPU. Members are threads with a fake
// device each.
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
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
struct Way {
  std::string name;
  std::string hook = {};
  bool shards = false;         // the optimizer shares its state out
  bool on_own_stream = false;  // each step runs on a stream of the program's
  bool copies = false;         // ElasticOptions::copy_before_step; the parameters are zeros as a step breaks
  bool follows = false;        // newcomers follow the members while these train
  double tolerance = 1e-6;
};

struct MemberEnd {
  std::string error;
  bool killed = false;
  std::vector<at::Tensor> values = {};  // on the CPU
  std::vector<c10::Device> moments_on = {};
  std::int64_t followed = 0;  // steps of other members that it has done
  int loads = 0;              // how often it got the state of another member
};

using BeforeStep = std::function<void(const ElasticStep& at)>;

std::unique_ptr<torch::optim::Optimizer> optimizer_for(const Way& way, const DistributedDataParallel<Net>& ddp,
                                                       const std::shared_ptr<ProcessGroup>& group) {
  if (!way.shards) return make_adam(ddp.parameters());
  ZeroOptions options;
  options.process_group = group;
  return std::make_unique<ZeroRedundancyOptimizer>(ddp.parameters(),
                                                   optimizer_factory<torch::optim::Adam>(adam_options()), options);
}

// Makes a call on the group while all parameters are zeros.
void call_without_parameters(Net& net, ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (at::Tensor& parameter : net->parameters()) {
    values.push_back(parameter.clone());
    parameter.zero_();
  }
  group.barrier()->wait();
  for (std::size_t i = 0; i < values.size(); ++i) net->parameters()[i].copy_(values[i]);
}

void run_member(ElasticOptions options, const Way& way, const c10::Device& device, const BeforeStep& before,
                MemberEnd& end) {
  const c10::OptionalDeviceGuard here(device.is_cpu() ? std::nullopt : std::optional(device));
  try {
    options.copy_before_step = way.copies;
    options.follow = way.follows;
    Elastic elastic(options);
    DdpOptions ddp_options;
    ddp_options.process_group = elastic.group();
    Net net(device);
    DistributedDataParallel ddp(net, ddp_options);
    if (!way.hook.empty()) ddp.register_comm_hook(make_hook(way.hook));
    const auto optimizer = optimizer_for(way, ddp, elastic.group());
    elastic.add(ddp)
        .add(*optimizer)
        .add_state(
            "loads", [] { return std::string(); }, [&](const std::string&) { ++end.loads; });
    const auto own_stream = way.on_own_stream ? std::optional(new_stream(device)) : std::nullopt;
    try {
      elastic.run(kSteps, [&](const ElasticStep& at) {
        end.followed += at.follows ? 1 : 0;
        if (before) before(at);
        const auto train = [&] {
          optimizer->zero_grad();
          if (way.copies) call_without_parameters(net, *elastic.group());
          ddp(samples_of(at).to(device)).square().sum().backward();
          optimizer->step();
        };
        own_stream ? run_on(*own_stream, train) : train();
      });
    } catch (const Killed&) {
      end.killed = true;
    }
    for (const at::Tensor& parameter : net->parameters()) end.values.push_back(parameter.detach().cpu().clone());
    end.values.push_back(net->passes.cpu().clone());
    auto* const zero = dynamic_cast<ZeroRedundancyOptimizer*>(optimizer.get());
    for (const auto& [key, state] : (zero == nullptr ? *optimizer : zero->local_optimizer()).state())
      end.moments_on.push_back(static_cast<torch::optim::AdamParamState&>(*state).exp_avg().device());
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

// What is left of a job that begins with three members, loses one, and gets a new one.
struct JobEnd {
  std::vector<MemberEnd> members{4};  // the third is killed
  std::vector<int> sizes;             // by step
};

JobEnd run_job(const Way& way, bool on_cpu) {
  JobEnd end;
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  // The new one starts when both are within this step: one that had yet to begin it could hear of the new one first,
  // and the job would grow a step earlier.
  std::atomic<int> ready_to_grow{0};
  const BeforeStep tell = [&](const ElasticStep& at) {
    if (at.step != kGrowAt || at.size != 2) return;
    ++ready_to_grow;
    job.decided(membership::change_key(at.epoch));  // for the new one
  };
  const BeforeStep die = [](const ElasticStep& at) {
    if (at.step == kKillAt) throw Killed();
  };
  std::atomic<int> ended{0};  // of the two that go through the whole job
  std::atomic<bool> has_failed{false};
  std::vector<std::thread> threads;
  const auto start = [&](std::size_t index, const BeforeStep& before) {
    threads.emplace_back([&, index, before] {
      const c10::Device device = on_cpu ? c10::Device(at::kCPU) : fake_device(static_cast<int>(index));
      run_member(job.options(), way, device, before, end.members[index]);
      if (!end.members[index].error.empty()) has_failed = true;
      if (index < 2) ++ended;
    });
    // Members have ranks in the order in which they come.
    while (joined_members(job.journal()) < std::ssize(threads) && !has_failed) std::this_thread::yield();
  };
  start(0, tell);
  start(1, tell);
  start(2, die);
  while (ready_to_grow < 2 && ended == 0) std::this_thread::yield();
  start(3, {});
  for (auto& thread : threads) thread.join();
  end.sizes = sizes_of(job.journal(), kSteps);
  return end;
}

class ElasticOnDevices : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Jobs, ElasticOnDevices,
                         ::testing::Values(Way{"average"}, Way{"ef21", "int8:memory=ef21"},
                                           Way{"error_feedback", "int8:memory=error_feedback"},
                                           Way{.name = "power_sgd",
                                               .hook = "power_sgd:start=2,min_rate=0",
                                               .tolerance = 1e-4},  // sums of other orders
                                           Way{.name = "shards", .shards = true},
                                           Way{.name = "own_stream", .on_own_stream = true},
                                           Way{.name = "copies", .copies = true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(ElasticOnDevices, AJobLosesAMemberAndGetsANewOne) {
  const Way& way = GetParam();
  const JobEnd job = run_job(way, /*on_cpu=*/false);
  const std::vector<MemberEnd>& ends = job.members;
  EXPECT_TRUE(ends[2].killed) << ends[2].error;
  EXPECT_EQ(job.sizes[kKillAt - 1], 3);
  EXPECT_EQ(job.sizes[kKillAt], 2);
  EXPECT_EQ(job.sizes.back(), 3) << "the new member came too late";
  for (const std::size_t i : {0, 1, 3}) {
    ASSERT_EQ(ends[i].error, "");
    EXPECT_FALSE(ends[i].moments_on.empty());
    for (const c10::Device& device : ends[i].moments_on) EXPECT_EQ(device, fake_device(static_cast<int>(i)));
    expect_equal_bits(ends[i].values, ends[0].values, concat("member ", i, " against member 0"));
  }
  EXPECT_EQ(ends[0].values.back()[0].item<float>(), static_cast<float>(kSteps));  // no pass counts twice
  if (way.hook.empty()) {
    expect_equal_bits(ends[0].values, serial_values(job.sizes), "the serial program");
  } else {
    const JobEnd on_cpu = run_job(way, /*on_cpu=*/true);
    ASSERT_EQ(on_cpu.members[0].error, "");
    ASSERT_EQ(on_cpu.sizes, job.sizes);
    for (std::size_t i = 0; i < ends[0].values.size(); ++i) {
      EXPECT_TRUE(at::allclose(ends[0].values[i], on_cpu.members[0].values[i], 1e-5, way.tolerance))
          << "tensor " << i << " differs from that of the job on the CPU by at most "
          << (ends[0].values[i] - on_cpu.members[0].values[i]).abs().max().item<double>();
    }
  }
  EXPECT_EQ(races(), "");
}

class FollowOnDevices : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(
    Jobs, FollowOnDevices,
    ::testing::Values(Way{.name = "average", .follows = true},
                      Way{.name = "ef21", .hook = "int8:memory=ef21", .follows = true},
                      Way{.name = "power_sgd", .hook = "power_sgd:start=2,min_rate=0", .follows = true},
                      Way{.name = "own_stream", .on_own_stream = true, .follows = true}),
    [](const auto& info) { return info.param.name; });

// Two members go on training while a third one gets their state, and then the results of their calls, on its own
// device. When they stop for it, it has their bits.
TEST_P(FollowOnDevices, ANewcomerIsAsFarAsTheMembersWhenTheyMeet) {
  const Way& way = GetParam();
  constexpr std::int64_t kMeetAt = 30;
  ElasticJob job({.min = 1, .max = 3, .first = 2});
  std::vector<MemberEnd> ends(3);
  std::atomic<bool> start_another{false};
  const BeforeStep wait = [&](const ElasticStep& at) {
    if (at.epoch != 1 || at.follows) return;
    if (at.step == kGrowAt) start_another = true;
    if (at.step == kGrowAt + 1) job.decided(membership::follower_key(1, 0));
    if (at.step == kMeetAt) job.decided(membership::change_key(1));
  };
  std::vector<std::thread> threads;
  const auto start = [&](std::size_t index) {
    threads.emplace_back([&, index] {
      run_member(job.options(), way, fake_device(static_cast<int>(index)), wait, ends[index]);
      start_another = true;  // also when it failed before
    });
  };
  start(0);
  start(1);
  while (!start_another) std::this_thread::yield();
  start(2);
  for (auto& thread : threads) thread.join();
  for (const MemberEnd& end : ends) {
    ASSERT_EQ(end.error, "");
    expect_equal_bits(end.values, ends[0].values, "a member against member 0");
  }
  EXPECT_EQ(ends[2].loads, 1) << "it took the state again when the members stopped";
  EXPECT_GT(ends[2].followed, 3) << "three steps come before it has the state";
  const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
  EXPECT_EQ(sizes.back(), 3);
  EXPECT_EQ(membership::read_membership_log(job.journal()).size(), 2U) << "the members stopped more than once";
  EXPECT_EQ(ends[0].values.back()[0].item<float>(), static_cast<float>(kSteps));
  if (way.hook.empty()) expect_equal_bits(ends[0].values, serial_values(sizes), "the serial program");
  EXPECT_EQ(races(), "");
}

TEST(ElasticOnDevicesTest, AnEngineOfDevicesIsRefused) {
  ElasticJob job({.min = 1, .max = 1, .first = 1});
  EXPECT_THROW(Elastic(job.options("nccl")), UnsupportedError);
}

}  // namespace
}  // namespace gradwire::testing::elastic_device_test
