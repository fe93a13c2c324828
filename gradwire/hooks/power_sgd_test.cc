// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// PowerSGD bucket by bucket: its numbers, its memory, odd input. power_sgd_ddp_test.cc has it under DDP.
#include "gradwire/hooks/power_sgd.h"

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/power_sgd_internal.h"
#include "gradwire/hooks/power_sgd_test_support.h"

namespace gradwire::testing::power_sgd_test::buckets {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Case {
  std::int64_t rank;
  bool error_feedback;
  bool warm;
};

class PowerSgdNumbers : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, PowerSgdNumbers,
                         ::testing::Values(Case{1, true, true}, Case{2, true, true}, Case{4, true, true},
                                           Case{4, false, true}, Case{4, true, false}, Case{3, false, false}),
                         [](const auto& instance) {
                           return concat("rank", instance.param.rank, instance.param.error_feedback ? "_error" : "",
                                         instance.param.warm ? "_warm" : "");
                         });

TEST_P(PowerSgdNumbers, AreThoseOfThePlainAlgorithm) {
  auto options = options_of(GetParam().rank);
  options.use_error_feedback = GetParam().error_feedback;
  options.warm_start = GetParam().warm;
  for (const int world : {1, 2, 3, 4}) {
    const auto gradients = [](int rank, int step) { return mixed_gradients(1000 * step + 10 * rank); };
    PlainPowerSGD plain(world, options);
    std::vector<std::vector<at::Tensor>> expected;
    constexpr int kSteps = 14;
    internal::NumpyDraws draws(0);
    for (int step = 2; step < kSteps; ++step) {
      std::vector<std::vector<at::Tensor>> of_ranks(static_cast<std::size_t>(world));
      for (int rank = 0; rank < world; ++rank)
        for (auto& named : gradients(rank, step)) of_ranks[static_cast<std::size_t>(rank)].push_back(named.gradient);
      const bool cold = step == 2 || !options.warm_start;
      expected.push_back(plain.step(of_ranks, cold ? draws.next() : 0));
    }
    run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const auto hook = make_power_sgd_hook(options);
      for (int step = 0; step < kSteps; ++step) {
        const auto got = run_hook(*hook, *group, gradients(rank, step), static_cast<std::uint32_t>(step));
        if (step < 2) continue;
        for (std::size_t i = 0; i < got.size(); ++i) {
          const at::Tensor reference = expected[static_cast<std::size_t>(step - 2)][i].view(got[i].sizes());
          EXPECT_TRUE(at::allclose(got[i].to(at::kDouble), reference, 0, 1e-4))
              << "world " << world << ", step " << step << ", gradient " << i << " off by "
              << (got[i] - reference).abs().max().item<double>();
        }
      }
    });
  }
}

TEST(PowerSgd, IsExactWhenTheRankSuffices) {
  EchoGroup group(3);
  for (const std::int64_t true_rank : {1, 2, 5}) {
    // Without error feedback: a new subspace in each step makes it amplify the rounding of the step before.
    PowerSGDOptions options = options_of(5);
    options.use_error_feedback = false;
    const auto hook = make_power_sgd_hook(options);
    for (int step = 0; step < 6; ++step) {
      const at::Tensor gradient =
          random_tensor({40, true_rank}, step).matmul(random_tensor({true_rank, 30}, step + 50));
      const auto got = run_hook(*hook, group, {{"w", gradient}}, static_cast<std::uint32_t>(step));
      EXPECT_TRUE(at::allclose(got[0], gradient, 1e-3, 1e-4))
          << "rank " << true_rank << ", step " << step << ", off by " << (got[0] - gradient).abs().max();
    }
  }
}

// Of float32, as the header says; of float64 in float64.
TEST(PowerSgd, TypesAreComputedInWideEnoughOnes) {
  EchoGroup group(2);
  for (const auto type : {at::kHalf, at::kBFloat16, at::kDouble}) {
    const auto hook = make_power_sgd_hook(options_of(3));
    const auto plain = std::make_shared<PowerSGDState>(options_of(3));
    const at::Tensor gradient =
        random_tensor({30, 2}, 1).to(at::kDouble).matmul(random_tensor({2, 40}, 2).to(at::kDouble));
    const Gradients gradients{{"w", gradient.to(type)}, {"b", random_tensor({5}, 3).to(type)}};
    skip_start(hook, group, gradients);
    const auto got = run_hook(*hook, group, gradients, 2);
    EXPECT_EQ(got[0].scalar_type(), type);
    const double tolerance = type == at::kDouble ? 1e-12 : type == at::kHalf ? 1e-3 : 8e-3;
    EXPECT_TRUE(at::allclose(got[0].to(at::kDouble), gradients[0].gradient.to(at::kDouble), 0, tolerance));
    EXPECT_TRUE(got[1].equal(gradients[1].gradient));
  }
}

// What rounding to half loses is given back in time: the mean of many results is closer than half's own rounding.
TEST(PowerSgd, RoundingToHalfGoesIntoTheError) {
  EchoGroup group;
  const auto hook = make_power_sgd_hook(options_of(1));
  const at::Tensor gradient = at::ones({20, 20}, at::kHalf) * 0.1;
  at::Tensor sum = at::zeros({20, 20}, at::kDouble);
  for (std::uint32_t step = 0; step < 202; ++step) {
    const auto got = run_hook(*hook, group, {{"w", gradient}}, step);
    if (step >= 2) sum += got[0].to(at::kDouble);
  }
  EXPECT_LT((sum / 200 - gradient.to(at::kDouble)).abs().max().item<double>(), 1e-5);
}

TEST(PowerSgd, MatricesAreRowMajorWhateverTheStrides) {
  EchoGroup group(2);
  const at::Tensor gradient = random_tensor({12, 8, 3, 3}, 1);
  const auto contiguous = make_power_sgd_hook(options_of(2));
  const auto channels_last = make_power_sgd_hook(options_of(2));
  const auto transposed = make_power_sgd_hook(options_of(2));
  for (std::uint32_t step = 0; step < 6; ++step) {
    const auto expected = run_hook(*contiguous, group, {{"w", gradient}}, step);
    const auto last =
        run_hook(*channels_last, group, {{"w", gradient.contiguous(at::MemoryFormat::ChannelsLast)}}, step);
    const at::Tensor swapped = gradient.transpose(0, 1).contiguous().transpose(0, 1);
    EXPECT_TRUE(last[0].equal(expected[0])) << step;
    EXPECT_TRUE(run_hook(*transposed, group, {{"w", swapped}}, step)[0].equal(expected[0])) << step;
  }
}

// What was delivered and what is owed add up to the gradients, element by element, also where a state goes to a module
// with other strides.
TEST(PowerSgd, ErrorsGoToAModuleWithOtherStrides) {
  constexpr auto kRows = at::MemoryFormat::Contiguous;
  constexpr auto kChannels = at::MemoryFormat::ChannelsLast;
  for (const bool batched : {false, true}) {
    for (const auto& [from, to] : {std::pair(kRows, kChannels), {kChannels, kRows}, {kChannels, kChannels}}) {
      EchoGroup group;
      const auto make = [&](const std::shared_ptr<PowerSGDState>& state) {
        return batched ? make_batched_power_sgd_hook(state) : make_power_sgd_hook(state);
      };
      auto state = std::make_shared<PowerSGDState>(options_of(1));
      auto hook = make(state);
      at::Tensor difference = at::zeros({12, 8, 3, 3});
      for (std::uint32_t step = 0; step < 8; ++step) {
        if (step == 5) {
          const HookState saved = hook->state_dict();
          state = std::make_shared<PowerSGDState>(options_of(1));
          hook = make(state);
          hook->load_state_dict(saved);
        }
        const at::Tensor gradient = random_tensor({12, 8, 3, 3}, static_cast<int>(step));
        const auto format = step < 5 ? from : to;
        difference += gradient - run_hook(*hook, group, {{"w", gradient.contiguous(format)}}, step)[0];
      }
      EXPECT_GT(difference.abs().max().item<double>(), 0.1);
      EXPECT_TRUE(at::allclose(state->error("w").view({12, 8, 3, 3}), difference, 0, 1e-4))
          << (batched ? "batched, " : "") << from << " to " << to;
    }
  }
}

TEST(PowerSgd, BatchingEqualShapesChangesTheDrawAlone) {
  EchoGroup group;
  auto options = options_of(2);
  options.batch_tensors_with_same_shape = true;
  const auto state = std::make_shared<PowerSGDState>(options);
  const auto hook = make_power_sgd_hook(state);
  const auto gradients = mixed_gradients(1);
  skip_start(hook, group, gradients);
  const auto got = run_hook(*hook, group, gradients, 2);
  // Two matrices of 24 x 20 first, in one piece, then the other one.
  auto generator = at::make_generator<at::CPUGeneratorImpl>(kFirstDraws[0]);
  const at::Tensor pair = at::randn({2, 20, 2}, generator);
  const at::Tensor single = at::randn({1, 24, 2}, generator);
  const auto project = [](const at::Tensor& gradient, const at::Tensor& random) {
    const at::Tensor matrix = gradient.reshape({gradient.size(0), -1}).to(at::kDouble);
    const at::Tensor q = std::get<0>(at::linalg_qr(random.to(at::kDouble)));
    const at::Tensor p = std::get<0>(at::linalg_qr(matrix.matmul(q)));
    return p.matmul(p.t()).matmul(matrix).view(gradient.sizes());
  };
  EXPECT_TRUE(at::allclose(got[0].to(at::kDouble), project(gradients[0].gradient, pair[0]), 0, 1e-5));
  EXPECT_TRUE(at::allclose(got[3].to(at::kDouble), project(gradients[3].gradient, pair[1]), 0, 1e-5));
  EXPECT_TRUE(at::allclose(got[2].to(at::kDouble), project(gradients[2].gradient, single[0]), 0, 1e-5));
}

TEST(PowerSgd, EpsilonIsAddedToNormsUpToRankTwo) {
  EchoGroup group;
  const at::Tensor gradient = random_tensor({30, 1}, 1).matmul(random_tensor({1, 20}, 2));
  for (const std::int64_t rank : {1, 3}) {
    auto options = options_of(rank);
    options.use_error_feedback = false;
    options.orthogonalization_epsilon = 0.5;
    const auto hook = make_power_sgd_hook(options);
    skip_start(hook, group, {{"w", gradient}});
    const auto got = run_hook(*hook, group, {{"w", gradient}}, 2);
    if (rank == 3) {
      EXPECT_TRUE(at::allclose(got[0], gradient, 1e-4, 1e-6));
    } else {
      EXPECT_LT(got[0].norm().item<double>(), 0.999 * gradient.norm().item<double>());
      EXPECT_GT(got[0].norm().item<double>(), 0);
    }
  }
}

TEST(PowerSgd, CompressesWhereItPaysAndSendsWhatTheHeaderSays) {
  for (const int world : {2, 4, 8}) {
    EchoGroup group(world);
    const auto state = std::make_shared<PowerSGDState>(options_of(2, 2));
    const auto hook = make_power_sgd_hook(state);
    // (8 + 8) * 2 * 2 = 64 is not below 8 * 8; (9 + 8) * 2 * 2 = 68 is below 9 * 8.
    const Gradients gradients{{"small", random_tensor({8, 8}, 1)}, {"pays", random_tensor({9, 8}, 2)},
                              {"vector", random_tensor({100}, 3)}, {"row", random_tensor({1, 50}, 4)},
                              {"one", random_tensor({1}, 5)},      {"scalar", random_tensor({}, 6)},
                              {"none", at::zeros({0, 5})},         {"large", random_tensor({40, 5, 6}, 7)}};
    skip_start(hook, group, gradients);
    group.bytes = 0;
    group.collectives = 0;
    (void)run_hook(*hook, group, gradients, 2);
    const std::int64_t compressed = (9 + 8) * 2 + (40 + 30) * 2;
    const std::int64_t uncompressed = 64 + 100 + 50 + 1 + 1;
    EXPECT_EQ(group.bytes, static_cast<std::size_t>(4 * (compressed + uncompressed)));
    EXPECT_EQ(group.collectives, 3);
    const CompressionStats stats = state->compression_stats();
    EXPECT_EQ(stats.before, uncompressed + 72 + 1200);
    EXPECT_EQ(stats.after, compressed + uncompressed);
    EXPECT_DOUBLE_EQ(stats.rate, static_cast<double>(stats.before) / static_cast<double>(stats.after));
    EXPECT_TRUE(state->error("pays").defined());
    EXPECT_TRUE(state->error("large").defined());
    for (const char* plain : {"small", "vector", "row", "one", "scalar", "none"})
      EXPECT_FALSE(state->error(plain).defined());
  }
}

TEST(PowerSgd, BatchedSendsWhatTheHeaderSays) {
  EchoGroup group(4);
  const auto state = std::make_shared<PowerSGDState>(options_of(3));
  const auto hook = make_batched_power_sgd_hook(state);
  const auto gradients = mixed_gradients(1);  // 480 + 24 + 432 + 480 = 1416 < 38 * 38
  skip_start(hook, group, gradients);
  EXPECT_EQ(state->compression_stats().rate, 0);
  group.bytes = 0;
  (void)run_hook(*hook, group, gradients, 2);
  EXPECT_EQ(group.bytes, 4u * 2 * 38 * 3);
  EXPECT_EQ(state->compression_stats().before, 1416);
  EXPECT_EQ(state->compression_stats().after, 2 * 38 * 3);
}

// PyTorch keeps an error for entries that it did not compress; on several ranks it grows without bound.
TEST(PowerSgd, WhatIsNotCompressedHasNoError) {
  constexpr int kWorld = 2;
  run_ranks({"threads"}, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto state = std::make_shared<PowerSGDState>(options_of(1));
    const auto hook = make_power_sgd_hook(state);
    for (int step = 0; step < 400; ++step) {
      const auto of_rank = [&](int r) { return mixed_gradients(step * 10 + 5 * r); };
      const auto got = run_hook(*hook, *group, of_rank(rank), static_cast<std::uint32_t>(step));
      EXPECT_TRUE(got[1].equal(of_rank(0)[1].gradient / kWorld + of_rank(1)[1].gradient / kWorld)) << "step " << step;
    }
    EXPECT_FALSE(state->error("a.bias").defined());
    // Rank 1 of 20 random directions: what is lost is bounded all the same.
    EXPECT_LT(state->error("a.weight").norm().item<double>(), 400);
    EXPECT_EQ(state->state_dict().count("local/error/a.bias"), 0u);
  });
}

TEST(PowerSgd, AveragesPlainlyBeforeItsStart) {
  EchoGroup group(2);
  auto options = options_of(1);
  options.start_iteration = 3;
  const auto state = std::make_shared<PowerSGDState>(options);
  const auto hook = make_power_sgd_hook(state);
  const auto gradients = mixed_gradients(1);
  for (std::uint32_t step = 0; step < 5; ++step) {
    const auto got = run_hook(*hook, group, gradients, step);
    EXPECT_EQ(got[0].equal(gradients[0].gradient), step < 3) << step;
    EXPECT_EQ(state->iterations(), step + 1);
  }
}

// Lanes may run the last bucket of an iteration first.
TEST(PowerSgd, BucketsOfOneIterationAgreeOnItInAnyOrder) {
  EchoGroup group;
  std::vector<std::vector<std::size_t>> orders{{0, 1, 2}, {2, 0, 1}, {2, 1, 0}};
  for (const bool warm : {true, false}) {
    for (const bool counted : {true, false}) {  // false: every bucket says iteration 0
      std::vector<std::vector<at::Tensor>> first;
      for (const auto& order : orders) {
        auto options = options_of(2);
        options.warm_start = warm;
        const auto state = std::make_shared<PowerSGDState>(options);
        const auto hook = make_power_sgd_hook(state);
        std::vector<std::vector<at::Tensor>> results(3 * 6);
        for (std::uint32_t step = 0; step < 6; ++step) {
          for (const std::size_t index : order) {
            const at::Tensor gradient = random_tensor({20, 21}, static_cast<int>(10 * step + index));
            results[3 * step + index] =
                run_hook(*hook, group, {{concat("w", index), gradient}}, counted ? step : 0, index, index == 2);
          }
        }
        EXPECT_EQ(state->iterations(), 6);
        if (first.empty()) first = results;
        for (std::size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(same_bits(results[i], first[i])) << i;
      }
    }
  }
}

// The draws of several buckets are PyTorch's: bucket k of the first compressing iteration takes the k-th.
TEST(PowerSgd, BucketsTakeTheirDrawsInTheOrderOfBuckets) {
  EchoGroup group;
  for (const bool warm : {true, false}) {
    auto options = options_of(2);
    options.warm_start = warm;
    options.use_error_feedback = false;
    const auto hook = make_power_sgd_hook(options);
    for (std::uint32_t step = 0; step < 4; ++step) {
      for (const std::size_t index : {std::size_t{1}, std::size_t{0}}) {
        const at::Tensor gradient = random_tensor({20, 21}, 7);
        const auto got = run_hook(*hook, group, {{concat("w", index), gradient}}, step, index, index == 1);
        if (step < 2 || (warm && step > 2)) continue;
        auto generator = at::make_generator<at::CPUGeneratorImpl>(kFirstDraws[2 * (step - 2) + index]);
        const at::Tensor q = std::get<0>(at::linalg_qr(at::randn({1, 21, 2}, generator)[0]));
        const at::Tensor p = std::get<0>(at::linalg_qr(gradient.matmul(q)));
        EXPECT_TRUE(at::allclose(got[0], p.matmul(p.t()).matmul(gradient), 0, 1e-5)) << step << " " << index;
      }
    }
  }
}

// In PyTorch warm_start = false forgets the P and Q of every bucket at the end of each.
TEST(PowerSgd, WithoutWarmStartNoBucketTouchesAnothers) {
  auto options = options_of(2);
  options.warm_start = false;
  EchoGroup group;
  const auto state = std::make_shared<PowerSGDState>(options);
  const auto hook = make_power_sgd_hook(state);
  skip_start(hook, group, mixed_gradients(1), 4);
  for (const auto& [key, value] : state->state_dict()) EXPECT_NE(key.substr(0, 2), "q/");
  EXPECT_TRUE(state->error("a.weight").defined());
}

// A group of one rank; in the middle of its first all-reduce after arm() something else happens.
class InterruptedGroup final : public ProcessGroup {
 public:
  InterruptedGroup() : ProcessGroup(0, 1) {}
  void arm(std::function<void()> during) { during_ = std::move(during); }

 protected:
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions&) override {
    if (const auto during = std::exchange(during_, nullptr)) during();
    return std::make_shared<CountingWork>(tensors, calls_);
  }

 private:
  std::function<void()> during_;
  Calls calls_;
};

// PyTorch's buckets clear each other's P and Q there. A bucket that runs from end to end in the middle of another one
// changes neither's result.
TEST(PowerSgd, ABucketInTheMiddleOfAnotherChangesNothing) {
  for (const bool batched : {false, true}) {
    for (const bool warm : {false, true}) {
      auto options = options_of(2);
      options.warm_start = warm;
      std::vector<std::vector<at::Tensor>> apart;
      for (const bool interrupted : {false, true}) {
        InterruptedGroup group;
        const auto hook = batched ? make_batched_power_sgd_hook(options) : make_power_sgd_hook(options);
        std::vector<std::vector<at::Tensor>> results;
        for (std::uint32_t step = 0; step < 6; ++step) {
          std::vector<at::Tensor> second;
          const auto run_second = [&] {
            const Gradients gradients{{"second", random_tensor({20, 21}, static_cast<int>(50 + step))}};
            second = run_hook(*hook, group, gradients, step, 1, true);
          };
          if (interrupted) group.arm(run_second);
          const Gradients gradients{{"first", random_tensor({20, 21}, static_cast<int>(step))}};
          results.push_back(run_hook(*hook, group, gradients, step, 0, false));
          if (!interrupted) run_second();
          results.push_back(second);
        }
        if (!interrupted) apart = results;
        for (std::size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(same_bits(results[i], apart[i])) << i;
      }
    }
  }
}

struct Bad {
  std::string name;
  double value;
};

TEST(PowerSgd, InfinityAndNanReachAllRanksAndAreForgotten) {
  for (const bool batched : {false, true}) {
    for (const double bad : {kNan, kInfinity, -kInfinity}) {
      run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        const auto make = [batched](std::shared_ptr<PowerSGDState> made) {
          return batched ? make_batched_power_sgd_hook(std::move(made)) : make_power_sgd_hook(std::move(made));
        };
        const auto state = std::make_shared<PowerSGDState>(options_of(2));
        const auto undisturbed_state = std::make_shared<PowerSGDState>(options_of(2));
        const auto hook = make(state);
        const auto undisturbed = make(undisturbed_state);
        const auto gradients = [&](int step) { return mixed_gradients(100 * step + 10 * rank); };
        std::uint32_t iteration = 0;
        for (int step = 0; step < 8; ++step) {
          const auto expected = run_hook(*undisturbed, *group, gradients(step), static_cast<std::uint32_t>(step));
          EXPECT_TRUE(same_bits(run_hook(*hook, *group, gradients(step), iteration++), expected)) << step;
          if (step < 3) continue;
          auto broken = gradients(step + 50);
          if (rank == 1) broken[0].gradient[23][19] = bad;
          const auto got = run_hook(*hook, *group, broken, iteration++);
          EXPECT_TRUE(at::isfinite(got[0]).logical_not().all().item<bool>());
          if (batched) continue;
          // The others went on; bring the undisturbed one to the same point.
          EXPECT_TRUE(at::isfinite(got[2]).all().item<bool>());
          auto harmless = gradients(step + 50);
          harmless.erase(harmless.begin());
          const auto others = run_hook(*undisturbed, *group, harmless, static_cast<std::uint32_t>(100 + step));
          EXPECT_TRUE(same_bits({got[1], got[2], got[3]}, others));
        }
        EXPECT_TRUE(state->error("a.weight").equal(undisturbed_state->error("a.weight")));
      });
    }
  }
}

TEST(PowerSgd, ABadUncompressedEntryReachesAllRanksToo) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto hook = make_power_sgd_hook(options_of(2));
    skip_start(hook, *group, mixed_gradients(1));
    auto broken = mixed_gradients(2);
    if (rank == 0) broken[1].gradient[3] = kInfinity;
    const auto got = run_hook(*hook, *group, broken, 2);
    EXPECT_FALSE(std::isfinite(got[1][3].item<float>()));
    EXPECT_TRUE(at::isfinite(got[0]).all().item<bool>());
  });
}

// PyTorch divides by a norm of zero where the rank is at most 2.
TEST(PowerSgd, ZerosGiveZerosAndDoNotMakeItForgetItsRank) {
  EchoGroup group(2);
  for (const std::int64_t rank : {1, 2, 4}) {
    for (const double epsilon : {0.0, 1e-8}) {
      for (const bool batched : {false, true}) {
        auto options = options_of(rank);
        options.orthogonalization_epsilon = epsilon;
        const auto hook = batched ? make_batched_power_sgd_hook(options) : make_power_sgd_hook(options);
        const at::Tensor zeros = at::zeros({20, 20});
        const at::Tensor gradient = random_tensor({20, rank}, 1).matmul(random_tensor({rank, 20}, 2));
        skip_start(hook, group, {{"w", zeros}});
        for (std::uint32_t step = 2; step < 5; ++step)
          EXPECT_TRUE(run_hook(*hook, group, {{"w", zeros}}, step)[0].equal(zeros));
        at::Tensor sum = at::zeros({20, 20});
        for (std::uint32_t step = 5; step < 45; ++step) sum += run_hook(*hook, group, {{"w", gradient}}, step)[0];
        EXPECT_LT((sum / 40 - gradient).norm().item<double>(), 0.1 * gradient.norm().item<double>())
            << "rank " << rank << ", epsilon " << epsilon << ", batched " << batched;
      }
    }
  }
}

TEST(PowerSgd, ConstantsTinyAndLargeNumbersStayFinite) {
  EchoGroup group(1);
  for (const double value : {1.0, 1e-38, 1e-42, 1e-45, 1e36}) {
    for (const std::int64_t rank : {1, 4}) {
      const auto hook = make_power_sgd_hook(options_of(rank));
      const at::Tensor gradient = at::full({20, 20}, value);
      for (std::uint32_t step = 0; step < 8; ++step) {
        const auto got = run_hook(*hook, group, {{"w", gradient}}, step);
        EXPECT_TRUE(at::isfinite(got[0]).all().item<bool>()) << value;
        if (value >= 1e-38) {
          EXPECT_TRUE(at::allclose(got[0], gradient, 1e-4, 0)) << value << " step " << step;
        }
      }
    }
  }
}

TEST(PowerSgd, TheLargestNumbersOverflowToNanAndAreForgotten) {
  EchoGroup group(2);
  const auto state = std::make_shared<PowerSGDState>(options_of(2));
  const auto hook = make_power_sgd_hook(state);
  const auto gradients = mixed_gradients(1);
  skip_start(hook, group, gradients, 3);
  const at::Tensor error = state->error("a.weight");
  auto large = gradients;
  large[0].gradient = at::full({24, 20}, std::numeric_limits<float>::max());
  EXPECT_TRUE(at::isnan(run_hook(*hook, group, large, 3)[0]).all().item<bool>());
  EXPECT_TRUE(state->error("a.weight").equal(error));
  EXPECT_TRUE(at::isfinite(run_hook(*hook, group, gradients, 4)[0]).all().item<bool>());
}

// Rank 1 of a diagonal loses most of it, so that the errors grow beyond what half can hold.
TEST(PowerSgd, ResultsBeyondHalfSaturateAndTheRestStaysInTheError) {
  EchoGroup group;
  const auto state = std::make_shared<PowerSGDState>(options_of(1));
  const auto hook = make_power_sgd_hook(state);
  const at::Tensor gradient = (at::eye(20) * 60000).to(at::kHalf);
  skip_start(hook, group, {{"w", gradient}});
  at::Tensor sum = at::zeros({20, 20}, at::kDouble);
  double largest = 0;
  for (std::uint32_t step = 2; step < 30; ++step) {
    const at::Tensor got = run_hook(*hook, group, {{"w", gradient}}, step)[0].to(at::kDouble);
    largest = std::max(largest, got.abs().max().item<double>());
    sum += got;
  }
  EXPECT_EQ(largest, 65504);
  EXPECT_TRUE(at::allclose(sum + state->error("w").view({20, 20}), 28 * gradient.to(at::kDouble), 1e-4, 10));
}

TEST(PowerSgd, EmptyBucketsAndSingleElements) {
  EchoGroup group(2);
  for (const bool batched : {false, true}) {
    const auto hook = batched ? make_batched_power_sgd_hook(options_of(2)) : make_power_sgd_hook(options_of(2));
    for (std::uint32_t step = 0; step < 5; ++step) {
      EXPECT_EQ(run_hook(*hook, group, {}, step, 0, false).size(), 0u);
      EXPECT_EQ(run_hook(*hook, group, {{"none", at::zeros({0})}}, step, 1, false)[0].numel(), 0);
      const auto one = run_hook(*hook, group, {{"one", at::full({1}, 3.0)}}, step, 2);
      EXPECT_FLOAT_EQ(one[0].item<float>(), 3.0f);
    }
  }
}

TEST(PowerSgd, WhatIsNotFloatingPointIsAveraged) {
  EchoGroup group;
  const at::Tensor gradient = at::view_as_complex(random_tensor({4, 4, 2}, 5).contiguous());
  const auto plain = make_allreduce_hook();
  for (const auto& hook : {make_power_sgd_hook(options_of(2)), make_batched_power_sgd_hook(options_of(2))}) {
    for (std::uint32_t step = 0; step < 4; ++step) {
      const auto expected = run_hook(*plain, group, {{"w", gradient}}, step);
      const auto got = run_hook(*hook, group, {{"w", gradient}}, step);
      EXPECT_TRUE(at::equal(got.at(0), expected.at(0))) << "step " << step;
    }
  }
}

// PyTorch's hands a 2-D matrix to a check for 3-D ones and fails.
TEST(BatchedPowerSgd, IsThePlainAlgorithmOnTheSquare) {
  EchoGroup group;
  for (const std::int64_t rank : {1, 2, 3}) {
    const auto options = options_of(rank, 0);
    const auto hook = make_batched_power_sgd_hook(options);
    PlainPowerSGD plain(1, options);
    at::Tensor error = at::zeros({38 * 38});
    for (int step = 0; step < 12; ++step) {
      const auto gradients = mixed_gradients(10 * step);
      const auto got = run_hook(*hook, group, gradients, static_cast<std::uint32_t>(step));
      if (step < 2) continue;
      at::Tensor square = at::zeros({38 * 38});
      std::vector<at::Tensor> flat;
      for (const auto& named : gradients) flat.push_back(named.gradient.reshape(-1));
      square.narrow(0, 0, 1416).copy_(at::cat(flat));
      // The reference remembers an error for the padding, too, which is not a gradient: taken out again.
      if (step > 2) square.narrow(0, 1416, 28).sub_(plain.error(0, 0).view(-1).narrow(0, 1416, 28));
      const at::Tensor expected = plain.step({{square.view({38, 38})}}, kFirstDraws[0])[0].view(-1);
      std::vector<at::Tensor> flat_got;
      for (const auto& tensor : got) flat_got.push_back(tensor.reshape(-1));
      EXPECT_TRUE(at::allclose(at::cat(flat_got).to(at::kDouble), expected.narrow(0, 0, 1416), 0, 1e-4))
          << "rank " << rank << ", step " << step;
    }
  }
}

TEST(BatchedPowerSgd, IsExactAtFullRank) {
  EchoGroup group(3);
  const auto hook = make_batched_power_sgd_hook(options_of(100));
  for (int step = 0; step < 5; ++step) {
    const auto gradients = mixed_gradients(step);
    const auto got = run_hook(*hook, group, gradients, static_cast<std::uint32_t>(step));
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(at::allclose(got[i], gradients[i].gradient, 1e-4, 1e-5)) << "step " << step;
  }
}

// The error follows its parameter into another bucket; Q starts anew there.
TEST(BatchedPowerSgd, KeepsTheErrorThroughARebuild) {
  EchoGroup group;
  const auto state = std::make_shared<PowerSGDState>(options_of(1));
  const auto hook = make_batched_power_sgd_hook(state);
  auto gradients = mixed_gradients(1);
  skip_start(hook, group, gradients, 4);
  const auto in_state = [&](const std::string& key) { return state->state_dict().count(key); };
  EXPECT_EQ(in_state("q/a.weight a.bias b.weight c.weight"), 1u);
  std::reverse(gradients.begin(), gradients.end());
  // What was lost and what is given now are, together, the gradient and what had been lost before.
  const at::Tensor before = state->error("b.weight");
  const auto got = run_hook(*hook, group, gradients, 4);
  EXPECT_TRUE(
      at::allclose(got[1].reshape(-1) + state->error("b.weight"), before + gradients[1].gradient.reshape(-1), 0, 1e-5));
  EXPECT_EQ(in_state("q/a.weight a.bias b.weight c.weight"), 0u);
  EXPECT_EQ(in_state("q/c.weight b.weight a.bias a.weight"), 1u);
}

}  // namespace
}  // namespace gradwire::testing::power_sgd_test::buckets
