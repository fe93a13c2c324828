// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The gossip averager against a serial program that plays all workers, and what gossip is for: workers that stay near
// each other.
#include "gradwire/optim/gossip.h"

#include <algorithm>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/optim/optim_test_support.h"
#include "gradwire/optim/post_local_sgd_optimizer.h"

namespace gradwire::testing::gossip_test {
namespace {

std::vector<at::Tensor> weights() {
  std::vector<at::Tensor> all{random_tensor({9, 7}, 1).t(), random_tensor({31}, 2),
                              random_tensor({11}, 4).to(at::kDouble)};
  for (at::Tensor& one : all) one.requires_grad_();
  return all;
}

// All workers in one thread, parameter by parameter.
class Reference {
 public:
  Reference(int world, GossipOptions options) : options_(std::move(options)) {
    for (int worker = 0; worker < world; ++worker) {
      own_.push_back(values_of(weights()));
      slow_.push_back(values_of(weights()));
      momentum_.emplace_back();
      for (const at::Tensor& one : weights()) momentum_.back().push_back(at::zeros_like(one.detach()));
    }
  }
  void step() {
    for (std::size_t worker = 0; worker < own_.size(); ++worker) move(own_[worker], static_cast<int>(worker), count_);
    ++count_;
    if (count_ % options_.inner_steps != 0) return;
    const auto round = static_cast<std::uint64_t>(count_ / options_.inner_steps - 1);
    const std::vector<int> partner = gossip_pairs(static_cast<int>(own_.size()), options_.seed, round);
    std::vector<std::vector<at::Tensor>> differences;
    for (std::size_t worker = 0; worker < own_.size(); ++worker) {
      differences.emplace_back();
      for (std::size_t i = 0; i < own_[worker].size(); ++i)
        differences[worker].push_back(slow_[worker][i] - own_[worker][i]);
    }
    const auto before = slow_;
    for (std::size_t worker = 0; worker < own_.size(); ++worker) {
      const auto other = static_cast<std::size_t>(partner[worker]);
      for (std::size_t i = 0; i < own_[worker].size(); ++i) {
        const auto mean = [&](const at::Tensor& mine, const at::Tensor& theirs) {
          return other == worker ? mine : (mine + theirs) / 2;
        };
        momentum_[worker][i] = momentum_[worker][i] * options_.momentum -
                               mean(differences[worker][i], differences[other][i]) * options_.lr -
                               (before[worker][i] - mean(before[worker][i], before[other][i])) * options_.gamma;
        slow_[worker][i] = before[worker][i] + momentum_[worker][i];
      }
      own_[worker] = values_of(slow_[worker]);
    }
  }
  const std::vector<at::Tensor>& own(int worker) const { return own_[static_cast<std::size_t>(worker)]; }
  const std::vector<at::Tensor>& slow(int worker) const { return slow_[static_cast<std::size_t>(worker)]; }

 private:
  const GossipOptions options_;
  std::int64_t count_ = 0;
  std::vector<std::vector<at::Tensor>> own_, slow_, momentum_;
};

TEST(GossipPairs, AreSymmetricAndLeaveOneRankAloneWhenTheNumberIsOdd) {
  for (const int size : {1, 2, 3, 4, 7, 16, 33}) {
    for (std::uint64_t round = 0; round < 20; ++round) {
      const std::vector<int> partner = gossip_pairs(size, 5, round);
      ASSERT_EQ(partner.size(), static_cast<std::size_t>(size));
      int alone = 0;
      for (int rank = 0; rank < size; ++rank) {
        const int other = partner[static_cast<std::size_t>(rank)];
        ASSERT_TRUE(other >= 0 && other < size);
        EXPECT_EQ(partner[static_cast<std::size_t>(other)], rank);
        alone += other == rank ? 1 : 0;
      }
      EXPECT_EQ(alone, size % 2);
    }
  }
  EXPECT_THROW(gossip_pairs(0, 1, 1), InvalidArgument);
}

// Each rank meets each other one about equally often, and sits out about equally often.
TEST(GossipPairs, AreDrawnEvenly) {
  constexpr int kSize = 5;
  constexpr int kRounds = 5000;
  std::vector<std::vector<int>> met(kSize, std::vector<int>(kSize));
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::vector<int> partner = gossip_pairs(kSize, 7, round);
    for (std::size_t rank = 0; rank < kSize; ++rank) ++met[rank][static_cast<std::size_t>(partner[rank])];
  }
  // Expected 1000 each, with a standard deviation of 28.
  for (const auto& row : met) {
    for (const int count : row) EXPECT_NEAR(count, kRounds / kSize, 150);
  }
  EXPECT_NE(gossip_pairs(16, 1, 0), gossip_pairs(16, 2, 0));
  EXPECT_NE(gossip_pairs(16, 1, 0), gossip_pairs(16, 1, 1));
}

TEST(Gossip, HasTheBitsOfTheSerialProgram) {
  for (const std::string backend : {"threads", "shm"}) {
    for (const int world : {1, 2, 3, 4}) {
      const GossipOptions schedule{.inner_steps = 3, .momentum = 0.5, .lr = 0.7, .gamma = 0.8, .seed = 11};
      Reference expected(world, schedule);
      std::vector<std::vector<std::vector<at::Tensor>>> own(20), slow(20);  // by step and worker
      for (std::size_t step = 0; step < own.size(); ++step) {
        expected.step();
        for (int worker = 0; worker < world; ++worker) {
          own[step].push_back(values_of(expected.own(worker)));
          slow[step].push_back(values_of(expected.slow(worker)));
        }
      }
      run_ranks({backend}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        GossipOptions options = schedule;
        options.process_group = group;
        const auto parameters = weights();
        if (rank != 0) move(parameters, rank, 77);  // all begin as rank 0 does
        GossipAverager gossip(parameters, options);
        for (std::size_t step = 0; step < own.size(); ++step) {
          move(parameters, rank, static_cast<std::int64_t>(step));
          gossip.average_parameters(parameters);
          const std::string where = concat(backend, ", rank ", rank, " of ", world, ", step ", step);
          expect_same_bits(values_of(parameters), own[step][static_cast<std::size_t>(rank)], where);
          expect_same_bits(values_of(gossip.slow_parameters()), slow[step][static_cast<std::size_t>(rank)], where);
        }
      });
    }
  }
}

// The largest distance of a worker's slow parameters from their mean over the workers.
double spread(ProcessGroup& group, const GossipAverager& gossip) {
  double largest = 0;
  for (const at::Tensor& slow : gossip.slow_parameters()) {
    at::Tensor mean = slow.to(at::kDouble) / group.size();
    group.all_reduce({mean})->wait();
    at::Tensor distance = (slow.to(at::kDouble) - mean).abs().max().reshape({1});
    AllReduceOptions options;
    options.op = ReduceOp::max();
    group.all_reduce({distance}, options)->wait();
    largest = std::max(largest, distance.item<double>());
  }
  return largest;
}

// Workers that have trained apart come together again, and with gamma = 0 they do not.
TEST(Gossip, WorkersComeNearEachOther) {
  for (const double gamma : {1.0, 0.6, 0.0}) {
    for (const int world : {4, 5}) {
      run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        const auto parameters = weights();
        GossipAverager gossip(parameters, {.process_group = group, .inner_steps = 1, .gamma = gamma});
        for (int step = 0; step < 5; ++step) {
          move(parameters, rank, step);
          gossip.average_parameters(parameters);
        }
        const double before = spread(*group, gossip);
        EXPECT_GT(before, 0.01);
        for (int step = 0; step < 60; ++step) gossip.average_parameters(parameters);  // nobody trains
        const double after = spread(*group, gossip);
        if (gamma > 0) {
          EXPECT_LT(after, before / 100) << "gamma " << gamma << ", " << world << " workers";
        } else {
          EXPECT_GT(after, before / 10);
        }
      });
    }
  }
}

TEST(Gossip, GoesOnFromItsStateAndRefusesAnother) {
  run_ranks({"threads"}, 3, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const GossipOptions options{.process_group = group, .inner_steps = 2, .seed = 3};
    const auto train = [&](GossipAverager& gossip, const std::vector<at::Tensor>& parameters, int first, int end) {
      for (int step = first; step < end; ++step) {
        move(parameters, rank, step);
        gossip.average_parameters(parameters);
      }
    };
    const auto parameters = weights();
    GossipAverager first(parameters, options);
    train(first, parameters, 0, 7);
    torch::serialize::OutputArchive out;
    first.save(out);
    std::ostringstream bytes;
    out.save_to(bytes);
    const auto at_7 = values_of(parameters);
    train(first, parameters, 7, 20);

    const auto load = [&](GossipAverager& gossip) {
      torch::serialize::InputArchive archive;
      archive.load_from(bytes.str().data(), bytes.str().size());
      gossip.load(archive);
    };
    const auto again = weights();
    GossipAverager second(again, options);
    train(second, again, 0, 3);
    load(second);
    EXPECT_EQ(second.step(), 7);
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < again.size(); ++i) again[i].detach().copy_(at_7[i]);
    }
    train(second, again, 7, 20);
    expect_same_bits(values_of(again), values_of(parameters), concat("rank ", rank));

    GossipAverager other(weights(), {.process_group = group, .inner_steps = 3, .seed = 3});
    EXPECT_NE(error_of([&] { load(other); }).find("inner_steps = 2"), std::string::npos);
    GossipAverager close(weights(), {.process_group = group, .inner_steps = 2, .lr = 0.7000001, .seed = 3});
    EXPECT_NE(error_of([&] { load(close); }).find("lr = 0.7000001"), std::string::npos);
  });
}

TEST(GossipErrors, WhatCannotWorkIsRefused) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto refusal = [&](std::vector<at::Tensor> parameters, GossipOptions options) {
      options.process_group = group;
      return error_of([&] { GossipAverager gossip(std::move(parameters), options); });
    };
    const auto expect_in = [](const std::string& error, const std::string& part) {
      EXPECT_NE(error.find(part), std::string::npos) << error;
    };
    expect_in(refusal({}, {}), "no parameters");
    expect_in(refusal({at::ones({2}, at::kLong)}, {}), "floating-point");
    expect_in(refusal(weights(), {.inner_steps = 0}), "inner_steps is 0");
    expect_in(refusal(weights(), {.momentum = 1}), "momentum is 1");
    expect_in(refusal(weights(), {.lr = 0}), "lr is 0");
    expect_in(refusal(weights(), {.gamma = 2}), "gamma is 2");
    expect_in(refusal(weights(), {.seed = static_cast<std::uint64_t>(rank)}), "seed of rank 0: 0, of rank 1: 1");
    GossipAverager gossip(weights(), {.process_group = group});
    expect_in(error_of([&] { gossip.average_parameters(weights()); }), "others at step 0");
    expect_in(error_of([&] { gossip.set_step(-1); }), "the step is -1");
  });
}

// A rank whose inner optimizer fails does not leave the other rank of its pair waiting.
TEST(GossipErrors, AFailureIsQuotedOnTheOtherRank) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = weights();
    PostLocalSGDOptimizer optimizer(
        std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1)),
        std::make_shared<GossipAverager>(parameters, GossipOptions{.process_group = group, .inner_steps = 1}));
    const std::string error = error_of([&] {
      optimizer.step([&]() -> at::Tensor {
        if (rank == 1) throw std::runtime_error("out of luck");
        return at::zeros({1});
      });
    });
    EXPECT_NE(error.find("out of luck"), std::string::npos) << error;
    error_of([&] { group->barrier()->wait(); });  // kept until both ranks have failed
  });
}

// As when a job was killed while its ranks saved, one after the other.
TEST(GossipErrors, RanksAtDifferentStepsAreFound) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = weights();
    GossipAverager gossip(parameters, {.process_group = group, .inner_steps = 2});
    gossip.set_step(rank == 0 ? 1 : 3);
    const auto before = values_of(parameters);
    const std::string error = error_of([&] { gossip.average_parameters(parameters); });
    EXPECT_TRUE(error.find("rank 0 exchanges at step 1 and rank 1 at step 3") != std::string::npos ||
                error.find("rank 1 exchanges at step 3 and rank 0 at step 1") != std::string::npos)
        << error;
    expect_same_bits(values_of(parameters), before, "nothing was averaged");
    error_of([&] { group->barrier()->wait(); });  // kept until both ranks have failed
  });
}

// Also those that draw other pairs, of which most have a partner at their own step, and one has none. The group's
// timeout is far longer than the test may take.
TEST(GossipErrors, ARankAtAnotherStepIsFoundByAllAtTheFirstExchange) {
  run_ranks({"threads"}, 4, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = weights();
    GossipAverager gossip(parameters, {.process_group = group, .inner_steps = 1});
    if (rank == 2) gossip.set_step(5);
    const std::string error = error_of([&] { gossip.average_parameters(parameters); });
    EXPECT_NE(error.find("rank 0 exchanges at step 0 and rank 2 at step 5"), std::string::npos) << error;
    error_of([&] { group->barrier()->wait(); });  // kept until all ranks have failed
  });
}

TEST(GossipErrors, ARankThatGoesToAnotherStepLaterIsFoundByItsPartner) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = weights();
    GossipAverager gossip(parameters, {.process_group = group, .inner_steps = 1});
    gossip.average_parameters(parameters);
    if (rank == 1) gossip.set_step(5);
    const std::string error = error_of([&] { gossip.average_parameters(parameters); });
    EXPECT_NE(error.find("at step 5"), std::string::npos) << error;
    error_of([&] { group->barrier()->wait(); });  // kept until both ranks have failed
  });
}

// Nor does a rank that fails in the midst of an exchange.
TEST(GossipErrors, AFailureInAnExchangeIsQuotedOnTheOtherRank) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = weights();
    GossipAverager gossip(parameters, {.process_group = group, .inner_steps = 1});
    if (rank == 1) parameters[1].set_data(at::zeros({32}));  // a mistake of this rank's program
    const std::string error = error_of([&] { gossip.average_parameters(parameters); });
    EXPECT_NE(error.find("must match the size"), std::string::npos) << error;
    error_of([&] { group->barrier()->wait(); });  // kept until both ranks have failed
  });
}

}  // namespace
}  // namespace gradwire::testing::gossip_test
