// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The hook "auto": all ranks use the same hook in each iteration, also after a checkpoint and in a Join; exact accuracy
// gives the bits of plain averaging; a slow link makes the hook choose what sends least, a fast link plain averaging.
// The shape of the reduction is chosen where DDP can change it, and only where that keeps the bits that were asked for.
#include "gradwire/hooks/auto_hook_internal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "gradwire/base/error.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/link_test_support.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/process_group/call_group.h"

namespace gradwire::testing::auto_hook_test {
namespace {

constexpr int kSteps = 60;  // more than a decision among three hooks takes

at::Tensor input(int rank, int step) { return random_tensor({4, 8}, 50 * step + rank); }

void run_step(int rank, DistributedDataParallel<Mlp>& ddp, int step) {
  ddp.zero_grad();
  ddp(input(rank, step)).pow(2).mean().backward();
}

// The clock of one rank, which stands still but for the calls of its LinkGroup.
class LinkClock {
 public:
  void pass(double seconds) { now_ = now_ + seconds; }
  double now() const { return now_; }

 private:
  std::atomic<double> now_{0};
};

// A group over a link that carries so many bytes a second, on a clock that is not the real one.
class LinkGroup final : public CallGroup {
 public:
  LinkGroup(std::shared_ptr<ProcessGroup> inner, LinkClock& clock, double bytes_per_second)
      : CallGroup(inner->rank(), inner->size()), rate(bytes_per_second), inner_(std::move(inner)), clock_(clock) {}
  std::string get_backend_name() const override { return "link"; }

  double rate;

 protected:
  std::shared_ptr<Work> do_call(GroupCall& call) override {
    std::shared_ptr<Work> work = call_on(*inner_, call, timeout());
    work->wait();
    clock_.pass(seconds_on_link(call, size(), rate));
    return work;
  }

 private:
  const std::shared_ptr<ProcessGroup> inner_;
  LinkClock& clock_;
};

class Auto : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, Auto, ::testing::ValuesIn(all_setups()), name_of_setup);

TEST_P(Auto, AllRanksUseOneHookInEachIteration) {
  for (int world = 1; world <= 3; ++world) {
    std::vector<std::vector<std::string>> used(static_cast<std::size_t>(world));
    std::vector<std::vector<HookChoice>> choices(static_cast<std::size_t>(world));
    run_ranks(GetParam(), world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      DdpOptions options = options_for(GetParam(), group);
      options.bucket_cap_mb = 0.0003;  // several buckets
      Mlp net;
      DistributedDataParallel<Mlp> ddp(net, options);
      AutoHookOptions any;
      any.accuracy = HookAccuracy::any;
      const auto hook = make_auto_hook(any);
      // What the hook gives has the same bits on all ranks.
      ddp.register_comm_hook(make_checking_hook(hook));
      for (int step = 0; step < kSteps; ++step) {
        run_step(rank, ddp, step);
        used[static_cast<std::size_t>(rank)].push_back(hook->current());
      }
      choices[static_cast<std::size_t>(rank)] = hook->choices();
    });
    for (const auto& hooks : used) EXPECT_EQ(hooks, used.front());
    for (const auto& made : choices) {
      ASSERT_FALSE(made.empty()) << "no decision in " << kSteps << " steps";
      EXPECT_LE(made.front().iteration, 41U);
      EXPECT_EQ(made.front().iteration, choices.front().front().iteration);
      EXPECT_EQ(made.front().hook, choices.front().front().hook);
      EXPECT_EQ(made.front().measured.size(), auto_hook_candidates(HookAccuracy::any).size());
      for (const HookTimes& times : made.front().measured) EXPECT_GT(times.cost, 0) << times.hook;
    }
  }
}

TEST_P(Auto, ExactAccuracyHasTheBitsOfPlainAveraging) {
  run_ranks(GetParam(), 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp plain_net, net;
    DistributedDataParallel<Mlp> plain(plain_net, options_for(GetParam(), group));
    DistributedDataParallel<Mlp> ddp(net, options_for(GetParam(), group));
    plain.register_comm_hook(make_hook("allreduce"));
    ddp.register_comm_hook(make_hook("auto:accuracy=exact"));
    for (int step = 0; step < 10; ++step) {
      run_step(rank, plain, step);
      run_step(rank, ddp, step);
      const auto expected = gradients_of(*plain_net), actual = gradients_of(*net);
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(at::equal(actual[i], expected[i])) << "step " << step;
    }
  });
}

TEST_P(Auto, GoesOnInAJoin) {
  run_ranks(GetParam(), 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel<Mlp> ddp(net, options_for(GetParam(), group));
    ddp.register_comm_hook(make_checking_hook(make_hook("auto")));
    Join join = ddp.join();
    for (int step = 0; step < 10 + 20 * rank; ++step) run_step(rank, ddp, step);
    join.finish();
  });
}

TEST_P(Auto, ACheckpointContinuesWithTheSameHook) {
  for (const int saved_after : {0, 5, 20, kSteps}) {
    std::vector<std::vector<std::string>> used(2);
    run_ranks(GetParam(), 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      AutoHookOptions options;
      options.hooks = {"allreduce", "int4", "bf16_compress"};
      const auto train = [&](AutoHook& hook, const std::shared_ptr<CommHook>& registered, int from, int to) {
        Mlp net;
        DistributedDataParallel<Mlp> ddp(net, options_for(GetParam(), group));
        ddp.register_comm_hook(make_checking_hook(registered));
        for (int step = from; step < to; ++step) {
          run_step(rank, ddp, step);
          used[static_cast<std::size_t>(rank)].push_back(hook.current());
        }
      };
      const auto first = make_auto_hook(options);
      train(*first, first, 0, saved_after);
      const HookState state = first->state_dict();
      const auto second = make_auto_hook(options);
      second->load_state_dict(state);
      EXPECT_EQ(second->current(), first->current());
      EXPECT_EQ(second->state_dict().size(), state.size());
      train(*second, second, saved_after, saved_after + kSteps);
    });
    EXPECT_EQ(used[0], used[1]) << "saved after " << saved_after << " steps";
  }
}

// A new hook on rank 1 loads the state before one step, as a member does that joins a running job, or before each step.
// So rank 1 lacks the time of the step before, which the others have.
TEST(AutoHook, ARankThatHasJustLoadedTheStateDecidesAsTheOthers) {
  constexpr std::size_t kRanks = 3;
  constexpr int kSlower = 40, kEnd = 66, kEach = -1;  // steps
  for (int loads_before = kEach; loads_before < kEnd - 1; ++loads_before) {
    std::vector<std::vector<std::string>> used(kRanks);
    run_ranks({"threads"}, kRanks, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      LinkClock clock;
      const auto link = std::make_shared<LinkGroup>(group, clock, 10e9);
      const auto make = [&clock] { return internal::make_auto_hook({}, nullptr, [&clock] { return clock.now(); }); };
      std::shared_ptr<AutoHook> hook = make();
      const at::Tensor values = random_tensor({std::int64_t{1} << 12}, rank);
      for (int step = 0; step < kEnd; ++step) {
        if (step == kSlower) link->rate = 0.2e6;
        if (rank == 1 && (loads_before == step || loads_before == kEach)) {
          const HookState state = hook->state_dict();
          hook = make();
          hook->load_state_dict(state);
        }
        clock.pass(0.020);
        GradBucket bucket = bucket_of(values, *link, static_cast<std::uint32_t>(step));
        hook->run(bucket)->waitAndThrow();
        used[static_cast<std::size_t>(rank)].push_back(hook->current());
      }
    });
    EXPECT_EQ(used[0][kSlower], "allreduce") << "loaded before step " << loads_before;
    EXPECT_EQ(used[0].back(), "int8") << "loaded before step " << loads_before;
    for (std::size_t rank = 1; rank < kRanks; ++rank) {
      EXPECT_EQ(used[rank], used[0]) << "rank " << rank << ", loaded before step " << loads_before;
    }
  }
}

// Computing takes 20 ms of a step, which no hook changes.
TEST(AutoHook, ChoosesByTheLinkAndFollowsIt) {
  struct Link {
    double rate;       // bytes a second
    const char* hook;  // the fastest: 1 MiB is sent as 1, 1/2 or 1/4 MiB
  };
  constexpr Link kSlow{10e6, "int8"}, kMiddle{200e6, "bf16_compress"}, kFast{10e9, "allreduce"};
  for (const auto& [first, then] : std::vector<std::pair<Link, Link>>{
           {kSlow, kFast}, {kFast, kSlow}, {kMiddle, kSlow}, {kSlow, kMiddle}, {kFast, kFast}}) {
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      LinkClock clock;
      const auto link = std::make_shared<LinkGroup>(group, clock, first.rate);
      const auto hook = internal::make_auto_hook({}, nullptr, [&clock] { return clock.now(); });
      const at::Tensor values = random_tensor({std::int64_t{1} << 18}, rank);
      std::uint32_t iteration = 0;
      const auto run = [&] {
        clock.pass(0.020);
        GradBucket bucket = bucket_of(values, *link, iteration++);
        hook->run(bucket)->waitAndThrow();
      };
      while (hook->choices().empty() && iteration < 60) run();
      EXPECT_EQ(hook->choices().back().hook, first.hook) << first.rate << " bytes a second";
      for (int i = 0; i < 10; ++i) run();
      EXPECT_EQ(hook->current(), first.hook) << first.rate << " bytes a second";
      link->rate = then.rate;
      for (int i = 0; i < 20; ++i) run();
      EXPECT_EQ(hook->current(), then.hook) << first.rate << ", then " << then.rate << " bytes a second";
    });
  }
}

// A warm-up is over before the hooks race, and no turn has one of its own: what is measured is the hook, not the plain
// averaging of its warm-up. The matrix has 512 x 512 elements, so that rank 4 sends 4096 of 262,144.
TEST(AutoHook, MeasuresHooksWithAWarmUpOnlyAsTheyAreAfterIt) {
  const auto bucket = [](const at::Tensor& values, ProcessGroup& group, std::uint32_t iteration) {
    auto layout = std::make_shared<BucketLayout>();
    layout->append(0, values, at::zeros_like(values), "p");
    return GradBucket(layout, values.flatten().clone(), group, group.size(), true, iteration);
  };
  struct Case {
    const char* hook;
    std::uint32_t warm_up;
  };
  for (const Case& one : {Case{"power_sgd:rank=4,start=2", 2}, Case{"power_sgd:rank=4,start=20", 20},
                          Case{"power_sgd:rank=4,start=2,warm_up=8", 10}}) {
    std::vector<std::uint32_t> chosen_at(2);
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      LinkClock clock;
      constexpr double kRate = 10e6, kPlain = 0x1p20 / kRate, kCompressed = 4 * 4096 / kRate;
      const auto link = std::make_shared<LinkGroup>(group, clock, kRate);
      AutoHookOptions options;
      options.hooks = {"allreduce", "int8", one.hook};
      const auto hook = internal::make_auto_hook(options, nullptr, [&clock] { return clock.now(); });
      const at::Tensor values = random_tensor({512, 512}, rank);
      std::uint32_t iteration = 0;
      const auto run = [&] {
        clock.pass(0.020);
        GradBucket gradients = bucket(values, *link, iteration++);
        hook->run(gradients)->waitAndThrow();
      };
      while (hook->choices().empty() && iteration < one.warm_up + 60) {
        run();
        if (iteration <= one.warm_up) {
          EXPECT_EQ(hook->current(), "allreduce") << one.hook;
        }
      }
      ASSERT_EQ(hook->choices().size(), 1U) << one.hook;
      const HookChoice choice = hook->choices().front();
      EXPECT_LE(choice.iteration, one.warm_up + 27) << "29 with a warm-up of two steps";
      chosen_at[static_cast<std::size_t>(rank)] = choice.iteration;
      EXPECT_EQ(choice.hook, one.hook);
      EXPECT_NEAR(choice.measured[0].cost, kPlain, 1e-4);
      EXPECT_NEAR(choice.measured[2].cost, kCompressed, 1e-4) << one.hook;
      // The chosen hook has no warm-up either, which would look as a change of the link.
      for (int i = 0; i < 40; ++i) run();
      EXPECT_EQ(hook->current(), one.hook);
      EXPECT_EQ(hook->choices().size(), 1U) << one.hook << " raced again";
      // The same when the hooks race again: a link with a tenth of the rate.
      link->rate = kRate / 10;
      for (int i = 0; i < 40; ++i) run();
      EXPECT_EQ(hook->current(), one.hook);
      EXPECT_NEAR(hook->choices().back().measured[2].cost, hook->choices().size() > 1 ? 10 * kCompressed : kCompressed,
                  1e-4)
          << one.hook;
    });
    EXPECT_EQ(chosen_at[0], chosen_at[1]);
  }
}

// A group in which each call takes as long as `seconds_of` says, on a clock that is not the real one.
class TimedGroup final : public CallGroup {
 public:
  TimedGroup(std::shared_ptr<ProcessGroup> inner, LinkClock& clock, bool in_order)
      : CallGroup(inner->rank(), inner->size()), inner_(std::move(inner)), clock_(clock), in_order_(in_order) {}
  std::string get_backend_name() const override { return "timed"; }
  bool multiplies_as_it_sums() const override { return in_order_; }

  double seconds_of_call = 0;
  double seconds_of_mebibyte = 0;  // beyond the first

 protected:
  std::shared_ptr<Work> do_call(GroupCall& call) override {
    double bytes = 0;
    for_each_tensor(call, [&](const at::Tensor& tensor) { bytes += static_cast<double>(tensor.nbytes()); });
    std::shared_ptr<Work> work = call_on(*inner_, call, timeout());
    work->wait();
    clock_.pass(seconds_of_call + seconds_of_mebibyte * std::max(0.0, bytes / 0x1p20 - 1));
    return work;
  }

 private:
  const std::shared_ptr<ProcessGroup> inner_;
  LinkClock& clock_;
  const bool in_order_;
};

constexpr std::size_t kOneBucket = std::size_t{1} << 40;

void run_wide_step(int rank, DistributedDataParallel<Mlp>& ddp, int step) {
  ddp.zero_grad();
  ddp(random_tensor({2, 512}, 50 * step + rank)).pow(2).mean().backward();
}

// Three gradients of 1 MiB. Where each call takes long, one bucket is best; where a long one takes longer, DDP's own
// two.
TEST(AutoShape, ChoosesByTheTimesOfTheGroupAndKeepsTheBits) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    LinkClock clock;
    const auto timed = std::make_shared<TimedGroup>(group, clock, true);
    AutoHookOptions exact;
    exact.accuracy = HookAccuracy::exact;
    const auto hook = internal::make_auto_hook(exact, nullptr, [&clock] { return clock.now(); });
    DdpOptions options;
    options.process_group = timed;
    Mlp plain_net(3, 512), net(3, 512);
    DistributedDataParallel<Mlp> plain(plain_net, options_for({"threads"}, group)), ddp(net, options);
    ddp.register_comm_hook(hook);
    int step = 0;
    const auto train = [&](int steps) {
      for (int i = 0; i < steps; ++i, ++step) {
        run_wide_step(rank, plain, step);
        run_wide_step(rank, ddp, step);
        clock.pass(0.020);
        const auto expected = gradients_of(*plain_net), actual = gradients_of(*net);
        for (std::size_t at = 0; at < expected.size(); ++at)
          ASSERT_TRUE(at::equal(actual[at], expected[at])) << "step " << step;
      }
    };
    timed->seconds_of_call = 0.010;
    train(40);
    ASSERT_EQ(hook->choices().size(), 1U);
    EXPECT_LE(hook->choices().front().iteration, 33U);
    EXPECT_EQ(hook->choices().front().shapes.size(), 3U) << "a group without duplicates has no lanes";
    EXPECT_EQ(hook->current_shape(), (ReductionShape{kOneBucket, 0}));
    EXPECT_EQ(ddp.core().bucket_plan().size(), 1U);
    timed->seconds_of_call = 0;
    timed->seconds_of_mebibyte = 0.100;
    train(40);
    EXPECT_NE(hook->current_shape(), (ReductionShape{kOneBucket, 0})) << "the group has changed";
    EXPECT_EQ(ddp.core().bucket_plan().size(), 2U);
  });
}

TEST(AutoShape, ExactAccuracyKeepsTheShapeWhereTheOrderOfSumsIsNotKnown) {
  for (const bool exact : {false, true}) {
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      LinkClock clock;
      const auto timed = std::make_shared<TimedGroup>(group, clock, false);
      timed->seconds_of_call = 0.010;
      AutoHookOptions options;
      options.hooks = {"allreduce"};
      options.accuracy = exact ? HookAccuracy::exact : HookAccuracy::rounding;
      const auto hook = internal::make_auto_hook(options, nullptr, [&clock] { return clock.now(); });
      DdpOptions of_ddp;
      of_ddp.process_group = timed;
      Mlp net(3, 512);
      DistributedDataParallel<Mlp> ddp(net, of_ddp);
      ddp.register_comm_hook(hook);
      for (int step = 0; step < 40; ++step) {
        run_wide_step(rank, ddp, step);
        clock.pass(0.020);
      }
      EXPECT_EQ(hook->choices().empty(), exact);
      EXPECT_EQ(hook->current_shape(), (exact ? ReductionShape{} : ReductionShape{kOneBucket, 0}));
    });
  }
}

// With error feedback, what all steps gave and what the memories hold add up to what all steps were to give: nothing is
// lost while shapes are tried.
TEST(AutoShape, AMemorySurvivesEachChangeOfTheShape) {
  constexpr int kRanks = 2, kAll = 40;
  std::vector<std::vector<at::Tensor>> own(kRanks), sums(kRanks), residuals(kRanks);
  run_ranks({"threads"}, kRanks, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto at_rank = static_cast<std::size_t>(rank);
    Mlp alone(3, 512), net(3, 512);
    alone(random_tensor({2, 512}, rank)).sum().backward();
    own[at_rank] = gradients_of(*alone);
    LinkClock clock;
    const auto timed = std::make_shared<TimedGroup>(group, clock, true);
    AutoHookOptions options;
    options.hooks = {"int4:exchange=all_gather"};
    const auto hook = internal::make_auto_hook(options, nullptr, [&clock] { return clock.now(); });
    DdpOptions of_ddp;
    of_ddp.process_group = timed;
    DistributedDataParallel<Mlp> ddp(net, of_ddp);
    ddp.register_comm_hook(hook);
    for (int step = 0; step < kAll; ++step) {
      ddp.zero_grad();
      ddp(random_tensor({2, 512}, rank)).sum().backward();
      clock.pass(0.020);
      auto made = gradients_of(*net);
      for (std::size_t i = 0; step > 0 && i < made.size(); ++i) made[i] += sums[at_rank][i];
      sums[at_rank] = std::move(made);
    }
    EXPECT_EQ(hook->choices().size(), 1U) << "all shapes were tried";
    const HookState state = hook->state_dict();
    for (const auto& parameter : net->named_parameters())
      residuals[at_rank].push_back(state.at("local/residual/" + parameter.key()).toTensor());
  });
  for (std::size_t i = 0; i < own[0].size(); ++i) {
    const at::Tensor held = (residuals[0][i] + residuals[1][i]).reshape_as(own[0][i]) / kRanks;
    const at::Tensor expected = kAll * (own[0][i] + own[1][i]) / kRanks;
    EXPECT_GT(held.abs().max().item<float>(), 1e-3) << "there is something to lose";
    EXPECT_TRUE(at::allclose(sums[0][i] + held, expected, 1e-4, 1e-4))
        << "parameter " << i << " lacks " << (sums[0][i] + held - expected).abs().max();
  }
}

TEST(AutoShape, AllRanksHaveOneShapeAlsoAfterACheckpoint) {
  constexpr int kRanks = 3;
  std::vector<std::vector<ReductionShape>> used(kRanks);
  std::vector<std::vector<at::Tensor>> trained(kRanks);
  run_ranks({"threads"}, kRanks, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    auto& shapes = used[static_cast<std::size_t>(rank)];
    // A clock on which each look takes a millisecond, so one bucket is best: there are fewest looks. The times of a
    // busy machine may ask for another race.
    std::atomic<std::int64_t> milliseconds{0};
    const auto make = [&] {
      return internal::make_auto_hook({}, nullptr, [&] { return 1e-3 * static_cast<double>(++milliseconds); });
    };
    Mlp net(3, 512);
    const auto train = [&](const std::shared_ptr<AutoHook>& hook, int steps) {
      DistributedDataParallel<Mlp> ddp(net, options_for({"threads"}, group));
      ddp.register_comm_hook(hook);
      for (int step = 0; step < steps; ++step) {
        run_wide_step(rank, ddp, step);
        milliseconds += 20;
        shapes.push_back(hook->current_shape());
        torch::NoGradGuard no_grad;
        for (const at::Tensor& parameter : net->parameters()) parameter.sub_(parameter.grad(), 0.1);
      }
    };
    const auto first = make();
    train(first, 52);
    ASSERT_EQ(first->choices().size(), 2U) << "of the hook, then of the shape";
    const HookChoice& choice = first->choices().back();
    EXPECT_EQ(choice.shapes.size(), 4U) << "DDP's own, 2 MiB, one bucket, two lanes";
    EXPECT_LE(choice.iteration, 49U);
    EXPECT_EQ(first->current_shape().cap_bytes, kOneBucket);
    for (const ShapeTimes& times : choice.shapes) EXPECT_GT(times.cost, 0);

    HookState state = first->state_dict();
    const auto second = make();
    second->load_state_dict(state);
    train(second, 6);
    EXPECT_EQ(shapes.back(), first->current_shape());
    EXPECT_TRUE(second->choices().empty()) << "the decision is the saved one";
    for (const char* key : {"auto/shapes", "auto/race_of_shapes"}) {
      HookState broken = state;
      broken[key] = at::zeros({3}, at::kDouble);
      EXPECT_THROW(second->load_state_dict(broken), InvalidArgument) << key;
      broken.erase(key);
      EXPECT_THROW(second->load_state_dict(broken), InvalidArgument) << "without " << key;
    }
    state.erase("auto/shapes");
    state.erase("auto/race_of_shapes");
    second->load_state_dict(state);  // of a hook that had chosen no shape
    trained[static_cast<std::size_t>(rank)] = net->parameters();
  });
  for (int rank = 1; rank < kRanks; ++rank) {
    EXPECT_EQ(used[static_cast<std::size_t>(rank)], used[0]);
    for (std::size_t i = 0; i < trained[0].size(); ++i)
      EXPECT_TRUE(at::equal(trained[static_cast<std::size_t>(rank)][i], trained[0][i])) << "parameter " << i;
  }
}

// With shapes: rank 1 loads its own state before each step.
TEST(AutoShape, ARankThatHasJustLoadedTheStateChoosesTheShapeOfTheOthers) {
  constexpr std::size_t kRanks = 3;
  std::vector<std::vector<ReductionShape>> used(kRanks);
  run_ranks({"threads"}, kRanks, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    LinkClock clock;
    const auto timed = std::make_shared<TimedGroup>(group, clock, true);
    timed->seconds_of_call = 0.010;
    const auto hook = internal::make_auto_hook({}, nullptr, [&clock] { return clock.now(); });
    DdpOptions options;
    options.process_group = timed;
    Mlp net(3, 512);
    DistributedDataParallel<Mlp> ddp(net, options);
    ddp.register_comm_hook(hook);
    for (int step = 0; step < 100; ++step) {
      if (step == 56) timed->seconds_of_call = 0.100;
      if (rank == 1) hook->load_state_dict(hook->state_dict());
      run_wide_step(rank, ddp, step);
      clock.pass(0.020);
      used[static_cast<std::size_t>(rank)].push_back(hook->current_shape());
    }
    ASSERT_GE(hook->choices().size(), 4U) << "of the hook and the shape, twice";
    EXPECT_EQ(hook->current_shape().cap_bytes, kOneBucket);
    for (const ShapeTimes& times : hook->choices().back().shapes) EXPECT_TRUE(std::isfinite(times.cost));
  });
  for (std::size_t rank = 1; rank < kRanks; ++rank) EXPECT_EQ(used[rank], used[0]) << "rank " << rank;
}

TEST(AutoShape, WithTheOptionDDPKeepsItsShape) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(3, 512);
    DistributedDataParallel<Mlp> ddp(net, options_for({"threads"}, group));
    ddp.register_comm_hook(make_hook("auto:accuracy=exact,shape=own"));
    for (int step = 0; step < 30; ++step) {
      run_wide_step(rank, ddp, step);
      EXPECT_EQ(ddp.core().bucket_plan().size(), step == 0 ? 1U : 2U) << "step " << step;
    }
  });
}

TEST(AutoHook, RefusesBadOptionsAndOtherStates) {
  AutoHookOptions twice;
  twice.hooks = {"int8", "allreduce", "int8"};
  EXPECT_NE(error_of([&] { make_auto_hook(twice); }).find("'int8' is named twice"), std::string::npos);
  AutoHookOptions unknown;
  unknown.hooks = {"allreduce", "no_such_hook"};
  EXPECT_THROW(make_auto_hook(unknown), InvalidArgument);
  for (const double gain : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()}) {
    AutoHookOptions options;
    options.gain = gain;
    EXPECT_THROW(make_auto_hook(options), InvalidArgument) << gain;
  }
  EXPECT_THROW(make_hook("auto:accuracy=some"), InvalidArgument);
  EXPECT_THROW(make_hook("auto:rank=4"), InvalidArgument);
  EXPECT_THROW(make_hook("auto:shape=some"), InvalidArgument);

  const auto hook = make_auto_hook();
  const HookState good = hook->state_dict();
  HookState no_race = good, other_hook = good, other_race = good, more = good;
  no_race.erase("auto/race");
  other_hook["auto/hook"] = "int4";
  other_race["auto/race"] = at::zeros({3}, at::kDouble);
  more["residual/p"] = at::zeros({3});
  for (const HookState& state : {HookState(), no_race, other_hook, other_race, more}) {
    EXPECT_THROW(hook->load_state_dict(state), InvalidArgument);
    EXPECT_EQ(hook->current(), "allreduce");
  }
  hook->load_state_dict(good);
  HookState older = good, newer = good;
  older.erase("auto/version");
  newer["auto/version"] = std::int64_t{3};
  for (const HookState& state : {older, newer}) {
    const std::string error = error_of([&] { hook->load_state_dict(state); });
    EXPECT_NE(error.find("another version"), std::string::npos) << error;
  }
  other_hook.erase("auto/version");
  other_hook.erase("auto/race");
  EXPECT_NE(error_of([&] { hook->load_state_dict(other_hook); }).find("saved by another hook"), std::string::npos);
}

}  // namespace
}  // namespace gradwire::testing::auto_hook_test
