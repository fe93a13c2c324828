// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What members hold after they met: equal bits, and memories of hooks of which nothing was lost or doubled.
#include "gradwire/elastic/state_exchange_internal.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/elastic/elastic_group.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::state_exchange_test {
namespace {

using namespace gradwire::testing;
using internal::exchange_state;
using internal::kNoState;
using internal::MemoryStanding;
using internal::TrainingState;

// A member outside of any epoch, whose parameters depend on `seed`.
struct Holder {
  explicit Holder(int seed, const std::string& hook = "") : Holder(seed, hook.empty() ? nullptr : make_hook(hook)) {}
  Holder(int seed, std::shared_ptr<CommHook> hook) : net(3, 8, seed), made(std::move(hook)) {
    DdpOptions options;
    options.process_group = std::make_shared<ElasticGroup>();
    ddp = std::make_unique<DistributedDataParallel<Mlp>>(net, options);
    if (made != nullptr) ddp->register_comm_hook(made);
    optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    state.add(ddp->core());
    state.add(*optimizer);
    state.leave_group();
  }

  Mlp net;
  std::shared_ptr<CommHook> made;
  std::unique_ptr<DistributedDataParallel<Mlp>> ddp;
  std::unique_ptr<torch::optim::SGD> optimizer;
  TrainingState state;
};

// exchange_state() on a member that has its own memory, or the given one.
std::int64_t meet(ProcessGroup& group, TrainingState& state, std::int64_t counted, bool fresh,
                  MemoryStanding memory = {}) {
  return exchange_state(group, state, counted, fresh, memory);
}

TEST(StateExchangeTest, MembersBehindAndNewOnesTakeTheNewestState) {
  run_ranks({"threads"}, 4, [](int rank, std::shared_ptr<ProcessGroup> group) {
    const std::int64_t counted[] = {4, 5, kNoState, 5};
    const int seeds[] = {1, 2, 3, 2};
    Holder holder(seeds[rank]);
    EXPECT_EQ(meet(*group, holder.state, counted[rank], false), 5);
    EXPECT_EQ(holder.state.hash(), Holder(2).state.hash());
  });
}

// A memory of ones on the members that hold the job's, and of other numbers on the others.
TEST(StateExchangeTest, MembersWithoutTheMemoryOfTheJobGetIt) {
  const auto memory = [](float value, float aggregate) {
    HookState state;
    state["local/estimate/layer1.weight"] = at::full({8 * 16}, value);
    state["aggregate/layer1.weight"] = at::full({8 * 16}, aggregate);
    state["iteration"] = static_cast<std::int64_t>(aggregate);
    return state;
  };
  for (const bool anybody : {true, false}) {
    run_ranks({"threads"}, 4, [&](int rank, std::shared_ptr<ProcessGroup> group) {
      const bool holds = anybody && rank >= 2;
      Holder holder(1, "int8:memory=ef21");
      holder.made->load_state_dict(holds ? memory(1, 3) : memory(7, static_cast<float>(5 + rank)));
      EXPECT_EQ(meet(*group, holder.state, 4, false, {.holds = holds}), 4);
      const HookState state = holder.made->state_dict();
      const float aggregate = anybody ? 3 : 5;
      EXPECT_TRUE(state.at("aggregate/layer1.weight").toTensor().equal(at::full({8 * 16}, aggregate))) << rank;
      EXPECT_EQ(state.at("iteration").toInt(), static_cast<std::int64_t>(aggregate));
      EXPECT_FALSE(state.contains("local/estimate/layer1.weight")) << "EF21 goes on from the aggregate";
    });
  }
  run_ranks({"threads"}, 4, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    const bool holds = rank >= 2;
    Holder holder(1, "int8:memory=error_feedback");
    HookState state;
    state["local/residual/layer1.weight"] = at::full({8 * 16}, holds ? static_cast<float>(rank) : 99.0F);
    state["iteration"] = std::int64_t{4};
    holder.made->load_state_dict(state);
    meet(*group, holder.state, 4, false, {.holds = holds});
    EXPECT_TRUE(holder.made->state_dict().at("local/residual/layer1.weight").toTensor().equal(at::full({8 * 16}, 2.5F)))
        << "the mean of those who hold it";
  });
}

// A user's hook that has no state before its first iteration.
class LateHook final : public CommHook {
 public:
  Future run(GradBucket& bucket) override { return completed_future(bucket.buffer()); }
  HookState state_dict() const override { return state_; }
  void load_state_dict(const HookState& state) override { state_ = state; }

 private:
  HookState state_;
};

// The job's memory is none yet: the members that have another one lose it.
TEST(StateExchangeTest, NoMemoryIsAMemoryToo) {
  run_ranks({"threads"}, 3, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    const bool holds = rank == 2;
    Holder holder(1, std::make_shared<LateHook>());
    if (!holds) holder.made->load_state_dict({{"local/layer1.weight", at::ones({4})}, {"steps", std::int64_t{1}}});
    meet(*group, holder.state, 4, false, {.holds = holds});
    EXPECT_TRUE(holder.made->state_dict().empty()) << "rank " << rank;
  });
}

TEST(StateExchangeTest, AFreshJobBeginsWithTheStateOfRankZero) {
  run_ranks({"threads"}, 2, [](int rank, std::shared_ptr<ProcessGroup> group) {
    Holder holder(7 + rank);
    EXPECT_EQ(meet(*group, holder.state, kNoState, true), 0);
    EXPECT_EQ(holder.state.hash(), Holder(7).state.hash());
    EXPECT_EQ(meet(*group, holder.state, kNoState, false), kNoState);
  });
}

TEST(StateExchangeTest, OtherBitsAfterTheSameStepAreAMismatch) {
  run_ranks({"threads"}, 3, [](int rank, std::shared_ptr<ProcessGroup> group) {
    Holder holder(rank == 1 ? 2 : 1);
    const std::string said = error_of([&] { meet(*group, holder.state, 5, false); });
    EXPECT_NE(said.find("after step 5 rank 1 of the new epoch had other parameters than rank 0"), std::string::npos)
        << said;
  });
}

// Floats 1 and 3 have their signs in the highest bits of two words of 64 bits.
TEST(StateExchangeTest, TwoSignsAreOtherBits) {
  run_ranks({"threads"}, 2, [](int rank, std::shared_ptr<ProcessGroup> group) {
    Holder holder(1);
    if (rank == 1) {
      const c10::NoGradGuard no_grad;
      const at::Tensor values = holder.net->parameters().front().view(-1);
      for (const int place : {1, 3}) values[place].neg_();
    }
    const std::string said = error_of([&] { meet(*group, holder.state, 5, false); });
    EXPECT_NE(said.find("rank 1 of the new epoch had other parameters than rank 0"), std::string::npos) << said;
  });
}

// Ranks 0 and 2 hold the state; together they owe the mean of their residuals, and so do all four afterwards.
TEST(StateExchangeTest, ResidualsKeepTheirMean) {
  const std::string key = "local/residual/layer0.weight";
  run_ranks({"threads"}, 4, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    const bool holds = rank % 2 == 0;
    Holder holder(1, "int8:memory=error_feedback");
    holder.made->load_state_dict({{key, at::full({64}, 1.0F + static_cast<float>(rank))}, {"iteration", 3 + rank}});
    meet(*group, holder.state, holds ? 5 : 4, false);
    const HookState state = holder.made->state_dict();
    EXPECT_TRUE(state.at(key).toTensor().equal(at::full({64}, 2.0F)));
    EXPECT_EQ(state.at("iteration").toInt(), rank == 2 ? 5 : 3) << "a shared part comes from the first holder";
  });
}

// The residual of one parameter, and a member that owes it.
const std::string kResidual = "local/residual/layer0.weight";
void owe(Holder& holder, float value) {
  holder.made->load_state_dict({{kResidual, at::full({64}, value)}, {"iteration", 3}});
}
void expect_owed(const Holder& holder, float value, const char* when) {
  const HookState state = holder.made->state_dict();
  EXPECT_TRUE(state.at(kResidual).toTensor().equal(at::full({64}, value)))
      << when << ": " << state.at(kResidual).toTensor()[0].item<float>();
}

// All members average, and then one of three dies. On one of the two others the exchange had failed on its last
// stretch. Both have to give what they owed before it: the mean of 1 and 3.
TEST(StateExchangeTest, AnExchangeThatFailedOnOneMemberAveragesNothingTwice) {
  run_ranks({"threads"}, 3, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    Holder holder(1, "int8:memory=error_feedback");
    MemoryStanding memory;
    owe(holder, rank == 0 ? 1 : rank == 1 ? 3 : 8);
    exchange_state(*group, holder.state, 5, false, memory);
    expect_owed(holder, 4, "three members");
    if (rank == 1) {  // an error of the group leaves a member as it was
      owe(holder, 3);
      memory = {};
    }
    const auto survivors = group->split(rank == 2 ? 1 : 0);
    if (rank == 2) return;
    exchange_state(*survivors, holder.state, 5, false, memory);
    expect_owed(holder, 2, "two members");
    // A step counts, and with it the exchange: from now on both owe the mean and what came to it since.
    memory.step_has_counted();
    owe(holder, rank == 0 ? 5 : 7);
    exchange_state(*survivors, holder.state, 6, false, memory);
    expect_owed(holder, 6, "after a step");
  });
}

// Three members owe 1, 3 and 8, and the last one leaves in good order. The others owe the mean of all three, also when
// one of them did not see the end of the hand-over, and when the exchange has to be done again.
TEST(StateExchangeTest, WhatAMemberOwesThatLeavesIsNeitherLostNorDoubled) {
  for (const int unlucky : {-1, 0, 1}) {
    run_ranks({"threads"}, 3, [&](int rank, std::shared_ptr<ProcessGroup> group) {
      Holder holder(1, "int8:memory=error_feedback");
      MemoryStanding memory;
      owe(holder, rank == 0 ? 1 : rank == 1 ? 3 : 8);
      internal::take_over_from_leavers(*group, holder.state, rank == 2, memory);
      if (rank == unlucky) memory.of_leavers.clear();
      const auto survivors = group->split(rank == 2 ? 1 : 0);
      if (rank == 2) return;
      for (const char* when : {"the first exchange", "an exchange that is done again"}) {
        exchange_state(*survivors, holder.state, 5, false, memory);
        expect_owed(holder, 4, when);
      }
      memory.step_has_counted();
      owe(holder, rank == 0 ? 5 : 7);
      exchange_state(*survivors, holder.state, 6, false, memory);
      expect_owed(holder, 6, "after a step");
    });
  }
}

// Nobody may keep what another member goes on with.
TEST(StateExchangeTest, WhereAllMembersLeaveNobodyTakesOver) {
  for (const int stays : {-1, 1}) {
    run_ranks({"threads"}, 3, [&](int rank, std::shared_ptr<ProcessGroup> group) {
      Holder holder(1, "int8:memory=error_feedback");
      MemoryStanding memory;
      owe(holder, rank + 1);
      EXPECT_EQ(internal::take_over_from_leavers(*group, holder.state, rank != stays, memory),
                stays != -1 && rank != stays)
          << "whether another one stays";
      EXPECT_EQ(memory.of_leavers.size(), stays == -1 ? 0U : 2U);
    });
  }
}

// The only member with a memory of its own leaves; the others have received theirs in an exchange that does not count.
TEST(StateExchangeTest, WhatOnlyALeaverOwesStaysInTheJob) {
  run_ranks({"threads"}, 3, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    Holder holder(1, "int8:memory=error_feedback");
    MemoryStanding memory;
    owe(holder, rank == 0 ? 5 : 99);
    exchange_state(*group, holder.state, rank == 0 ? 5 : kNoState, false, memory);
    internal::take_over_from_leavers(*group, holder.state, rank == 0, memory);
    const auto survivors = group->split(rank == 0 ? 1 : 0);
    if (rank == 0) return;
    exchange_state(*survivors, holder.state, 5, false, memory);
    expect_owed(holder, 5, "two members that had received it");
  });
}

// A member that has only received the mean does not give it, unless nobody else is left.
TEST(StateExchangeTest, AReceivedMemoryCountsOnlyWhenNobodyElseHasOne) {
  run_ranks({"threads"}, 3, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    Holder holder(1, "int8:memory=error_feedback");
    MemoryStanding memory;
    owe(holder, rank == 0 ? 1 : rank == 1 ? 3 : 99);
    exchange_state(*group, holder.state, rank == 2 ? kNoState : 5, false, memory);
    expect_owed(holder, 2, "two members and a new one");
    const auto without_first = group->split(rank == 0 ? 1 : 0);
    if (rank == 0) return;
    exchange_state(*without_first, holder.state, 5, false, memory);
    expect_owed(holder, 3, "the member with 1 died before a step counted");
    const auto alone = without_first->split(rank);
    if (rank == 1) return;
    exchange_state(*alone, holder.state, 5, false, memory);
    expect_owed(holder, 3, "alone with what it received");
  });
}

// EF21's mean holds the estimate of a member that is gone. All members take the mean for their estimate.
TEST(StateExchangeTest, EstimatesKeepTheMeanThatTheRanksAgreedOn) {
  run_ranks({"threads"}, 2, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    Holder holder(1, "int8:memory=ef21");
    holder.made->load_state_dict({{"aggregate/layer0.weight", at::full({64}, 9.0F)},
                                  {"local/estimate/layer0.weight", at::full({64}, 1.0F + static_cast<float>(rank))},
                                  {"iteration", 3}});
    meet(*group, holder.state, 5, false);
    const HookState state = holder.made->state_dict();
    EXPECT_TRUE(state.at("aggregate/layer0.weight").toTensor().equal(at::full({64}, 9.0F)));
    const auto estimate = state.find("local/estimate/layer0.weight");
    EXPECT_TRUE(estimate == state.end() || estimate->second.toTensor().equal(at::full({64}, 9.0F)));
  });
}

// One entry, which this member does not hold. `breaks`: the group fails while this state is exchanged.
class OneEntry final : public ShardedState {
 public:
  std::shared_ptr<ProcessGroup> sharding_group() const override { return nullptr; }
  std::string sharding_identity() const override { return "one entry"; }
  std::vector<int> owners_among(int) const override {
    if (breaks) throw PeerError("a rank is gone", {});
    return {0};
  }
  void begin_step() override {}
  std::vector<std::pair<at::Tensor, std::uint32_t>> undo_step() override { return {}; }
  std::vector<Holds> held(Version) const override { return {Holds::no}; }
  std::string save_entries(const std::vector<std::size_t>&, Version) const override { return ""; }
  std::string read_entries(const std::vector<std::size_t>&, const std::string&) const override { return ""; }
  std::string new_entries(const std::vector<std::size_t>&) const override { return "new"; }
  std::string save_common() const override { return ""; }
  void load_common(const std::string&) override {}
  void deal(const Deal& deal) override {
    for (const Parcel& parcel : deal.parcels) got += parcel.bytes;
  }
  bool breaks = false;
  std::string got;
};

// An entry that this member has kept comes back, in an exchange whose second part breaks. The first part has changed
// nothing then: the next exchange brings the entry back.
TEST(StateExchangeTest, AKeptEntryIsKeptUntilTheExchangeIsWhole) {
  run_ranks({"threads"}, 1, [](int, std::shared_ptr<ProcessGroup> group) {
    Holder holder(1);
    OneEntry first, second;
    holder.state.add(internal::AddedShards{.state = &first, .options = {}, .kept = {{0, "kept"}}});
    holder.state.add(internal::AddedShards{.state = &second});
    second.breaks = true;
    EXPECT_THROW(meet(*group, holder.state, 5, false), PeerError);
    EXPECT_EQ(first.got, "");
    second.breaks = false;
    EXPECT_EQ(meet(*group, holder.state, 5, false), 5);
    EXPECT_EQ(first.got, "kept");
    EXPECT_TRUE(holder.state.shards().front().kept.empty());
  });
}

}  // namespace
}  // namespace gradwire::state_exchange_test
