// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Uneven inputs: what the ranks hold is what an oracle that sees every batch says.
#include "gradwire/ddp/join.h"

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/ddp/joinable_step.h"

namespace gradwire::testing::join_test {
namespace {

constexpr int kWidth = 5;
constexpr double kRate = 0.1;
const auto kDouble = at::kDouble;

// A body that all use; heads that some ranks use in some steps, and one that nobody ever does.
struct HeadsImpl : torch::nn::Module {
  HeadsImpl() {
    body = register_module("body", torch::nn::Linear(kWidth, kWidth));
    for (int i = 0; i < 2; ++i) heads.push_back(register_module(concat("head", i), torch::nn::Linear(kWidth, kWidth)));
    spare = register_parameter("spare", at::zeros({3}));
    fill(*this, 3);
    to(kDouble);
  }
  at::Tensor forward(const at::Tensor& x, const std::vector<int>& used, bool all) {
    at::Tensor h = torch::tanh(body(x));
    at::Tensor loss = h.square().sum();
    for (const int i : used) loss = loss + torch::tanh(heads[static_cast<std::size_t>(i)](h)).square().sum() * (i + 1);
    return all ? loss + spare.sum() : loss;
  }
  torch::nn::Linear body{nullptr};
  std::vector<torch::nn::Linear> heads;
  at::Tensor spare;
};
TORCH_MODULE(Heads);

struct Graph {
  std::string name;
  bool searched = false, fixed = false;
  // The heads that `rank` uses in `step`.
  std::vector<int> used(int rank, int step) const {
    if (searched) return step % 2 == 0 ? std::vector<int>{rank % 2} : std::vector<int>{0};
    if (fixed) return rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{0};
    return {0, 1};
  }
  bool all() const { return !searched && !fixed; }
};

at::Tensor input_of(int rank, int step) { return random_tensor({3, kWidth}, 100 * (rank + 1) + step).to(kDouble); }

using Epochs = std::vector<std::vector<int>>;  // number of batches, by epoch and rank

// The parameters that all ranks must end with.
std::vector<at::Tensor> oracle(const Graph& graph, const Epochs& epochs, bool by_initial_size) {
  Heads net;
  int step = 0;
  for (const auto& batches : epochs) {
    const int steps = *std::max_element(batches.begin(), batches.end());
    for (int k = 0; k < steps; ++k, ++step) {
      std::vector<int> active;
      for (std::size_t rank = 0; rank < batches.size(); ++rank)
        if (batches[rank] > k) active.push_back(static_cast<int>(rank));
      net->zero_grad();
      const double divisor = static_cast<double>(by_initial_size ? batches.size() : active.size());
      for (const int rank : active)
        (net->forward(input_of(rank, step), graph.used(rank, step), graph.all()) / divisor).backward();
      torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters())
        if (parameter.grad().defined()) parameter.sub_(parameter.grad(), kRate);
    }
  }
  return net->parameters();
}

class DdpJoin : public ::testing::TestWithParam<Setup> {
 protected:
  static DdpOptions options(const std::shared_ptr<ProcessGroup>& group, const Graph& graph = {}) {
    DdpOptions made = options_for(GetParam(), group);
    made.bucket_cap_mb = 0.0001;
    made.find_unused_parameters = graph.searched;
    made.static_graph = graph.fixed;
    return made;
  }

  static void train(const Graph& graph, const Epochs& epochs, bool by_initial_size,
                    const std::vector<std::string>& delayed = {}) {
    SCOPED_TRACE(concat(graph.name, by_initial_size ? ", divided by all" : ", divided by those left"));
    const int world = static_cast<int>(epochs.front().size());
    const auto expected = oracle(graph, epochs, by_initial_size);
    std::vector<std::vector<at::Tensor>> ends(static_cast<std::size_t>(world));
    run_ranks(GetParam(), world, [&](int rank, auto group) {
      Heads net;
      DdpOptions made = options(group, graph);
      made.delay_all_reduce_named_params = delayed;
      if (!delayed.empty()) made.param_to_hook_all_reduce = "body.bias";
      DistributedDataParallel ddp(net, made);
      torch::optim::SGD optimizer(ddp.parameters(), kRate);
      int first = 0;
      for (const auto& batches : epochs) {
        Join join = ddp.join({.divide_by_initial_world_size = by_initial_size});
        for (int k = 0; k < batches[static_cast<std::size_t>(rank)]; ++k) {
          optimizer.zero_grad();
          ddp(input_of(rank, first + k), graph.used(rank, first + k), graph.all()).backward();
          optimizer.step();
        }
        join.finish();
        first += *std::max_element(batches.begin(), batches.end());
      }
      ends[static_cast<std::size_t>(rank)] = net->parameters();
    });
    for (std::size_t rank = 0; rank < ends.size(); ++rank) {
      SCOPED_TRACE(concat("rank ", rank));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::allclose(ends[rank][i], expected[i], 0, 1e-12)) << "parameter " << i;
        EXPECT_TRUE(at::equal(ends[rank][i], ends[0][i])) << "parameter " << i;
      }
    }
  }
};

// Over groups that can be duplicated. A Join refuses delayed gradients over others, and tells nobody there of a rank
// that leaves.
class DdpJoinOverDuplicates : public DdpJoin {};
std::vector<Setup> setups_with_duplicates() {
  std::vector<Setup> setups = all_setups();
  std::erase_if(setups, [](const Setup& setup) { return setup.group == "local"; });
  return setups;
}

// Several contexts one after another: who has nothing at first, who comes back, the rebuild of the buckets on a rank
// that never saw a gradient.
TEST_P(DdpJoin, EndsWithTheModelOfTheOracle) {
  for (const Graph& graph : {Graph{"every parameter"}, Graph{"searched", true}, Graph{"fixed", false, true}}) {
    for (const bool by_initial_size : {true, false}) {
      train(graph, {{2, 4, 1}, {3, 0, 2}}, by_initial_size);
      train(graph, {{0, 1, 2}, {2, 2, 2}, {1, 3, 0}}, by_initial_size);
    }
    train(graph, {{2, 1}}, false);
    train(graph, {{1, 0}, {0, 1}, {2, 2}}, true);
    train(graph, {{2}}, true);
  }
}

// The delayed gradients are waited for at the end of a pass, where a fixed graph's first pass launches its buckets, and
// gradients that no rank used go from rank to rank.
TEST_P(DdpJoinOverDuplicates, ARankThatHasJoinedTakesPartInTheReductionOfDelayedGradients) {
  for (const Graph& graph : {Graph{"every parameter"}, Graph{"searched", true}, Graph{"fixed", false, true}}) {
    train(graph, {{0, 1, 2}, {2, 4, 1}, {3, 0, 2}}, true, {"head0.weight", "head1.bias"});
    train(graph, {{1, 0}, {0, 3}, {2, 2}}, false, {"head0.weight", "head0.bias", "body.bias"});
  }
}

// A rank that has joined holds the averages in .grad, so that a sharded optimizer can go on there.
TEST_P(DdpJoin, AJoinedRankGetsTheAveragesToo) {
  std::vector<std::vector<at::Tensor>> gradients(2);
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Heads net;
    DistributedDataParallel ddp(net, options(group));
    ddp(input_of(rank, 0), std::vector<int>{0, 1}, true).backward();
    const at::Tensor kept = net->body->weight.grad();
    const at::Tensor value = kept.clone();
    {
      Join join = ddp.join();
      if (rank == 1) {
        ddp.zero_grad();
        ddp(input_of(rank, 1), std::vector<int>{0, 1}, true).backward();
      }
    }
    gradients[static_cast<std::size_t>(rank)] = gradients_of(*net);
    if (!GetParam().view) {
      EXPECT_TRUE(at::equal(kept, value));
    }
    EXPECT_TRUE(ddp.logging_data().join_uneven_inputs);
  });
  Heads alone;
  (alone->forward(input_of(1, 1), {0, 1}, true) / 2).backward();
  expect_close(gradients[0], gradients_of(*alone), 1e-12);
  for (std::size_t i = 0; i < gradients[0].size(); ++i) EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i]));
}

// Three passes: Adam's averages and counts on a rank that joins early are those of the other ranks, also where the
// gradients are clipped first. Without the JoinableStep, the ranks differ from the second pass on.
TEST_P(DdpJoin, AStepOnAJoinedRankKeepsTheStateOfItsOptimizerUpToDate) {
  const Epochs epochs{{1, 3, 2}, {2, 1, 0}, {3, 3, 1}};
  const auto clip_and_step = [](Heads& net, torch::optim::Adam& optimizer) {
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
  };
  Heads alone;
  torch::optim::Adam serial(alone->parameters(), torch::optim::AdamOptions(0.01));
  int number = 0;
  for (const auto& batches : epochs) {
    for (int k = 0; k < *std::max_element(batches.begin(), batches.end()); ++k, ++number) {
      serial.zero_grad();
      for (int rank = 0; rank < 3; ++rank) {
        if (batches[static_cast<std::size_t>(rank)] > k)
          (alone->forward(input_of(rank, number), {0, 1}, true) / 3).backward();
      }
      clip_and_step(alone, serial);
    }
  }
  for (const bool steps_when_joined : {true, false}) {
    std::vector<std::vector<at::Tensor>> ends(3);
    run_ranks(GetParam(), 3, [&](int rank, auto group) {
      Heads net;
      DistributedDataParallel ddp(net, options(group));
      torch::optim::Adam optimizer(ddp.parameters(), torch::optim::AdamOptions(0.01));
      JoinableStep joinable(ddp, [&] { clip_and_step(net, optimizer); });
      int first = 0;
      for (const auto& batches : epochs) {
        Join join = steps_when_joined ? Join({ddp, joinable}) : ddp.join();
        for (int k = 0; k < batches[static_cast<std::size_t>(rank)]; ++k) {
          optimizer.zero_grad();
          ddp(input_of(rank, first + k), std::vector<int>{0, 1}, true).backward();
          clip_and_step(net, optimizer);
        }
        join.finish();
        first += *std::max_element(batches.begin(), batches.end());
      }
      ends[static_cast<std::size_t>(rank)] = net->parameters();
    });
    if (steps_when_joined) {
      for (const auto& end : ends) expect_close(end, alone->parameters(), 1e-9);
      for (std::size_t i = 0; i < ends[0].size(); ++i)
        EXPECT_TRUE(at::equal(ends[2][i], ends[0][i])) << "parameter " << i;
    } else {
      EXPECT_FALSE(at::allclose(ends[0][1], alone->parameters()[1], 0, 1e-6)) << "the case proves nothing";
    }
  }
}

TEST(JoinableStepTest, AnEmptyFunctionIsRefused) {
  run_ranks({"threads"}, 1, [](int, auto group) {
    DdpOptions options;
    options.process_group = group;
    DistributedDataParallel ddp(Heads(), options);
    EXPECT_THROW(JoinableStep(ddp, nullptr), InvalidArgument);
  });
}

// Averages that a rank got while it shadowed are not its own: what it accumulates afterwards goes on from what it had
// when it joined.
TEST_P(DdpJoin, TheNextEpochDoesNotAddToTheAveragesOfTheLast) {
  for (const std::string zeroes : {"before", "in place", "after"}) {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      SCOPED_TRACE(concat("zeroes ", zeroes, ", rank ", rank));
      Heads net;
      DistributedDataParallel ddp(net, options(group));
      std::vector<at::Tensor> seen;
      for (int epoch = 0; epoch < 2; ++epoch) {
        Join join = ddp.join();
        for (int step = 0; step < 1 + rank; ++step) {
          const int number = 10 * epoch + step;
          if (zeroes == "before") ddp.zero_grad();
          if (zeroes == "in place") ddp.zero_grad(/*set_to_none=*/false);
          ddp(input_of(rank, number), std::vector<int>{0, 1}, true).backward();
          if (epoch == 1 && step == 0) seen = gradients_of(*net);
          if (zeroes == "after") ddp.zero_grad();
        }
        join.finish();
      }
      Heads alone;
      for (int other = 0; other < 2; ++other) (alone->forward(input_of(other, 10), {0, 1}, true) / 2).backward();
      expect_close(seen, gradients_of(*alone), 1e-12);
    });
  }
}

// What nobody uses stays untouched on a rank that has joined too.
TEST_P(DdpJoin, GradientsOfWhatNobodyUsesAreKeptOnAJoinedRank) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Heads net;
    DistributedDataParallel ddp(net, options(group, {"searched", true}));
    net->spare.mutable_grad() = at::full({3}, 7.0 + rank, kDouble);
    {
      Join join = ddp.join();
      for (int step = 0; step < 2 * rank; ++step) ddp(input_of(rank, step), std::vector<int>{0}, false).backward();
    }
    EXPECT_TRUE(at::equal(net->spare.grad(), at::full({3}, 7.0 + rank, kDouble)));
    EXPECT_FALSE(net->heads[1]->weight.grad().defined());
    EXPECT_TRUE(net->heads[0]->weight.grad().defined());
  });
}

// In a Join after DDP: what a sharded optimizer there finds in .grad of a parameter, in each iteration.
class Seeing final : public Joinable {
 public:
  Seeing(std::shared_ptr<ProcessGroup> group, at::Tensor parameter)
      : group_(std::move(group)), parameter_(std::move(parameter)) {}
  void see() { seen.push_back(parameter_.grad().defined() ? parameter_.grad().clone() : at::Tensor()); }
  std::unique_ptr<JoinHook> join_hook(const JoinOptions&) override { return std::make_unique<Hook>(*this); }
  c10::Device join_device() const override { return c10::kCPU; }
  std::shared_ptr<ProcessGroup> join_process_group() const override { return group_; }

  std::vector<at::Tensor> seen;

 private:
  struct Hook final : JoinHook {
    explicit Hook(Seeing& of) : owner(of) {}
    void main_hook(const JoinRound&) override { owner.see(); }
    Seeing& owner;
  };
  const std::shared_ptr<ProcessGroup> group_;
  const at::Tensor parameter_;
};

// A joined rank does not zero gradients: without the other ranks it would find the average of an earlier iteration, or
// its own last gradient.
TEST_P(DdpJoin, AJoinedRankHasTheGradientsOfWhatNobodyUsesFromTheOthers) {
  for (const auto& [set_to_none, low] : {std::pair(true, false), {false, false}, {true, true}, {false, true}}) {
    SCOPED_TRACE(concat(set_to_none ? "removed" : "zeroed", low ? ", mixed precision" : ""));
    std::vector<std::vector<at::Tensor>> seen(2);
    run_ranks(GetParam(), 2, [&, set_to_none = set_to_none, low = low](int rank, auto group) {
      Heads net;
      DdpOptions made = options(group, {"searched", true});
      if (low) made.mixed_precision = MixedPrecision{.param_dtype = at::kFloat};
      DistributedDataParallel ddp(net, made);
      Seeing seeing(group, net->heads[1]->weight);
      Join join({ddp, seeing});
      const std::vector<std::vector<int>> used{{0, 1}, {0}, {0, 1}, {0}, {0}};
      for (int step = 0; step < (rank == 0 ? 1 : 5); ++step) {
        ddp.zero_grad(set_to_none);
        ddp(input_of(rank, step), used[static_cast<std::size_t>(step)], false).backward();
        seeing.see();
      }
      const at::Tensor own = rank == 0 ? net->heads[1]->weight.grad().clone() : at::Tensor();
      join.finish();
      if (rank == 0) {
        EXPECT_TRUE(at::equal(net->heads[1]->weight.grad(), own));
      }
      seen[static_cast<std::size_t>(rank)] = seeing.seen;
    });
    ASSERT_EQ(seen[0].size(), seen[1].size());
    for (std::size_t step = 0; step < seen[0].size(); ++step) {
      ASSERT_EQ(seen[0][step].defined(), seen[1][step].defined()) << "step " << step;
      if (!seen[0][step].defined()) continue;
      EXPECT_TRUE(at::equal(seen[0][step], seen[1][step])) << "step " << step;
    }
  }
}

struct CounterImpl : torch::nn::Module {
  CounterImpl() {
    weight = register_parameter("weight", at::ones({2}));
    count = register_buffer("count", at::zeros({1}));
  }
  at::Tensor forward(double add) {
    seen.push_back(count.item<double>());
    count.add_(add);
    return weight.sum();
  }
  at::Tensor weight, count;
  std::vector<double> seen;
};
TORCH_MODULE(Counter);

TEST_P(DdpJoin, BuffersComeFromTheHighestRankThatHasNotJoined) {
  constexpr std::array<int, 3> kBatches{2, 4, 1};
  run_ranks(GetParam(), 3, [&](int rank, auto group) {
    Counter net;
    DistributedDataParallel ddp(net, options(group));
    {
      Join join = ddp.join();
      for (int k = 0; k < kBatches[static_cast<std::size_t>(rank)]; ++k) ddp(rank + 1.0).backward();
    }
    // Step 0 begins with 0; rank 2 adds 3 and joins. Then rank 1, the highest left, has 0 + 2, and adds 2 a step.
    const std::vector<double> expected{0, 2, 4, 6};
    for (std::size_t k = 0; k < net->seen.size(); ++k) EXPECT_EQ(net->seen[k], expected[k]) << "step " << k;
    EXPECT_EQ(net->count.item<double>(), 8) << "the last joiner's";
  });
}

// A forward without gradients, for a metric, changes nothing on the ranks that have joined.
TEST_P(DdpJoin, RanksAgreeAboutBuffersAfterAJoinThatEndsWithAForwardWithoutGradients) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Counter net;
    DistributedDataParallel ddp(net, options(group));
    for (int epoch = 0; epoch < 2; ++epoch) {
      {
        Join join = ddp.join();
        for (int k = 0; k <= rank; ++k) {
          ddp(1.0).backward();
          const torch::NoGradGuard no_grad;
          ddp(1.0);
        }
      }
      ddp(1.0).backward();
    }
    at::Tensor counts = net->count.clone();
    group->all_reduce({counts})->wait();
    EXPECT_EQ(counts.item<double>(), 2 * net->count.item<double>()) << "the ranks' buffers differ";
  });
}

TEST_P(DdpJoin, LocalForwardsCountAndAreNotReduced) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Heads net;
    DistributedDataParallel ddp(net, options(group));
    {
      Join join = ddp.join({.divide_by_initial_world_size = false});
      if (rank == 0) {
        {
          const auto local = ddp.no_sync();
          ddp(input_of(0, 0), std::vector<int>{0, 1}, true).backward();
        }
        ddp(input_of(0, 1), std::vector<int>{0, 1}, true).backward();
        const torch::NoGradGuard no_grad;
        (void)ddp(input_of(0, 2), std::vector<int>{0, 1}, true);
      }
    }
    Heads alone;
    for (const int step : {0, 1}) alone->forward(input_of(0, step), {0, 1}, true).backward();
    expect_close(gradients_of(*net), gradients_of(*alone), 1e-12);
    EXPECT_EQ(ddp.core().iterations(), 1U);
  });
}

TEST_P(DdpJoin, EarlyTerminationReachesAllRanksAndLeavesThemUsable) {
  run_ranks(GetParam(), 3, [&](int rank, auto group) {
    Heads net;
    DistributedDataParallel ddp(net, options(group));
    const auto step = [&](int k) { ddp(input_of(rank, k), std::vector<int>{0, 1}, true).backward(); };
    int steps = 0;
    EXPECT_THROW(
        {
          Join join({ddp}, {.throw_on_early_termination = true});
          for (; steps < 2 + rank; ++steps) step(steps);
        },
        EarlyTermination);
    EXPECT_EQ(steps, 2);
    ddp.zero_grad();
    step(5);
    Heads alone;
    for (int other = 0; other < 3; ++other) (alone->forward(input_of(other, 5), {0, 1}, true) / 3).backward();
    expect_close(gradients_of(*net), gradients_of(*alone), 1e-12);
  });
}

TEST_P(DdpJoin, RanksThatDisagreeAboutAForwardAreTold) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Heads net;
    DistributedDataParallel ddp(net, options(group));
    const std::string error = error_of([&] {
      Join join = ddp.join();
      ddp.core().set_sync(rank == 0);
      ddp(input_of(rank, 0), std::vector<int>{0}, true);
    });
    EXPECT_NE(error.find("rank 0 ran a synchronized forward"), std::string::npos) << error;
  });
}

// The others have begun to shadow the iteration, and wait for its gradients.
TEST_P(DdpJoinOverDuplicates, ARankThatLeavesBetweenForwardAndBackwardTellsTheOthers) {
  for (const bool by_exception : {true, false}) {
    run_ranks(GetParam(), 3, [&](int rank, auto group) {
      Heads net;
      DistributedDataParallel ddp(net, options(group));
      const std::string error = error_of([&] {
        Join join = ddp.join();
        for (int k = 0; k <= rank; ++k) {
          const at::Tensor loss = ddp(input_of(rank, k), std::vector<int>{0, 1}, true);
          if (k == 2 && by_exception) throw std::runtime_error("the data are gone");
          if (k == 2) return join.abandon("the data are gone");
          loss.backward();
        }
        join.finish();
      });
      group->barrier()->wait();  // until then rank 2 keeps its objects
      if (rank == 2) {
        EXPECT_EQ(error, by_exception ? "the data are gone" : "");
      } else {
        EXPECT_NE(error.find("rank 2 left a Join before the backward pass of its forward had ended"), std::string::npos)
            << error;
      }
      const std::string later = error_of([&] { ddp(input_of(rank, 3), std::vector<int>{0, 1}, true); });
      EXPECT_NE(later.find("rank 2 left a Join"), std::string::npos) << later;
    });
  }
}

// What a rank does in its second batch, while the other rank, which has joined, waits for the first model.
enum class Order { right, both_forwards_first, forward_twice, no_backward };

// Returns the errors of both ranks.
std::array<std::string, 2> errors_of_two_models(const Setup& setup, Order order) {
  std::array<std::string, 2> errors;
  run_ranks(setup, 2, [&](int rank, auto group) {
    Heads one, two;
    DistributedDataParallel first(one, options_for(setup, group));
    DistributedDataParallel second(two, options_for(setup, group));
    const auto forward = [&](auto& ddp, int step) { return ddp(input_of(rank, step), std::vector<int>{0, 1}, true); };
    errors[static_cast<std::size_t>(rank)] = error_of([&] {
      Join join({first, second});
      for (int step = 0; step <= rank; ++step) {
        const at::Tensor loss = forward(first, step);
        const bool wrong = step == 1;  // no rank waits before
        if (order == Order::right || !wrong) loss.backward();
        if (wrong && order == Order::forward_twice) forward(first, step);
        if (wrong && order == Order::no_backward) break;
        const at::Tensor other = forward(second, step);
        if (order == Order::both_forwards_first && wrong) loss.backward();
        other.backward();
      }
      join.finish();
    });
    if (errors[static_cast<std::size_t>(rank)].empty()) {
      EXPECT_EQ(first.core().iterations(), 2U);
      EXPECT_EQ(second.core().iterations(), 2U);
    }
    group->barrier()->wait();  // until then both keep their objects
  });
  return errors;
}

TEST_P(DdpJoinOverDuplicates, WhatARankThatHasJoinedWaitsForComesFirst) {
  EXPECT_EQ(errors_of_two_models(GetParam(), Order::right), (std::array<std::string, 2>{}));
  for (const auto& [order, what] : {std::pair(Order::both_forwards_first, "goes on"),
                                    {Order::forward_twice, "begins the next one"},
                                    {Order::no_backward, "called finish()"}}) {
    const auto [waiting, wrong] = errors_of_two_models(GetParam(), order);
    const std::string said = concat("rank 1 ", what, ", and joinable 0 of the 2 has not ended its part");
    EXPECT_NE(wrong.find(said), std::string::npos) << wrong;
    EXPECT_NE(waiting.find("rank 1 left a Join before the backward pass"), std::string::npos) << waiting;
    EXPECT_NE(waiting.find(said), std::string::npos) << waiting;
  }
}

// Where all ranks have inputs nobody waits: all drop the outputs of a forward, or of the last one.
TEST_P(DdpJoin, OutputsThatAllRanksDropAreNoError) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Heads net;
    DistributedDataParallel ddp(net, options(group));
    const auto forward = [&](int step) { return ddp(input_of(rank, step), std::vector<int>{0, 1}, true); };
    {
      Join join = ddp.join();
      forward(0);
      forward(1).backward();
      forward(2);
      join.finish();
    }
    ddp.zero_grad();
    forward(3).backward();
    Heads alone;
    for (int other = 0; other < 2; ++other) (alone->forward(input_of(other, 3), {0, 1}, true) / 2).backward();
    expect_close(gradients_of(*net), gradients_of(*alone), 1e-12);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, DdpJoin, ::testing::ValuesIn(all_setups()), name_of_setup);
INSTANTIATE_TEST_SUITE_P(Groups, DdpJoinOverDuplicates, ::testing::ValuesIn(setups_with_duplicates()), name_of_setup);

// Sums one number over the ranks in each iteration.
class Summing final : public Joinable {
 public:
  Summing(std::shared_ptr<ProcessGroup> group, std::vector<std::string>& log, std::string name)
      : group_(std::move(group)), log_(log), name_(std::move(name)) {}

  double add(double mine) {
    const JoinRound* round = Join::notify(*this);
    log_.push_back(round == nullptr ? name_ + " alone" : concat(name_, " ", round->active));
    return sum(mine);
  }
  std::unique_ptr<JoinHook> join_hook(const JoinOptions&) override { return std::make_unique<Hook>(*this); }
  c10::Device join_device() const override { return c10::kCPU; }
  std::shared_ptr<ProcessGroup> join_process_group() const override { return group_; }

 private:
  struct Hook final : JoinHook {
    explicit Hook(Summing& of) : owner(of) {}
    void main_hook(const JoinRound& round) override {
      owner.sum(0);
      owner.log_.push_back(concat("shadow ", owner.name_, " ", round.active, " ", round.highest_active));
    }
    void post_hook(const JoinEnd& end) override {
      owner.log_.push_back(concat(owner.name_, end.is_last_joiner ? " last " : " end ", end.last_joiner));
    }
    Summing& owner;
  };
  double sum(double mine) const {
    const at::Tensor value = at::full({1}, mine, kDouble);
    group_->all_reduce({value})->wait();
    return value.item<double>();
  }
  const std::shared_ptr<ProcessGroup> group_;
  std::vector<std::string>& log_;
  const std::string name_;
};

// Changes a parameter at the end of each iteration, as hooks that step do.
class ChangingHook final : public CommHook {
 public:
  explicit ChangingHook(at::Tensor parameter) : parameter_(std::move(parameter)) {}
  Future run(GradBucket& bucket) override {
    return tensor_future(bucket.group().all_reduce({bucket.buffer().div_(bucket.divisor())}));
  }
  void end_iteration() override { parameter_.add_(1); }

 private:
  at::Tensor parameter_;
};

TEST(Join, HooksMayChangeParametersAtTheEndOfAnIterationAlsoWhereThisRankHasJoined) {
  run_ranks({"threads"}, 2, [&](int rank, auto group) {
    Mlp net(2, 3);
    DistributedDataParallel ddp(net, options_for({"threads"}, group));
    const at::Tensor parameter = net->parameters().front();
    const at::Tensor before = parameter.detach().clone();
    ddp.register_comm_hook(std::make_shared<ChangingHook>(parameter));
    Join join({ddp});
    for (int step = 0; step < 1 + rank; ++step) ddp(random_tensor({2, 3}, step)).sum().backward();
    join.finish();
    EXPECT_TRUE(parameter.detach().equal(before + 1 + 1)) << "two iterations, one of them without inputs";
  });
}

TEST(Join, RunsTheHooksOfAllJoinablesInOrder) {
  run_ranks({"threads"}, 2, [&](int rank, auto group) {
    std::vector<std::string> log;
    Summing first(group, log, "a");
    Summing second(group, log, "b");
    {
      Join join({first, second});
      EXPECT_EQ(first.add(1), 2);
      EXPECT_EQ(second.add(10), 20);
      if (rank == 1) {
        EXPECT_EQ(first.add(1), 1);
        EXPECT_EQ(second.add(10), 10);
      }
    }
    const std::vector<std::string> expected =
        rank == 0 ? std::vector<std::string>{"a 2", "b 2", "shadow a 1 1", "shadow b 1 1", "a end 1", "b end 1"}
                  : std::vector<std::string>{"a 2", "b 2", "a 1", "b 1", "a last 1", "b last 1"};
    EXPECT_EQ(log, expected);
    EXPECT_EQ(first.add(2), 4);
    EXPECT_EQ(log.back(), "a alone");
  });
}

TEST(Join, RefusesWhatItCannotDo) {
  run_ranks({"threads"}, 1, [&](int, auto group) {
    std::vector<std::string> log;
    Summing first(group, log, "a");
    Summing second(group, log, "b");
    Summing elsewhere(group->dup(), log, "c");
    EXPECT_THROW(Join({}), InvalidArgument);
    EXPECT_THROW(Join({first, elsewhere}), InvalidArgument);
    Join join({first, second});
    EXPECT_THROW(Join({second}), InvalidArgument);
    EXPECT_THROW(second.add(1), InvalidArgument) << "before the first";
    join.finish();
    join.finish();
    Join off({first}, {.enable = false});
    first.add(1);
    EXPECT_EQ(log.back(), "a alone");
  });
}

TEST(Join, ARankThatAbandonsTellsTheOthersWhy) {
  run_ranks({"threads"}, 2, [&](int rank, auto group) {
    std::vector<std::string> log;
    Summing summing(group, log, "a");
    Join join({summing});
    if (rank == 1) {
      join.abandon("the data are gone");
      join.abandon("a second time");
      return join.finish();
    }
    const std::string error = error_of([&] { join.finish(); });
    EXPECT_NE(error.find("rank 1 left a Join early: the data are gone"), std::string::npos) << error;
  });
}

TEST(Join, ARankThatLeavesWithAnExceptionTellsTheOthers) {
  const std::string error = error_of([] {
    run_ranks({"threads"}, 2, [&](int rank, auto group) {
      std::vector<std::string> log;
      Summing summing(group, log, "a");
      Join join({summing});
      if (rank == 1) throw std::runtime_error("the data are gone");
    });
  });
  EXPECT_NE(error.find("rank 1 left a Join early"), std::string::npos) << error;
}

}  // namespace
}  // namespace gradwire::testing::join_test
