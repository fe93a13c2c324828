// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Jobs whose members are threads: they lose members, get new ones, and end with the bits of the serial program that
// does each step with the ranks of the journal.
#include "gradwire/elastic/elastic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <mutex>
#include <span>
#include <stdexcept>

#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::elastic_test {
namespace {

using namespace gradwire::testing;

// How one member ended.
struct MemberResult {
  ElasticEnd end = ElasticEnd::too_late;
  bool killed = false;
  std::string error;
  std::vector<at::Tensor> parameters;
  std::map<std::int64_t, int> sizes_seen;  // by counted step
};

struct MemberSlot {
  MemberResult result;
  std::atomic<bool> has_ended{false};
};

// What a member does in a step, before it computes.
using BeforeStep = std::function<void(Elastic& elastic, const ElasticStep& at)>;

using DdpChange = std::function<void(DdpOptions& options, Mlp& net)>;

// `change`: called before the module is wrapped.
MemberResult run_member(const ElasticOptions& options, std::int64_t steps, const std::string& hook,
                        const BeforeStep& before, int model = 1, const DdpChange& change = {}) {
  MemberResult result;
  try {
    Elastic elastic(options);
    DdpOptions ddp_options;
    ddp_options.process_group = elastic.group();
    Mlp net(3, 8, model);
    if (change) change(ddp_options, net);
    DistributedDataParallel ddp(net, ddp_options);
    if (!hook.empty()) ddp.register_comm_hook(make_hook(hook));
    torch::optim::SGD optimizer(ddp.parameters(), sgd());
    elastic.add(ddp).add(optimizer);
    try {
      result.end = elastic.run(steps, [&](const ElasticStep& at) {
        if (before) before(elastic, at);
        optimizer.zero_grad();
        loss_of(ddp(samples(at))).backward();
        optimizer.step();
        result.sizes_seen[at.step] = at.size;
      });
    } catch (const Killed&) {
      result.killed = true;
    }
    for (const at::Tensor& parameter : net->parameters()) result.parameters.push_back(parameter.detach().clone());
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  return result;
}

// Members as threads, which a test starts one by one.
class Members {
 public:
  ~Members() { join(); }
  void start(const ElasticOptions& options, std::int64_t steps, const std::string& hook = "",
             const BeforeStep& before = {}, int model = 1) {
    slots_.push_back(std::make_unique<MemberSlot>());
    threads_.emplace_back([=, slot = slots_.back().get()] {
      slot->result = run_member(options, steps, hook, before, model);
      slot->has_ended = true;
    });
  }
  // Whether one of the first `count` members has ended.
  bool any_ended(std::size_t count) const {
    return std::any_of(slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(count),
                       [](const auto& slot) { return slot->has_ended.load(); });
  }
  void join() {
    for (auto& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  const MemberResult& operator[](std::size_t index) const { return slots_[index]->result; }

 private:
  std::vector<std::unique_ptr<MemberSlot>> slots_;
  std::vector<std::thread> threads_;
};

constexpr std::int64_t kSteps = 40;

TEST(ElasticTest, WithoutFailuresTheJobIsTheSerialProgram) {
  ElasticJob job({.min = 2, .max = 2, .first = 2});
  Members members;
  members.start(job.options(), kSteps);
  members.start(job.options(), kSteps);
  members.join();
  const auto expected = serial_parameters(std::vector<int>(kSteps, 2));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(members[i].error, "");
    EXPECT_EQ(members[i].end, ElasticEnd::finished);
    expect_equal_bits(members[i].parameters, expected, concat("member ", i));
  }
  // The launchers know how far it came, although there was one epoch.
  const auto reached = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(kSteps)));
  EXPECT_EQ(membership::course_in_journal(job.journal()).furthest_step(), reached);
}

// World 3 loses one, goes on at 2, and grows to 3 again.
class ElasticHookTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Hooks, ElasticHookTest,
                         ::testing::Values("", "int8:memory=error_feedback", "int8:memory=ef21",
                                           "power_sgd:start=2,min_rate=1"),
                         [](const auto& info) {
                           std::string name =
                               info.param.empty() ? "average" : info.param.substr(0, info.param.find(','));
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

TEST_P(ElasticHookTest, AJobLosesAMemberAndGetsANewOne) {
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  Members members;
  std::atomic<bool> start_another{false};
  const BeforeStep tell = [&](Elastic&, const ElasticStep& at) {
    if (at.step == 20 && at.size == 2) start_another = true;
    if (at.step == 700 && at.size == 2) job.decided(membership::change_key(at.epoch));  // for the new one
  };
  const BeforeStep die = [](Elastic&, const ElasticStep& at) {
    if (at.step == 10) throw Killed();
  };
  members.start(job.options(), kSteps * 20, GetParam(), tell);
  members.start(job.options(), kSteps * 20, GetParam(), tell);
  members.start(job.options(), kSteps * 20, GetParam(), die);
  while (!start_another && !members.any_ended(2)) std::this_thread::yield();
  members.start(job.options(), kSteps * 20, GetParam());
  members.join();
  EXPECT_TRUE(members[2].killed);
  const std::vector<int> sizes = sizes_of(job.journal(), kSteps * 20);
  EXPECT_EQ(sizes[9], 3);
  EXPECT_EQ(sizes[10], 2);
  EXPECT_EQ(sizes.back(), 3) << "the new member came too late";
  for (const std::size_t i : {0, 1, 3}) {
    EXPECT_EQ(members[i].error, "");
    EXPECT_EQ(members[i].end, ElasticEnd::finished);
    expect_equal_bits(members[i].parameters, members[0].parameters, concat("member ", i, " against member 0"));
    for (const auto& [step, size] : members[i].sizes_seen) EXPECT_EQ(size, sizes[static_cast<std::size_t>(step)]);
  }
  if (GetParam().empty()) expect_equal_bits(members[0].parameters, serial_parameters(sizes), "the serial program");
}

TEST(ElasticTest, AMemberLeavesInGoodOrderAndNoStepIsDoneTwice) {
  ElasticJob job({.min = 1, .max = 3, .first = 3});
  Members members;
  std::atomic<int> calls{0};
  const BeforeStep count = [&](Elastic&, const ElasticStep& at) {
    if (at.rank == 0) ++calls;
    if (at.step == 20 && at.epoch == 1) job.decided(membership::change_key(1));  // the wish has arrived
  };
  members.start(job.options(), kSteps, "", count);
  members.start(job.options(), kSteps, "", count);
  members.start(job.options(), kSteps, "", [&](Elastic& elastic, const ElasticStep& at) {
    count(elastic, at);
    if (at.step == 10) elastic.leave();
  });
  members.join();
  EXPECT_EQ(members[2].end, ElasticEnd::left);
  EXPECT_EQ(members[0].end, ElasticEnd::finished);
  EXPECT_EQ(calls, kSteps);
  const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
  EXPECT_EQ(sizes[10], 3);
  EXPECT_EQ(sizes.back(), 2);
  expect_equal_bits(members[0].parameters, serial_parameters(sizes), "the serial program");
}

// Leavers that wait for the others for longer than any test takes.
constexpr std::chrono::seconds kPatience{60};

ElasticOptions patient(const ElasticJob& job) {
  ElasticOptions options = job.options();
  options.hand_over_patience = kPatience;
  return options;
}

// The state goes to those who come: the last member stays for the step in which a newcomer gets it.
TEST(ElasticTest, TheOnlyMemberLeavesAndANewcomerGoesOn) {
  for (const int first : {1, 2}) {
    SCOPED_TRACE(concat(first, " members leave"));
    ElasticJob job({.min = 1, .max = 2, .first = first});
    Members members;
    std::atomic<bool> start_another{false};
    const BeforeStep leave = [&](Elastic& elastic, const ElasticStep& at) {
      // The wish has arrived; a member says its wish before the first step of each epoch.
      if (at.epoch > 1 || at.step == 12) job.decided(membership::change_key(at.epoch));
      if (at.step != 10 || at.epoch != 1) return;
      start_another = true;
      while (joined_members(job.journal()) <= first) std::this_thread::yield();  // the newcomer waits
      elastic.leave();
    };
    for (int i = 0; i < first; ++i) members.start(patient(job), kSteps, "", leave);
    while (!start_another) std::this_thread::yield();
    members.start(job.options(), kSteps);
    members.join();
    const auto newcomer = static_cast<std::size_t>(first);
    for (std::size_t i = 0; i < newcomer; ++i) EXPECT_EQ(members[i].end, ElasticEnd::left) << members[i].error;
    EXPECT_EQ(members[newcomer].error, "");
    EXPECT_EQ(members[newcomer].end, ElasticEnd::finished);
    const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
    EXPECT_EQ(sizes.back(), 1);
    expect_equal_bits(members[newcomer].parameters, serial_parameters(sizes), "the serial program");
  }
}

// The epoch breaks after the member was asked to leave, so it has handed over nothing. Where its hooks owe something,
// it takes part in the next epoch; else it goes at once.
TEST(ElasticTest, AMemberWhoseEpochBreaksLeavesWhenItHasHandedOverWhatItsHooksOwe) {
  for (const std::string hook : {"", "int8:memory=error_feedback"}) {
    SCOPED_TRACE(concat("hook '", hook, "'"));
    ElasticJob job({.min = 1, .max = 3, .first = 3});
    Members members;
    for (int i = 0; i < 3; ++i) {
      members.start(patient(job), kSteps, hook, [&](Elastic& elastic, const ElasticStep& at) {
        // The wish has arrived.
        if (at.epoch > 1 && at.size == 3) job.decided(membership::change_key(at.epoch));
        if (at.step != 10 || at.epoch != 1 || at.rank != 2) return;
        elastic.leave();
        elastic.group()->abort("on purpose");
      });
    }
    members.join();
    int left = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(members[i].error, "");
      left += members[i].end == ElasticEnd::left ? 1 : 0;
    }
    EXPECT_EQ(left, 1);
    const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
    EXPECT_EQ(sizes[10], hook.empty() ? 2 : 3);
    EXPECT_EQ(sizes.back(), 2);
  }
}

// All leave, and nobody comes: they go at once.
TEST(ElasticTest, AllMembersLeave) {
  ElasticJob job({.min = 1, .max = 2, .first = 2});
  Members members;
  const BeforeStep leave = [&](Elastic& elastic, const ElasticStep& at) {
    if (at.step == 10) elastic.leave();
    if (at.step == 12 && at.epoch == 1) job.decided(membership::change_key(1));  // the wish has arrived
  };
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 2; ++i) members.start(patient(job), kSteps, "int8:memory=error_feedback", leave);
  members.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatience) << "they waited for others";
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(members[i].end, ElasticEnd::left) << members[i].error;
  EXPECT_EQ(membership::read_membership_log(job.journal()).size(), 1U) << "they began another epoch";
}

// A module that counts its forward passes in a buffer, as batch normalization does.
struct CountingImpl : torch::nn::Module {
  CountingImpl() : count(register_buffer("count", at::zeros({1}))), net(register_module("net", Mlp())) {}
  at::Tensor forward(at::Tensor x) {
    const torch::NoGradGuard no_grad_for_the_buffer;
    count.add_(1);
    const torch::AutoGradMode grad(true);
    return net(x);
  }
  at::Tensor count;
  Mlp net;
};
TORCH_MODULE(Counting);

// Buffers, the user's own state and the optimizer are those of a job without failures, on members of the first epoch
// and on one that came later.
TEST(ElasticTest, AllOfTheStateTravelsAndAStepThatIsDoneAgainCountsOnce) {
  ElasticJob job({.min = 1, .max = 3, .first = 2});
  constexpr std::int64_t kLong = 600;
  std::atomic<bool> start_another{false};
  std::atomic<int> broken{0};
  std::mutex mutex;
  std::vector<std::pair<float, std::string>> ends;
  const auto member = [&] {
    Elastic elastic(job.options());
    DdpOptions options;
    options.process_group = elastic.group();
    Counting net;
    DistributedDataParallel ddp(net, options);
    torch::optim::SGD optimizer(ddp.parameters(), sgd());
    std::string history;  // of length 1 for each counted step
    elastic.add(ddp).add(optimizer).add_state(
        "history", [&] { return history; }, [&](const std::string& bytes) { history = bytes; });
    elastic.run(kLong, [&](const ElasticStep& at) {
      if (at.step == 20) start_another = true;
      if (at.step == 550 && at.size == 2) job.decided(membership::change_key(at.epoch));  // for the third
      optimizer.zero_grad();
      const at::Tensor loss = loss_of(ddp(samples(at)));
      if (at.step == 50 && at.rank == 0 && broken++ == 0) elastic.group()->abort("on purpose, after the forward");
      loss.backward();
      optimizer.step();
      history += 'x';
    });
    const std::lock_guard lock(mutex);
    ends.emplace_back(net->count.item<float>(), history);
  };
  const auto guarded = [&] {
    EXPECT_EQ(error_of(member), "");
    start_another = true;  // also when it failed before
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back(guarded);
  while (!start_another) std::this_thread::yield();
  threads.emplace_back(guarded);
  for (auto& thread : threads) thread.join();
  EXPECT_GE(broken, 1);
  ASSERT_EQ(ends.size(), 3U);
  for (const auto& [count, history] : ends) {
    EXPECT_EQ(count, static_cast<float>(kLong));
    EXPECT_EQ(history.size(), static_cast<std::size_t>(kLong));
  }
}

// Two members of a job of `min` to two, each with a module and an optimizer of its own, which train(elastic, net, ddp,
// optimizer) gives to run(). Returns the parameters of both.
template <class Net, class Train>
std::vector<std::vector<at::Tensor>> run_two_members(int min, const Train& train) {
  ElasticJob job({.min = min, .max = 2, .first = 2});
  std::vector<std::vector<at::Tensor>> ends(2);
  const auto member = [&](std::size_t index) {
    Elastic elastic(job.options());
    DdpOptions options;
    options.process_group = elastic.group();
    Net net;
    DistributedDataParallel ddp(net, options);
    torch::optim::SGD optimizer(ddp.parameters(), sgd());
    elastic.add(ddp).add(optimizer);
    train(elastic, net, ddp, optimizer);
    for (const at::Tensor& parameter : net->parameters()) ends[index].push_back(parameter.detach());
  };
  const auto guarded = [&](std::size_t index) { EXPECT_EQ(error_of([&] { member(index); }), ""); };
  std::thread other([&] { guarded(1); });
  guarded(0);
  other.join();
  return ends;
}

// Powers of two: scaled gradients have the bits of others.
TEST(ElasticTest, AStepThatIsDoneAgainFindsAScalerThatHasUnscaledNothing) {
  std::atomic<int> broken{0};
  const auto ends = run_two_members<Mlp>(2, [&](Elastic& elastic, Mlp&, auto& ddp, auto& optimizer) {
    GradScaler scaler;
    elastic.add(scaler);
    elastic.run(kSteps, [&](const ElasticStep& at) {
      optimizer.zero_grad();
      scaler.scale(loss_of(ddp(samples(at)))).backward();
      scaler.unscale_(optimizer);
      if (at.step == 5 && at.rank == 0 && broken++ == 0) elastic.group()->abort("on purpose, after unscale_()");
      elastic.group()->all_reduce({at::ones({1})})->wait();
      scaler.step(optimizer);
      scaler.update();
    });
    EXPECT_EQ(scaler.get_scale(), GradScalerOptions().init_scale);
  });
  EXPECT_GE(broken, 1);
  for (const auto& end : ends) expect_equal_bits(end, serial_parameters(std::vector<int>(kSteps, 2)), "the scaled job");
}

enum class Moment { before_forward, averaged };
using Disturb = std::function<void(Moment moment, Elastic& elastic, const ElasticStep& at, Mlp& net)>;

// Two members, whose steps `disturb` may break. Returns the parameters of both, and the number of calls of each step.
std::pair<std::vector<std::vector<at::Tensor>>, std::vector<int>> run_two(const Disturb& disturb) {
  std::vector<std::atomic<int>> calls(kSteps);
  auto ends = run_two_members<Mlp>(2, [&](Elastic& elastic, Mlp& net, auto& ddp, auto& optimizer) {
    elastic.run(kSteps, [&](const ElasticStep& at) {
      ++calls[static_cast<std::size_t>(at.step)];
      disturb(Moment::before_forward, elastic, at, net);
      optimizer.zero_grad();
      loss_of(ddp(samples(at))).backward();
      disturb(Moment::averaged, elastic, at, net);
      optimizer.step();
    });
  });
  return {std::move(ends), std::vector<int>(calls.begin(), calls.end())};
}

// One member has all averages and steps, the other has them too and fails before it steps.
TEST(ElasticTest, AMemberThatIsBehindTakesTheStateOfOneAhead) {
  std::atomic<int> broken{0};
  const auto [ends, calls] = run_two([&](Moment moment, Elastic&, const ElasticStep& at, Mlp&) {
    if (moment == Moment::averaged && at.step == 7 && at.rank == 1 && broken++ == 0) throw PeerError("on purpose", {});
  });
  EXPECT_EQ(broken, 1);
  EXPECT_EQ(calls[7], 2) << "a step that one member had counted was done again";
  for (const auto& end : ends) expect_equal_bits(end, serial_parameters(std::vector<int>(kSteps, 2)), "a member");
}

TEST(ElasticTest, AStepThatNoMemberCountedIsDoneAgain) {
  std::atomic<int> broken{0};
  const auto [ends, calls] = run_two([&](Moment moment, Elastic& elastic, const ElasticStep& at, Mlp&) {
    if (moment == Moment::before_forward && at.step == 7 && at.rank == 1 && broken++ == 0)
      elastic.group()->abort("on purpose");
  });
  EXPECT_EQ(broken, 2);
  EXPECT_EQ(calls[7], 4);
  for (const auto& end : ends) expect_equal_bits(end, serial_parameters(std::vector<int>(kSteps, 2)), "a member");
}

// A module whose backward pass may throw an exception of the program.
struct FailingImpl : torch::nn::Module {
  FailingImpl() : net(register_module("net", Mlp())) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor inner = net(x);
    if (fails) inner.register_hook([](const at::Tensor&) { throw std::logic_error("a bad sample"); });
    return inner * 1;
  }
  bool fails = false;
  Mlp net;
};
TORCH_MODULE(Failing);

// Done again, the step would fail again, for ever.
TEST(ElasticTest, AnExceptionOfTheProgramThatTheStepHasCaughtEndsTheMember) {
  for (const bool goes_on_in_the_step : {false, true}) {
    ElasticJob job({.min = 1, .max = 1, .first = 1});
    Elastic elastic(job.options());
    DdpOptions options;
    options.process_group = elastic.group();
    Failing net;
    DistributedDataParallel ddp(net, options);
    elastic.add(ddp);
    int calls = 0;
    const auto step = [&](const ElasticStep& at) {
      if (++calls > 2 * kSteps) throw Killed();
      net->fails = at.step == 3;
      try {
        loss_of(ddp(samples(at))).backward();
      } catch (const std::logic_error&) {
      }
      if (goes_on_in_the_step) ddp(samples(at));
    };
    EXPECT_THROW(elastic.run(kSteps, step), std::logic_error);
    EXPECT_EQ(calls, 4);
  }
}

// A member changed parameters, and then its step failed: its state is neither the one before nor the one after.
TEST(ElasticTest, AMemberThatChangedParametersInABrokenStepTakesTheStateOfAnother) {
  std::atomic<int> broken{0};
  const auto [ends, calls] = run_two([&](Moment moment, Elastic& elastic, const ElasticStep& at, Mlp& net) {
    if (moment != Moment::before_forward || at.step != 7 || at.rank != 1 || broken++ != 0) return;
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.add_(1);
    elastic.group()->abort("on purpose, after a change");
  });
  for (const auto& end : ends) expect_equal_bits(end, serial_parameters(std::vector<int>(kSteps, 2)), "a member");
}

// A module with a buffer that follows each rank's own samples, as the running mean of batch normalization does.
struct AveragingImpl : torch::nn::Module {
  AveragingImpl() : mean(register_buffer("mean", at::zeros({8}))), net(register_module("net", Mlp())) {}
  at::Tensor forward(const at::Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      mean.add_(x.detach().mean(0));
    }
    return net(x);
  }
  at::Tensor mean;
  Mlp net;
};
TORCH_MODULE(Averaging);

TEST(ElasticTest, MembersWhoseBuffersDifferGoOn) {
  std::atomic<int> broken{0};
  const auto ends = run_two_members<Averaging>(1, [&](Elastic& elastic, Averaging&, auto& ddp, auto& optimizer) {
    elastic.run(kSteps, [&](const ElasticStep& at) {
      if (at.step == 7 && at.rank == 1 && broken++ == 0) elastic.group()->abort("on purpose");
      optimizer.zero_grad();
      loss_of(ddp(samples(at))).backward();
      optimizer.step();
    });
  });
  EXPECT_EQ(broken, 2);
  for (const auto& end : ends) expect_equal_bits(end, serial_parameters(std::vector<int>(kSteps, 2)), "a member");
}

// A job of one member, whose hook changed its memory in a step that does not count. With more members, the mean of
// their memories would hide what is wrong with one.
class ElasticMemoryTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Hooks, ElasticMemoryTest,
                         ::testing::Values("int8:memory=error_feedback", "int4:memory=ef21", "dgc:ratio=0.1",
                                           "int4:memory=error_feedback,warm_up=3", "power_sgd:start=2,min_rate=1",
                                           "batched_power_sgd:start=2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

TEST_P(ElasticMemoryTest, AStepThatIsDoneAgainFindsTheMemoryAsItWas) {
  const auto train = [&](bool breaks) {
    ElasticJob job({.min = 1, .max = 1, .first = 1});
    Elastic elastic(job.options());
    DdpOptions options;
    options.process_group = elastic.group();
    Mlp net;
    DistributedDataParallel ddp(net, options);
    ddp.register_comm_hook(make_hook(GetParam()));
    torch::optim::SGD optimizer(ddp.parameters(), sgd());
    elastic.add(ddp).add(optimizer);
    std::int64_t broken = 0;
    elastic.run(kSteps, [&](const ElasticStep& at) {
      optimizer.zero_grad();
      loss_of(ddp(samples(at))).backward();
      if (breaks && at.step % 5 == 2 && broken != at.step) {
        broken = at.step;
        throw PeerError("on purpose, when the memory has changed", {});
      }
      optimizer.step();
    });
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : net->parameters()) parameters.push_back(parameter.detach());
    return parameters;
  };
  expect_equal_bits(train(true), train(false), "with steps that were done again");
}

// Calls `join` with the options of a job that has begun and does not end meanwhile; the job goes on to its end.
void while_a_job_trains(const std::function<void(const ElasticOptions& options)>& join) {
  ElasticJob job({.min = 1, .max = 3, .first = 1});
  Members members;
  std::atomic<bool> refused{false};
  std::atomic<bool> begun{false};
  members.start(job.options(), kSteps, "", [&](Elastic&, const ElasticStep& at) {
    begun = true;
    while (at.step == 5 && !refused) std::this_thread::yield();
  });
  while (!begun) std::this_thread::yield();
  join(job.options());
  refused = true;
  members.join();
  EXPECT_EQ(members[0].end, ElasticEnd::finished) << members[0].error;
}

TEST(ElasticTest, AnotherModelIsRefusedAndTheJobGoesOn) {
  while_a_job_trains([](ElasticOptions other) {
    other.program = "another program";
    const MemberResult result = run_member(other, kSteps, "", {});
    EXPECT_NE(result.error.find("was refused: this process trains 'another program, a model of"), std::string::npos)
        << result.error;
    EXPECT_EQ(result.error.find("first difference"), std::string::npos) << "it has the same model: " << result.error;
  });
}

TEST(ElasticTest, ARefusedMemberIsToldWhichTensorDiffers) {
  while_a_job_trains([](const ElasticOptions& options) {
    const MemberResult result = run_member(options, kSteps, "", {}, 1,
                                           [](DdpOptions&, Mlp& net) { net->register_buffer("more", at::zeros({2})); });
    EXPECT_NE(result.error.find("; the first difference: buffer 'more' of Float [2] here, nothing in the job"),
              std::string::npos)
        << result.error;
  });
}

// DDP would call other collectives than the members do.
TEST(ElasticTest, OtherOptionsOfDdpAndFrozenParametersAreRefusedAndTheJobGoesOn) {
  const std::vector<std::pair<DdpChange, std::string>> changes = {
      {[](DdpOptions& options, Mlp&) { options.bucket_cap_mb = 0.5; }, "bucket"},
      {[](DdpOptions& options, Mlp&) { options.lanes = 0; }, "0 lanes here, 1 lane in the job"},
      {[](DdpOptions& options, Mlp&) { options.find_unused_parameters = true; }, "find_unused_parameters"},
      {[](DdpOptions&, Mlp& net) { net->parameters().front().requires_grad_(false); },
       "parameter 'layer0.weight' frozen here, parameter 'layer0.weight' trained in the job"}};
  while_a_job_trains([&](const ElasticOptions& options) {
    for (const auto& [change, difference] : changes) {
      const MemberResult result = run_member(options, kSteps, "", {}, 1, change);
      const std::size_t told = result.error.find("; the first difference: ");
      ASSERT_NE(told, std::string::npos) << result.error;
      EXPECT_NE(result.error.find(difference, told), std::string::npos) << result.error;
      EXPECT_NE(result.error.find("was refused: this process trains"), std::string::npos) << result.error;
      EXPECT_NE(result.error.find("DDP's options and frozen parameters: "), std::string::npos) << result.error;
    }
  });
}

TEST(ElasticTest, AMemberThatComesAfterTheEndIsTooLate) {
  ElasticJob job({.min = 1, .max = 1, .first = 1});
  Members members;
  members.start(job.options(), 3);
  members.join();
  EXPECT_EQ(run_member(job.options(), 3, "", {}).end, ElasticEnd::too_late);
}

TEST(ElasticTest, MembersWithoutTheStateOfTheJobSaySo) {
  ElasticJob job({.min = 1, .max = 1, .first = 1});
  Members members;
  members.start(job.options(), kSteps, "", [](Elastic&, const ElasticStep& at) {
    if (at.step == 3) throw Killed();
  });
  members.join();
  const MemberResult next = run_member(job.options(), kSteps, "", {});
  EXPECT_NE(next.error.find("no member holds the state of the job"), std::string::npos) << next.error;
}

// An exception ends a process as a signal does, and members that fail again and again at one step end the job.
TEST(ElasticTest, AMemberWhoseProgramFailsIsOneOfTheDead) {
  ElasticJob job({.min = 2, .max = 2, .first = 2});
  Members members;
  members.start(job.options(), kSteps);
  const auto row = [&] { return membership::course_in_journal(job.journal()).deaths_in_a_row(); };
  // The second fails at the step with which its epoch has begun.
  for (int failures = 0; failures < 2; ++failures) {
    EXPECT_TRUE(run_member(job.options(), kSteps, "", [](Elastic&, const ElasticStep& at) {
                  if (at.step == 3) throw Killed();
                }).killed);
  }
  job.decided(membership::lost_key(2));
  EXPECT_EQ(row(), 2);
  members.start(job.options(), kSteps);
  members.join();
  EXPECT_EQ(members[0].error, "");
  EXPECT_EQ(row(), 0) << "the job has come further";
}

// It leaves although there never is an epoch, or a coordinator.
TEST(ElasticTest, AMemberThatWaitsForAnEpochLeaves) {
  ElasticJob job({.min = 2, .max = 2, .first = 2});
  const auto end_of = [](const ElasticOptions& options) {
    Elastic elastic(options);
    DdpOptions ddp_options;
    ddp_options.process_group = elastic.group();
    DistributedDataParallel ddp(Mlp(), ddp_options);
    elastic.add(ddp);
    std::thread asks([&] {
      const std::string joined = "event/1";
      options.store->wait(std::span(&joined, 1), std::chrono::seconds(60));
      elastic.leave();
    });
    const ElasticEnd end = elastic.run(kSteps, [](const ElasticStep&) {});
    asks.join();
    return end;
  };
  EXPECT_EQ(end_of(job.options()), ElasticEnd::left);
  ElasticOptions nobody_there = job.options();
  nobody_there.store = std::make_shared<HashStore>();
  EXPECT_EQ(end_of(nobody_there), ElasticEnd::left);
}

TEST(ElasticTest, BadInputIsRefusedAtTheDoor) {
  ElasticJob job({.min = 1, .max = 1, .first = 1});
  Elastic elastic(job.options());
  EXPECT_THROW(elastic.run(3, [](const ElasticStep&) {}), InvalidArgument);  // nothing was added
  DdpOptions options;
  options.process_group = std::make_shared<ElasticGroup>();
  DistributedDataParallel elsewhere(Mlp(), options);
  EXPECT_THROW(elastic.add(elsewhere), InvalidArgument);
  options.process_group = elastic.group();
  DistributedDataParallel ddp(Mlp(), options);
  elastic.add(ddp);
  EXPECT_THROW(elastic.add(ddp), InvalidArgument);
  torch::optim::SGD optimizer(ddp.parameters(), sgd());
  elastic.add(optimizer);
  EXPECT_THROW(elastic.add(optimizer), InvalidArgument);
  GradScaler scaler;
  elastic.add(scaler);
  EXPECT_THROW(elastic.add(scaler), InvalidArgument);
  EXPECT_THROW(elastic.run(-1, [](const ElasticStep&) {}), InvalidArgument);
  elastic.run(1, [&](const ElasticStep&) {
    torch::optim::SGD late(ddp.parameters(), sgd());
    EXPECT_THROW(elastic.add(late), InvalidArgument);
    EXPECT_THROW(elastic.add_state(
                     "late", [] { return ""; }, [](const std::string&) {}),
                 InvalidArgument);
  });
  ElasticOptions nowhere;
  EXPECT_THROW(Elastic{nowhere}, InvalidArgument);
}

}  // namespace
}  // namespace gradwire::elastic_test
