// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks' memories on their way through archives, to other buckets and to another number of ranks.
#include "gradwire/ddp/hook_state.h"

#include <torch/serialize.h>

#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/ddp/kept_hook_state.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing::hook_state_test {
namespace {

const Setup kSetup{"threads", 2, false};
constexpr int kLayers = 4;
constexpr int kWidth = 16;

// Through the bytes of a file.
HookState round_trip(const HookState& state) {
  torch::serialize::OutputArchive out;
  save_hook_state(state, out);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  return load_hook_state(in);
}

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() && b.isTensor()) {
    return a.toTensor().scalar_type() == b.toTensor().scalar_type() && a.toTensor().equal(b.toTensor());
  }
  return a == b;
}

void expect_same_state(const HookState& a, const HookState& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [key, value] : a) {
    ASSERT_TRUE(b.contains(key)) << key;
    EXPECT_TRUE(same_value(value, b.at(key))) << key;
  }
}

// What a run leaves behind, by rank.
struct Left {
  std::vector<std::string> order;
  std::vector<HookState> states;
  std::vector<at::Tensor> parameters;  // rank 0's
  std::vector<at::Tensor> gradients;   // rank 0's, of the last step
};

at::Tensor input(int rank, int step) { return random_tensor({4, kWidth}, 100 * step + rank); }

// Trains steps [first, last) on `world` ranks, from `start` on (whose states are by rank of this world).
Left train(int world, const std::string& spec, int first, int last, double cap, const Left& start = {}) {
  Left left;
  left.states.resize(static_cast<std::size_t>(world));
  run_ranks(kSetup, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(kLayers, kWidth);
    if (!start.parameters.empty()) {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < start.parameters.size(); ++i) net->parameters()[i].copy_(start.parameters[i]);
    }
    auto options = options_for(kSetup, group);
    options.bucket_cap_mb = cap;
    DistributedDataParallel ddp(net, options);
    const auto hook = make_hook(spec);
    if (!start.states.empty()) hook->load_state_dict(start.states[static_cast<std::size_t>(rank)]);
    if (!start.order.empty()) ddp.core().set_bucket_order(start.order);
    ddp.register_comm_hook(hook);
    for (int step = first; step < last; ++step) {
      ddp.zero_grad();
      ddp(input(rank, step)).pow(2).mean().backward();
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) parameter.sub_(parameter.grad(), 0.1);
    }
    left.states[static_cast<std::size_t>(rank)] = hook->state_dict();
    if (rank != 0) return;
    left.order = ddp.core().bucket_order();
    left.gradients = gradients_of(*net);
    for (const auto& parameter : net->parameters()) left.parameters.push_back(parameter.detach().clone());
  });
  return left;
}

constexpr double kSmallBuckets = 0.0005;  // several

// Hooks with every kind of memory, and a warm-up that a resume must not repeat.
const std::vector<std::string> kSpecs{"power_sgd:rank=2,start=3,min_rate=1",
                                      "batched_power_sgd:rank=2,start=3",
                                      "int4:memory=error_feedback,rounding=stochastic",
                                      "int4:memory=ef21",
                                      "top_k:ratio=0.1,memory=ef21",
                                      "dgc:ratio=0.05,ramp=8",
                                      "one_bit:warm_up=5"};

// A run that stops, goes through an archive and goes on ends with the same bits as one that does not stop.
TEST(HookStateTest, AResumedRunHasTheSameBits) {
  for (const std::string& spec : kSpecs) {
    SCOPED_TRACE(spec);
    const Left whole = train(2, spec, 0, 12, kSmallBuckets);
    Left half = train(2, spec, 0, 6, kSmallBuckets);
    ASSERT_FALSE(half.order.empty());
    for (HookState& state : half.states) {
      const HookState shared = round_trip(shared_part(half.states[0]));
      state = join_parts(shared, round_trip(local_part(state)));
    }
    const Left rest = train(2, spec, 6, 12, kSmallBuckets, half);
    EXPECT_EQ(rest.order, whole.order);
    for (std::size_t i = 0; i < whole.parameters.size(); ++i)
      EXPECT_TRUE(rest.parameters[i].equal(whole.parameters[i]));
    for (std::size_t rank = 0; rank < 2; ++rank) expect_same_state(rest.states[rank], whole.states[rank]);
  }
}

TEST(HookStateTest, PartsAreSharedOrLocal) {
  const Left left = train(3, "top_k:ratio=0.1,memory=ef21", 0, 4, kSmallBuckets);
  bool local_differs = false;
  for (const HookState& state : left.states) {
    expect_same_state(shared_part(state), shared_part(left.states[0]));
    for (const auto& [key, value] : local_part(state)) {
      local_differs = local_differs || !same_value(value, left.states[0].at(key));
    }
    expect_same_state(join_parts(shared_part(state), local_part(state)), state);
  }
  EXPECT_TRUE(local_differs);
  EXPECT_THROW((void)join_parts(left.states[0], left.states[0]), InvalidArgument);
}

// The mean over the ranks, by key, of what begins with "local/" + kind.
std::map<std::string, at::Tensor> mean_of(const std::vector<HookState>& states, const std::string& kind) {
  std::map<std::string, at::Tensor> mean;
  for (const HookState& state : states) {
    for (const auto& [key, value] : state) {
      if (!key.starts_with(concat("local/", kind, "/"))) continue;
      const at::Tensor share = value.toTensor().flatten().to(at::kDouble) / static_cast<double>(states.size());
      const auto [place, first] = mean.try_emplace(key.substr(key.rfind('/') + 1), share);
      if (!first) place->second = place->second + share;
    }
  }
  return mean;
}

// What the ranks owe together is kept: on 3 ranks, then on 2 or 5, with other buckets, the gradients of the next step
// and what is owed after it are together the mean of the ranks' gradients and what was owed before.
TEST(HookStateTest, AnotherWorldAndOtherBucketsOweTheSame) {
  struct Case {
    std::string spec;
    std::string kind;
  };
  for (const auto& [spec, kind] :
       {Case{"int4", "residual"}, Case{"top_k:ratio=0.1", "residual"}, Case{"one_bit:exchange=all_gather", "residual"},
        Case{"power_sgd:rank=1,start=2,min_rate=1", "error"}}) {
    const Left before = train(3, spec, 0, 5, kSmallBuckets);
    const auto owed = mean_of(before.states, kind);
    ASSERT_FALSE(owed.empty()) << spec;
    std::vector<HookState> parts;
    for (const HookState& state : before.states) parts.push_back(round_trip(local_part(state)));
    for (const int world : {2, 5}) {
      SCOPED_TRACE(concat(spec, " on ", world));
      Left start = before;
      start.states.assign(static_cast<std::size_t>(world),
                          join_parts(shared_part(before.states[0]), average_local(parts)));
      const Left after = train(world, spec, 5, 6, /*cap=*/10, start);
      const Left plain = train(world, "allreduce", 5, 6, /*cap=*/10, {{}, {}, before.parameters, {}});
      const auto still_owed = mean_of(after.states, kind);
      ASSERT_EQ(still_owed.size(), owed.size());
      const auto named = Mlp(kLayers, kWidth)->named_parameters();
      for (std::size_t i = 0; i < named.size(); ++i) {
        const auto& name = named[i].key();
        if (!owed.contains(name)) continue;  // PowerSGD compresses matrices only
        const at::Tensor due = plain.gradients[i].view(-1).to(at::kDouble) + owed.at(name);
        const at::Tensor paid = after.gradients[i].view(-1).to(at::kDouble) + still_owed.at(name);
        EXPECT_TRUE(at::allclose(paid, due, 1e-5, 1e-6)) << name << ": " << (paid - due).abs().max();
      }
    }
  }
}

// EF21's ranks know each other's estimates by their mean, which the aggregate is: still so after the move.
TEST(HookStateTest, AnotherWorldKeepsTheAggregateTheMeanOfTheEstimates) {
  const Left before = train(3, "int4:memory=ef21", 0, 5, kSmallBuckets);
  std::vector<HookState> parts;
  for (const HookState& state : before.states) parts.push_back(local_part(state));
  Left start = before;
  start.states.assign(2, join_parts(shared_part(before.states[0]), average_local(parts)));
  const Left after = train(2, "int4:memory=ef21", 5, 8, kSmallBuckets, start);
  for (const auto& [name, estimate] : mean_of(after.states, "estimate")) {
    const at::Tensor aggregate = after.states[0].at(concat("aggregate/", name)).toTensor().flatten().to(at::kDouble);
    EXPECT_TRUE(at::allclose(estimate, aggregate, 1e-5, 1e-6)) << name;
  }
}

// A rebuild and another cap neither lose nor mix: what is remembered before the first step under another cap is what
// was saved, by name, and each entry has its parameter's size.
TEST(HookStateTest, OtherBucketsFindTheSameMemory) {
  for (const std::string& spec : kSpecs) {
    SCOPED_TRACE(spec);
    const Left small = train(2, spec, 0, 7, kSmallBuckets);
    const Left loaded = train(2, spec, 7, 7, /*cap=*/10, small);
    for (std::size_t rank = 0; rank < 2; ++rank) expect_same_state(loaded.states[rank], small.states[rank]);
    const Left large = train(2, spec, 7, 9, /*cap=*/10, small);
    for (const auto& item : Mlp(kLayers, kWidth)->named_parameters()) {
      for (const auto& [key, value] : large.states[1]) {
        if (!key.starts_with("local/") || !key.ends_with("/" + item.key())) continue;
        EXPECT_EQ(value.toTensor().numel(), item.value().numel()) << key;
      }
    }
    EXPECT_EQ(local_part(large.states[1]).size(), local_part(small.states[1]).size());
  }
}

TEST(HookStateTest, ValuesOfEveryKindComeBack) {
  const HookState state{{"a.weight", at::rand({3, 2}, at::kDouble)},
                        {"b/half", at::rand({5}).to(at::kHalf)},
                        {"empty", at::empty({0})},
                        {"flag", true},
                        {"local/x", at::rand({2})},
                        {"number", std::int64_t{-7}},
                        {"real", 0.1},
                        {"text", std::string("a b\n")}};
  expect_same_state(round_trip(state), state);
  expect_same_state(round_trip({}), {});
}

TEST(HookStateTest, WhatDoesNotFitIsRefused) {
  EXPECT_THROW((void)average_local({}), InvalidArgument);
  EXPECT_THROW((void)average_local({{{"local/n", 3}}}), InvalidArgument);
  EXPECT_THROW((void)average_local({{{"local/e", at::zeros({3})}}, {{"local/e", at::zeros({4})}}}), InvalidArgument);
  torch::serialize::OutputArchive out;
  out.write("something", c10::IValue(1));
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  EXPECT_THROW((void)load_hook_state(in), InvalidArgument);
  const auto mean = average_local({{{"local/e", at::ones({2})}}, {}});
  EXPECT_TRUE(mean.at("local/e").toTensor().equal(at::full({2}, 0.5)));
}

// A rank that has joined takes EF21's aggregate for its estimate: zeros would not be what it owes.
TEST(HookStateTest, AnEstimateThatAPartLacksIsLeftOut) {
  const std::string key = "local/estimate/w";
  EXPECT_FALSE(average_local({{{key, at::ones({2})}}, {}}).contains(key));
  const auto mean = average_local({{{key, at::ones({2})}}, {{key, at::zeros({2})}}});
  EXPECT_TRUE(mean.at(key).toTensor().equal(at::full({2}, 0.5)));
}

TEST(BucketOrder, IsAnOrderOfTheParametersGivenBeforeTraining) {
  run_ranks(kSetup, 1, [](int, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(1, 4);
    DistributedDataParallel ddp(net, options_for(kSetup, group));
    ddp.register_comm_hook(make_hook("int8"));
    EXPECT_TRUE(ddp.core().bucket_order().empty());
    const std::vector<std::string> right{"layer0.weight", "layer0.bias"};
    for (const auto& wrong : {std::vector<std::string>{"layer0.weight"},
                              {"layer0.weight", "layer0.weight"},
                              {"layer0.weight", "layer1.bias"}}) {
      EXPECT_THROW(ddp.core().set_bucket_order(wrong), InvalidArgument);
    }
    ddp.core().set_bucket_order(right);
    ddp.core().set_bucket_order({});  // what bucket_order() returns where there is none
    ddp(at::ones({2, 4})).sum().backward();
    EXPECT_EQ(ddp.core().bucket_order(), right);
    EXPECT_THROW(ddp.core().set_bucket_order(right), InvalidArgument);
  });
}

// A user's hook that makes its state in the first iteration, and takes what it owes into the next one.
class LateHook final : public CommHook {
 public:
  Future run(GradBucket& bucket) override {
    at::Tensor& owes = owes_[bucket.parameter_names().front()];
    owes = owes.defined() ? owes + bucket.buffer() : bucket.buffer().clone();
    return completed_future(at::zeros_like(bucket.buffer()));
  }
  HookState state_dict() const override {
    HookState state;
    for (const auto& [name, owes] : owes_) state.emplace("local/" + name, owes.clone());
    return state;
  }
  void load_state_dict(const HookState& state) override {
    owes_.clear();
    for (const auto& [key, value] : state) owes_.emplace(key.substr(6), value.toTensor().clone());
  }

 private:
  std::map<std::string, at::Tensor> owes_;
};

// As elastic training takes back a step that does not count.
TEST(KeptHookState, BringsBackAHookThatHadNoStateYet) {
  run_ranks(kSetup, 1, [](int, const std::shared_ptr<ProcessGroup>& group) {
    const std::shared_ptr<CommHook> late = std::make_shared<LateHook>();
    for (const auto& hook : {late, make_checking_hook(late)}) {
      KeptHookState kept;
      kept.revert(*hook);  // nothing was kept
      kept.keep(*hook);
      EXPECT_TRUE(hook->state_dict().empty());
      for (int again = 0; again < 2; ++again) {
        GradBucket bucket = bucket_of(at::ones({4}), *group);
        (void)result_of(*hook, bucket);
        EXPECT_TRUE(hook->state_dict().at("local/p").toTensor().equal(at::ones({4})));
        kept.revert(*hook);
        EXPECT_TRUE(hook->state_dict().empty()) << "the gradient would count twice";
      }
    }
  });
}

}  // namespace
}  // namespace gradwire::testing::hook_state_test
