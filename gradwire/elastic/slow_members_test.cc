// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Slow members are named and dropped, and waiting for a slow one makes nobody slow. The clock counts work that members
// do, so no test depends on how fast a machine is.
#include <gtest/gtest.h>

#include <mutex>
#include <random>

#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/elastic/slow_watch_internal.h"
#include "gradwire/process_group/wait_clock_internal.h"

namespace gradwire::slow_members_test {
namespace {

using namespace gradwire::testing;

// A clock that stands still but while this thread works.
thread_local std::int64_t work_of_thread = 0;
std::int64_t counted_work() noexcept { return work_of_thread; }
void work(std::int64_t milliseconds) { work_of_thread += milliseconds * 1'000'000; }

// While an object lives, WaitClocks read `reading`.
struct Clock {
  explicit Clock(internal::ClockReading reading) { internal::read_wait_clocks_with(reading); }
  ~Clock() { internal::read_wait_clocks_with(nullptr); }
};

constexpr std::int64_t kSteps = 60;
constexpr SlowRule kRule{.factor = 2, .steps = 5, .least = Milliseconds(1)};

struct MemberResult {
  std::string error;
  ElasticEnd end = ElasticEnd::too_late;
  std::vector<SlowMember> slow;  // that this member heard of
  std::vector<at::Tensor> parameters;
};

// The work of member `index` in a step, in milliseconds.
using WorkOf = std::function<std::int64_t(int index, std::int64_t step)>;
using BeforeStep = std::function<void(const ElasticStep& at)>;

void run_member(ElasticOptions options, int index, const WorkOf& work_of, const BeforeStep& before_step,
                MemberResult& result) {
  result.error = error_of([&] {
    options.on_slow = [&](const SlowMember& slow) { result.slow.push_back(slow); };
    Elastic elastic(options);
    SmallTraining training(elastic);
    result.end = elastic.run(kSteps, [&](const ElasticStep& at) {
      work(work_of(index, at.step));
      if (before_step) before_step(at);
      training.optimizer.zero_grad();
      loss_of(training.ddp(samples(at))).backward();
      training.optimizer.step();
    });
    for (const at::Tensor& parameter : training.net->parameters())
      result.parameters.push_back(parameter.detach().clone());
  });
}

std::vector<MemberResult> run_members(const ElasticOptions& options, int count, const WorkOf& work_of,
                                      const BeforeStep& before_step = nullptr) {
  const Clock clock(&counted_work);
  std::vector<MemberResult> results(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back(
        [&, i] { run_member(options, i, work_of, before_step, results[static_cast<std::size_t>(i)]); });
  for (std::thread& thread : threads) thread.join();
  for (const MemberResult& result : results) EXPECT_EQ(result.error, "");
  return results;
}

// Member 1 does three times the work of the others.
std::int64_t three_times_slow(int index, std::int64_t) { return index == 1 ? 30 : 10; }

// Goes on when the coordinator has decided that the first epoch stops.
BeforeStep wait_for_the_drop(const ElasticJob& job) {
  return [&job](const ElasticStep& at) {
    if (at.step == 30 && at.epoch == 1) job.decided(membership::change_key(1));
  };
}

ElasticOptions with_rule(const ElasticJob& job, const SlowRule& rule) {
  ElasticOptions options = job.options();
  options.slow = rule;
  return options;
}

TEST(SlowMembersTest, AMemberThatIsThreeTimesSlowIsNamedToAll) {
  ElasticJob job({.min = 1, .max = 3, .first = 3});
  const auto results = run_members(with_rule(job, kRule), 3, three_times_slow);
  for (const MemberResult& result : results) {
    EXPECT_EQ(result.end, ElasticEnd::finished);
    ASSERT_EQ(result.slow.size(), 1U);
    const SlowMember& slow = result.slow.front();
    EXPECT_EQ(slow.step, 4);
    EXPECT_EQ(slow.own_seconds, 0.03);
    EXPECT_EQ(slow.others_seconds, 0.01);
    EXPECT_NE(slow.host, "");
    EXPECT_EQ(slow.rank, results.front().slow.front().rank);
  }
  const std::vector<std::string> told = job.told();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told.front().find("is slow: its own part of a step took 30 ms, and that of the other ranks 10 ms"),
            std::string::npos)
      << told.front();
  EXPECT_NE(told.front().find(concat("rank ", results.front().slow.front().rank, " (member ")), std::string::npos);
}

TEST(SlowMembersTest, ASlowMemberIsDroppedAndTheOthersGoOn) {
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  SlowRule rule = kRule;
  rule.drop = true;
  const auto results = run_members(with_rule(job, rule), 3, three_times_slow, wait_for_the_drop(job));
  EXPECT_EQ(results[1].end, ElasticEnd::dropped);
  const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
  EXPECT_EQ(sizes.front(), 3);
  EXPECT_EQ(sizes.back(), 2);
  for (const int i : {0, 2}) {
    const MemberResult& result = results[static_cast<std::size_t>(i)];
    EXPECT_EQ(result.end, ElasticEnd::finished);
    expect_equal_bits(result.parameters, serial_parameters(sizes), "the serial program");
  }
  ASSERT_EQ(job.told().size(), 1U);
  EXPECT_NE(job.told().front().find("; it leaves the job"), std::string::npos) << job.told().front();
}

TEST(SlowMembersTest, NobodyIsDroppedBelowTheFewestMembersOfTheJob) {
  ElasticJob job({.min = 3, .max = 3, .first = 3});
  SlowRule rule = kRule;
  rule.drop = true;
  for (const MemberResult& result : run_members(with_rule(job, rule), 3, three_times_slow))
    EXPECT_EQ(result.end, ElasticEnd::finished);
  EXPECT_EQ(sizes_of(job.journal(), kSteps), std::vector<int>(kSteps, 3));
  ASSERT_EQ(job.told().size(), 1U);
  EXPECT_NE(job.told().front().find("; it stays, because fewer than 3 others would be left"), std::string::npos);
}

// The coordinator's rule takes the place of the members' own.
TEST(SlowMembersTest, TheRuleOfTheCoordinatorCounts) {
  SlowRule rule = kRule;
  rule.drop = true;
  ElasticJob job({.min = 2, .max = 3, .first = 3},
                 [&](membership::CoordinatorOptions& options) { options.slow = rule; });
  ElasticOptions options = job.options();
  options.slow = std::nullopt;
  EXPECT_EQ(run_members(options, 3, three_times_slow, wait_for_the_drop(job))[1].end, ElasticEnd::dropped);
}

// Up to two and a half times the shortest step, with the rule that members have by default.
TEST(SlowMembersTest, HealthyMembersThatAreNoisyRaiseNoAlarm) {
  ElasticJob job({.min = 3, .max = 3, .first = 3});
  const auto results = run_members(job.options(), 3, [](int index, std::int64_t step) {
    std::mt19937 random(static_cast<unsigned>(step * 3 + index));
    return 10 + static_cast<std::int64_t>(random() % 16);
  });
  for (const MemberResult& result : results) {
    EXPECT_EQ(result.end, ElasticEnd::finished);
    EXPECT_TRUE(result.slow.empty());
  }
  EXPECT_TRUE(job.told().empty());
}

TEST(SlowMembersTest, ARuleThatMakesNoSenseIsRefused) {
  ElasticJob job({.min = 1, .max = 1, .first = 1});
  EXPECT_THROW(Elastic{with_rule(job, {.factor = 1})}, InvalidArgument);
}

// A clock that the rank which is waited for puts on, when it sees that the other rank has begun to wait.
std::atomic<std::int64_t> time_of_all{0};
std::atomic<int> readings{0};  // of the rank that waits
thread_local bool waits = false;
std::int64_t time_that_rank_one_puts_on() noexcept {
  const std::int64_t time = time_of_all;  // before rank 1 hears of this reading
  if (waits) ++readings;
  return time;
}

// Rank 0 does `call` under a WaitClock. Rank 1 does `call` after it has seen `expected` readings of that clock and has
// put the time on.
template <class Call>
void expect_that_waiting_does_not_count(int rank, int expected, const Call& call) {
  if (rank == 0) {
    waits = true;
    const internal::WaitClock clock;
    call();
    EXPECT_EQ(clock.own_nanoseconds(), 0);
    waits = false;
    return;
  }
  const Deadline guard = Deadline::after(std::chrono::seconds(20));  // of an implementation that is broken
  while (readings < expected && !guard.expired()) std::this_thread::yield();
  time_of_all += 1000;
  call();
}

class OwnTimeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    time_of_all = 0;
    readings = 0;
  }
  const Clock clock_{&time_that_rank_one_puts_on};
};

TEST_F(OwnTimeTest, LeavesOutACallOnAGroup) {
  run_ranks({"threads"}, 2, [](int rank, std::shared_ptr<ProcessGroup> group) {
    AllReduceOptions options;
    options.async = false;
    std::vector<at::Tensor> tensors{at::ones({4})};
    expect_that_waiting_does_not_count(rank, 2, [&] { group->all_reduce(tensors, options); });
  });
}

TEST_F(OwnTimeTest, LeavesOutTheWaitForAWork) {
  run_ranks({"threads"}, 2, [](int rank, std::shared_ptr<ProcessGroup> group) {
    std::vector<at::Tensor> tensors{at::ones({4})};
    // The clock is read at the begin, around the call, and when the wait begins.
    expect_that_waiting_does_not_count(rank, 4, [&] { group->all_reduce(tensors)->wait(); });
  });
}

TEST_F(OwnTimeTest, LeavesOutTheWaitForTheBucketsOfDdp) {
  run_ranks({"threads"}, 2, [](int rank, std::shared_ptr<ProcessGroup> group) {
    DdpOptions options;
    options.process_group = group;
    DistributedDataParallel ddp(Mlp(), options);
    const at::Tensor loss = loss_of(ddp(random_tensor({4, 8}, rank)));
    expect_that_waiting_does_not_count(rank, 2, [&] { loss.backward(); });
  });
}

TEST_F(OwnTimeTest, CountsWhatIsNotAWaitOnce) {
  const internal::WaitClock clock;
  time_of_all += 5;
  {
    const internal::WaitsForRanks outer;
    const internal::WaitsForRanks inner;
    time_of_all += 70;
  }
  time_of_all += 3;
  EXPECT_EQ(clock.own_nanoseconds(), 8);
}

// Ten steps a time, or as many as the rule counts.
TEST(SlowWatchTest, StepsBetweenTwoExchangesCountOneByOne) {
  run_ranks({"threads"}, 2, [](int rank, std::shared_ptr<ProcessGroup> group) {
    internal::SlowWatch watch({.factor = 2, .steps = 12, .least = Milliseconds(1)}, 2);
    std::vector<internal::SlowRankOnHost> found;
    std::int64_t when = -1;
    for (std::int64_t step = 0; step < 40; ++step) {
      // Rank 1 is slow from step 3 on, so step 14 is the twelfth, and step 19 the one that ends an exchange.
      for (auto& slow : watch.add(*group, step, rank == 1 && step >= 3 ? 30000 : 10000)) {
        found.push_back(slow);
        when = step;
      }
    }
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found.front().slow, (membership::SlowRank{1, 14, 30000, 10000}));
    EXPECT_EQ(when, 19);
  });
}

}  // namespace
}  // namespace gradwire::slow_members_test
