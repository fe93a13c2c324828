// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The fault-injecting group passes everything on, and does to DDP what it says.
#include "gradwire/testing/fault_injecting_group.h"

#include <atomic>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::testing::fault_injecting_group_test {
namespace {

constexpr int kWidth = 8;

class FaultyDdp : public ::testing::TestWithParam<Setup> {
 protected:
  static std::shared_ptr<FaultInjectingGroup> wrap(std::shared_ptr<ProcessGroup> group) {
    return std::make_shared<FaultInjectingGroup>(std::move(group));
  }
};

std::vector<at::Tensor> train(int rank, const DdpOptions& options, int steps) {
  Mlp net;
  DistributedDataParallel ddp(net, options);
  for (int step = 0; step < steps; ++step) ddp(random_tensor({4, kWidth}, 100 * rank + step)).square().sum().backward();
  return gradients_of(*net);
}

TEST_P(FaultyDdp, GradientsAreThoseOfTheWrappedGroupWhateverTheLatency) {
  run_ranks(GetParam(), 3, [&](int rank, auto group) {
    const std::vector<at::Tensor> wanted = train(rank, options_for(GetParam(), group), 3);
    const auto faulty = wrap(group);
    if (rank == 1) faulty->set_latency(std::chrono::microseconds(300));
    expect_close(train(rank, options_for(GetParam(), faulty), 3), wanted);
    EXPECT_EQ(faulty->name(), "fault_injecting(" + group->name() + ")");
    // A bucket in the first iteration, at least one in the later ones; duplicates are counted too.
    EXPECT_GE(faulty->calls("all_reduce"), 3U);
    std::size_t sum = 0;
    for (const auto& [operation, count] : faulty->calls()) sum += count;
    EXPECT_EQ(sum, faulty->total_calls());
  });
}

TEST_P(FaultyDdp, ALostRankIsTheReasonThatAllRanksGet) {
  std::atomic<int> told{0};
  try {
    run_ranks(GetParam(), 3, [&](int rank, auto group) {
      const auto faulty = wrap(group);
      Mlp net;
      DistributedDataParallel ddp(net, options_for(GetParam(), faulty));
      ddp(random_tensor({4, kWidth}, rank)).sum().backward();
      if (rank == 2) faulty->lose_after(faulty->total_calls());
      const std::string error = error_of([&] {
        for (int step = 0; step < 3; ++step) ddp(random_tensor({4, kWidth}, rank)).sum().backward();
      });
      EXPECT_NE(error.find("rank 2 was lost on purpose"), std::string::npos) << "rank " << rank << ": " << error;
      if (!error.empty()) ++told;
      throw PeerError(error, {});
    });
  } catch (const PeerError&) {
  }
  EXPECT_EQ(told.load(), 3);
}

TEST_P(FaultyDdp, AFaultIsWhatTheCallThrowsAndTheOtherRanksLearnOfIt) {
  std::atomic<int> told{0};
  try {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      const auto faulty = wrap(group);
      Mlp net;
      DistributedDataParallel ddp(net, options_for(GetParam(), faulty));
      if (rank == 1) {
        faulty->set_fault([](const std::string& operation, std::size_t) {
          if (operation == "all_reduce") throw ResourceError("the network card is on fire");
        });
      }
      const std::string error = error_of([&] { ddp(random_tensor({4, kWidth}, rank)).sum().backward(); });
      EXPECT_NE(error.find("on fire"), std::string::npos) << "rank " << rank << ": " << error;
      if (!error.empty()) ++told;
      throw PeerError(error, {});
    });
  } catch (const PeerError&) {
  }
  EXPECT_EQ(told.load(), 2);
}

INSTANTIATE_TEST_SUITE_P(Setups, FaultyDdp, ::testing::ValuesIn(all_setups()), name_of_setup);

TEST(FaultInjectingGroup, PassesEveryOperationOnAndCountsIt) {
  run_ranks({"threads"}, 2, [](int rank, auto group) {
    const auto held = std::make_shared<FaultInjectingGroup>(group);  // groups live in shared pointers
    FaultInjectingGroup& faulty = *held;
    const int other = 1 - rank;
    const at::Tensor x = at::full({2}, rank + 1.0), y = at::zeros({2}), both = at::zeros({4});
    faulty.all_reduce({x})->wait();
    EXPECT_TRUE(at::equal(x, at::full({2}, 3.0)));
    faulty.broadcast({x})->wait();
    faulty.reduce({x})->wait();
    faulty.all_gather({{y, at::zeros({2})}}, {x})->wait();
    faulty.all_gather_into_tensor(both, x)->wait();
    faulty.gather(rank == 0 ? std::vector<Tensors>{{y, at::zeros({2})}} : std::vector<Tensors>{}, {x})->wait();
    faulty.scatter({y}, rank == 0 ? std::vector<Tensors>{{x, x}} : std::vector<Tensors>{})->wait();
    faulty.reduce_scatter({y}, {{x, x}})->wait();
    faulty.reduce_scatter_tensor(y, both)->wait();
    faulty.all_to_all({y, at::zeros({2})}, {x, x})->wait();
    faulty.all_to_all_single(both, at::zeros({4}))->wait();
    faulty.barrier()->wait();
    faulty.monitored_barrier(std::chrono::seconds(30));
    const auto sent = faulty.send({x}, other, 1);
    faulty.recv({y}, other, 1)->wait();
    sent->wait();
    const auto again = faulty.send({x}, other, 2);
    faulty.recv_anysource({y}, 2)->wait();
    again->wait();
    const auto duplicate = faulty.dup();
    duplicate->all_reduce({y})->wait();
    const auto part = faulty.split(0, -rank);
    EXPECT_EQ(part->rank(), other);
    EXPECT_EQ(faulty.allocate(3, at::kFloat).numel(), 3);
    const std::map<std::string, std::size_t> wanted{{"all_gather", 1},
                                                    {"all_gather_into_tensor", 1},
                                                    {"all_reduce", 2},
                                                    {"all_to_all", 1},
                                                    {"all_to_all_single", 1},
                                                    {"allocate", 1},
                                                    {"barrier", 1},
                                                    {"broadcast", 1},
                                                    {"dup", 1},
                                                    {"gather", 1},
                                                    {"monitored_barrier", 1},
                                                    {"recv", 1},
                                                    {"recv_anysource", 1},
                                                    {"reduce", 1},
                                                    {"reduce_scatter", 1},
                                                    {"reduce_scatter_tensor", 1},
                                                    {"scatter", 1},
                                                    {"send", 2},
                                                    {"split", 1}};
    EXPECT_EQ(faulty.calls(), wanted);
  });
}

TEST(FaultInjectingGroup, RefusesToWrapNothing) { EXPECT_THROW(FaultInjectingGroup(nullptr), InvalidArgument); }

}  // namespace
}  // namespace gradwire::testing::fault_injecting_group_test
