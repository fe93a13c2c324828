// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Slow members whose models are on a device: what a member's own device computes counts as its own time, and waiting
// for others does not. The clock counts work, so no test depends on how fast a machine is.
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/ddp/device_test_support.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/process_group/wait_clock_internal.h"
#include "tests/support/fake_device.h"

namespace gradwire::testing::slow_device_test {
namespace {

std::size_t device_of_thread() {
  return static_cast<std::size_t>(c10::impl::VirtualGuardImpl(kFakeDevice).getDevice().index());
}

// The work of each device for which the host has waited, in nanoseconds. The threads of a member have its device as the
// current one, those of autograd too.
std::array<std::atomic<std::int64_t>, kFakeDevices> done_by_device{};
std::int64_t counted_work() noexcept { return done_by_device[device_of_thread()]; }

// While an object lives, WaitClocks read `reading`.
struct Clock {
  explicit Clock(internal::ClockReading reading) {
    fake_device(0);
    internal::read_wait_clocks_with(reading);
  }
  ~Clock() { internal::read_wait_clocks_with(nullptr); }
};

// An identity whose backward pass takes the current device so long. The thread of the host does not wait for it.
struct SlowBackward : torch::autograd::Function<SlowBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, std::int64_t milliseconds) {
    context->saved_data["milliseconds"] = milliseconds;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const std::int64_t work = context->saved_data["milliseconds"].toInt() * 1'000'000;
    const at::Device device = gradients.at(0).device();
    work_on(current_stream(device),
            [work, index = static_cast<std::size_t>(device.index())] { done_by_device.at(index) += work; });
    return {gradients[0], at::Tensor()};
  }
};

constexpr std::int64_t kSteps = 40;

struct MemberResult {
  std::string error;
  ElasticEnd end = ElasticEnd::too_late;
  std::vector<SlowMember> slow;  // that this member heard of
};

void run_member(ElasticOptions options, const c10::Device& device, std::int64_t milliseconds, const ElasticJob& job,
                MemberResult& result) {
  const c10::DeviceGuard here(device);
  result.error = error_of([&] {
    options.on_slow = [&](const SlowMember& slow) { result.slow.push_back(slow); };
    Elastic elastic(options);
    DdpOptions ddp_options;
    ddp_options.process_group = elastic.group();
    Layers net(device);
    DistributedDataParallel ddp(net, ddp_options);
    torch::optim::SGD optimizer(ddp.parameters(), sgd());
    elastic.add(ddp).add(optimizer);
    result.end = elastic.run(kSteps, [&](const ElasticStep& at) {
      if (options.slow->drop && at.step == 20 && at.epoch == 1) job.decided(membership::change_key(1));
      optimizer.zero_grad();
      at::Tensor x = samples(at).to(device).requires_grad_();
      // The last work of the backward pass, so all buckets but the first gradient's are under way.
      x = SlowBackward::apply(x, milliseconds);
      loss_of(ddp(x)).backward();
      optimizer.step();
    });
  });
}

// Three members, of which the second one's device is three times slower.
std::vector<MemberResult> run_members(const ElasticJob& job, const SlowRule& rule) {
  const Clock clock(&counted_work);
  ElasticOptions options = job.options();
  options.slow = rule;
  std::vector<MemberResult> results(3);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back(
        [&, i] { run_member(options, fake_device(static_cast<int>(i)), i == 1 ? 30 : 10, job, results[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const MemberResult& result : results) EXPECT_EQ(result.error, "");
  EXPECT_EQ(races(), "");
  return results;
}

constexpr SlowRule kRule{.factor = 2, .steps = 5, .least = Milliseconds(1)};

TEST(SlowOnDevicesTest, AMemberWhoseDeviceIsThreeTimesSlowerIsNamedToAll) {
  ElasticJob job({.min = 1, .max = 3, .first = 3});
  for (const MemberResult& result : run_members(job, kRule)) {
    EXPECT_EQ(result.end, ElasticEnd::finished);
    ASSERT_EQ(result.slow.size(), 1U);
    EXPECT_EQ(result.slow.front().step, 4);
    EXPECT_EQ(result.slow.front().own_seconds, 0.03);
    EXPECT_EQ(result.slow.front().others_seconds, 0.01);
  }
}

TEST(SlowOnDevicesTest, ASlowMemberIsDroppedAndTheOthersGoOn) {
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  SlowRule rule = kRule;
  rule.drop = true;
  const auto results = run_members(job, rule);
  EXPECT_EQ(results[1].end, ElasticEnd::dropped);
  EXPECT_EQ(results[0].end, ElasticEnd::finished);
  EXPECT_EQ(results[2].end, ElasticEnd::finished);
}

// A clock that rank 1 puts on when rank 0 has begun to wait: its readings are counted.
std::atomic<std::int64_t> time_of_all{0};
std::atomic<int> readings{0};  // by the threads of rank 0
std::int64_t time_that_rank_one_puts_on() noexcept {
  const std::int64_t time = time_of_all;  // before rank 1 hears of this reading
  if (device_of_thread() == 0) ++readings;
  return time;
}

TEST(SlowOnDevicesTest, TheWaitForTheBucketsOfDdpIsNoOwnTime) {
  const Clock clock(&time_that_rank_one_puts_on);
  run_ranks({"threads"}, 2, [](int rank, std::shared_ptr<ProcessGroup> group) {
    const c10::Device device = fake_device(rank);
    const c10::DeviceGuard here(device);
    DdpOptions options;
    options.process_group = std::move(group);
    DistributedDataParallel ddp(Layers(device), options);
    const auto loss = [&] { return loss_of(ddp(random_tensor({4, 8}, rank).to(device))); };
    if (rank == 0) {
      const internal::WaitClock own;
      loss().backward();
      EXPECT_EQ(own.own_nanoseconds(), 0);
      return;
    }
    const at::Tensor last = loss();
    // At the begin of the clock, and at the begin of the wait. The other readings are of the forward pass.
    const Deadline guard = Deadline::after(std::chrono::seconds(20));
    while (readings < 2 && !guard.expired()) std::this_thread::yield();
    time_of_all += 1000;
    last.backward();
  });
  EXPECT_EQ(races(), "");
}

}  // namespace
}  // namespace gradwire::testing::slow_device_test
