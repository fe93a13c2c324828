// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The hook "auto": all ranks use the same hook in each iteration, also after a checkpoint and in a Join; exact accuracy
// gives the bits of plain averaging; a slow link makes the hook choose what sends least, a fast link plain averaging.
#include "gradwire/hooks/auto_hook_internal.h"

#include <gtest/gtest.h>

#include <atomic>

#include "gradwire/base/error.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/hook_test_support.h"
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

// A group over a link that carries so many bytes a second, on a clock that is not the real one: those of the largest
// tensor, twice for an all-reduce, without the part that remains on the rank.
class LinkGroup final : public CallGroup {
 public:
  LinkGroup(std::shared_ptr<ProcessGroup> inner, LinkClock& clock, double bytes_per_second)
      : CallGroup(inner->rank(), inner->size()), rate(bytes_per_second), inner_(std::move(inner)), clock_(clock) {}
  std::string get_backend_name() const override { return "link"; }

  double rate;

 protected:
  std::shared_ptr<Work> do_call(GroupCall& call) override {
    double bytes = 0;
    for_each_tensor(call,
                    [&](const at::Tensor& tensor) { bytes = std::max(bytes, static_cast<double>(tensor.nbytes())); });
    bytes *= (std::holds_alternative<AllReduceCall>(call) ? 2.0 : 1.0) * (size() - 1) / size();
    std::shared_ptr<Work> work = call_on(*inner_, call, timeout());
    work->wait();
    clock_.pass(bytes / rate);
    // What a codec takes for 1 MiB, by the number of calls that it makes: one for bfloat16, two for int8.
    if (is_encoded(call)) clock_.pass(0.002);
    return work;
  }

 private:
  static bool is_encoded(const GroupCall& call) {
    bool encoded = false;
    for_each_tensor(call, [&](const at::Tensor& tensor) {
      encoded = encoded || tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kByte;
    });
    return encoded;
  }

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
      EXPECT_LE(made.front().iteration, 51U);
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
      for (int i = 0; i < 24; ++i) run();
      EXPECT_EQ(hook->current(), then.hook) << first.rate << ", then " << then.rate << " bytes a second";
    });
  }
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
}

}  // namespace
}  // namespace gradwire::testing::auto_hook_test
