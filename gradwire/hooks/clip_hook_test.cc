// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/clip_hook.h"

#include <torch/nn/utils/clip_grad.h>

#include <cmath>
#include <limits>

#include "gradwire/base/error.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/quantization_hooks.h"

namespace gradwire::testing::clip_hook_test {
namespace {

// A Zoo with the gradients of `rank` in `step`.
Zoo zoo_with_gradients(int rank, int step) {
  Zoo zoo;
  zoo->forward(rank, step).backward();
  return zoo;
}

double norm_in_float64(const std::vector<at::Tensor>& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) sum += tensor.to(at::kDouble).pow(2).sum().item<double>();
  return std::sqrt(sum);
}

TEST(ClipGradNorm, IsTheNormOfAllGradientsTogether) {
  Zoo zoo = zoo_with_gradients(0, 0);
  const double expected = norm_in_float64(gradients_of(*zoo));
  EXPECT_NEAR(grad_norm(zoo->parameters()), expected, 1e-12 * expected);
  zoo->parameters()[7].mutable_grad()[5] = -3;
  EXPECT_EQ(grad_norm(zoo->parameters(), NormKind::kMax), 3);
  zoo->parameters()[7].mutable_grad() = at::Tensor();
  EXPECT_LE(grad_norm(zoo->parameters(), NormKind::kMax), 0.5);
  EXPECT_EQ(grad_norm({}), 0);
}

TEST(ClipGradNorm, ScalesToTheLimitAndAgreesWithLibtorch) {
  for (const double limit : {0.1, 1.0, 1e6}) {
    Zoo ours = zoo_with_gradients(0, 0);
    Zoo theirs = zoo_with_gradients(0, 0);
    const double norm = clip_grad_norm(ours->parameters(), limit);
    const auto before = gradients_of(*zoo_with_gradients(0, 0));
    EXPECT_NEAR(norm, norm_in_float64(before), 1e-12 * norm);
    const double after = norm_in_float64(gradients_of(*ours));
    EXPECT_NEAR(after, std::min(norm, limit), 1e-3 * after);
    torch::nn::utils::clip_grad_norm_(theirs->parameters(), limit);
    const auto expected = gradients_of(*theirs);
    const auto actual = gradients_of(*ours);
    for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-2, 1e-6)) << i;
  }
}

// libtorch lists the parameters of a module that has two names twice.
TEST(ClipGradNorm, AParameterThatIsListedTwiceCountsOnce) {
  torch::nn::Linear linear(8, 8);
  linear->forward(random_tensor({4, 8}, 1)).square().sum().backward();
  const auto once = linear->parameters();
  std::vector<at::Tensor> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  const double norm = norm_in_float64(gradients_of(*linear));
  for (const NormKind kind : {NormKind::kL2, NormKind::kMax}) EXPECT_EQ(grad_norm(twice, kind), grad_norm(once, kind));
  EXPECT_NEAR(clip_grad_norm(twice, norm / 10), norm, 1e-6 * norm);
  EXPECT_NEAR(norm_in_float64(gradients_of(*linear)), norm / 10, 1e-4 * norm);
}

TEST(ClipGradNorm, TakesSparseAndLazyGradients) {
  at::Tensor table = at::zeros({5, 2}).requires_grad_(),
             conjugated = at::zeros({2}, at::kComplexDouble).requires_grad_(),
             negated = at::zeros({2}, at::kDouble).requires_grad_();
  const auto set = [&] {
    // Row 1 is there twice: 1 + 2 = 3.
    table.mutable_grad() = at::sparse_coo_tensor(at::tensor({1, 1, 4}, at::kLong).view({1, 3}),
                                                 at::tensor({1.0F, 0.0F, 2.0F, 0.0F, 0.0F, 4.0F}).view({3, 2}), {5, 2});
    conjugated.mutable_grad() = at::view_as_complex(at::tensor({0.0, 12.0, 0.0, 0.0}, at::kDouble).view({2, 2})).conj();
    negated.mutable_grad() = at::tensor({0.0, 84.0}, at::kDouble)._neg_view();
  };
  set();
  ASSERT_TRUE(conjugated.grad().is_conj());
  ASSERT_TRUE(negated.grad().is_neg());
  const std::vector<at::Tensor> parameters{table, conjugated, negated};
  EXPECT_DOUBLE_EQ(grad_norm(parameters), 85) << "of 3, 4, 12 and 84";
  EXPECT_DOUBLE_EQ(grad_norm(parameters, NormKind::kMax), 84);
  EXPECT_DOUBLE_EQ(grad_norm({table}, NormKind::kMax), 4);
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 8.5), 85);
  EXPECT_NEAR(grad_norm(parameters), 8.5, 1e-5);
  EXPECT_TRUE(table.grad().is_sparse());
}

// Threads may differ between ranks; the bits may not.
TEST(ClipGradNorm, DoesNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  std::vector<double> norms;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    at::Tensor parameter = at::zeros({300001}).set_requires_grad(true);
    parameter.mutable_grad() = random_tensor({300001}, 4);
    norms.push_back(clip_grad_norm({parameter}, 0.5));
    norms.push_back(grad_norm({parameter}));
  }
  at::set_num_threads(before);
  for (std::size_t i = 2; i < norms.size(); ++i) EXPECT_EQ(norms[i], norms[i - 2]);
}

TEST(ClipGradNorm, LeavesGradientsAloneThatHaveAnInfOrNan) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const NormKind kind : {NormKind::kL2, NormKind::kMax}) {
      at::Tensor parameter = at::zeros({20}).set_requires_grad(true);
      parameter.mutable_grad() = at::full({20}, 5.0);
      parameter.mutable_grad()[3] = bad;
      EXPECT_FALSE(std::isfinite(clip_grad_norm({parameter}, 1.0, kind)));
      EXPECT_EQ(parameter.grad()[0].item<float>(), 5);
      EXPECT_FALSE(std::isfinite(parameter.grad()[3].item<float>()));
    }
  }
  EXPECT_THROW((void)clip_grad_norm({}, 0), InvalidArgument);
  EXPECT_THROW((void)clip_grad_norm({}, std::nan("")), InvalidArgument);
}

TEST(ClipGradNorm, AfterBackwardAllRanksHoldTheSameBits) {
  for (const auto& setup : all_setups()) {
    std::vector<double> norms(3);
    std::vector<std::vector<at::Tensor>> gradients(3);
    run_ranks(setup, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Zoo zoo;
      DistributedDataParallel ddp(zoo, options_for(setup, group));
      ddp(rank, 0).backward();
      norms[static_cast<std::size_t>(rank)] = clip_grad_norm(ddp.parameters(), 0.25);
      gradients[static_cast<std::size_t>(rank)] = gradients_of(*zoo);
    });
    for (std::size_t rank = 1; rank < 3; ++rank) {
      EXPECT_EQ(norms[rank], norms[0]);
      for (std::size_t i = 0; i < gradients[0].size(); ++i)
        EXPECT_TRUE(same_bits(gradients[rank][i], gradients[0][i])) << i;
    }
  }
}

// libtorch lists a parameter of two layers under two names.
TEST(ReduceGradients, AParameterOfTwoNamesIsSentOnce) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    at::Tensor weight = at::zeros({4}).requires_grad_(), other = at::zeros({2}).requires_grad_();
    weight.mutable_grad() = at::full({4}, 2.0F * rank);
    other.mutable_grad() = at::full({2}, 4.0F * rank);
    std::vector<std::string> seen;
    const auto hook = make_comm_hook([&](GradBucket& bucket) {
      seen = bucket.parameter_names();
      return make_allreduce_hook()->run(bucket);
    });
    reduce_gradients({{"a", weight}, {"b", other}, {"again", weight}}, hook, group);
    EXPECT_EQ(seen, (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(weight.grad().eq(1).all().item<bool>());
    EXPECT_TRUE(other.grad().eq(2).all().item<bool>());
  });
}

// Clipping before the reduction: no rank's part is larger than the limit, and what is reduced is the average of those.
TEST(ReduceGradients, AveragesWhatEachRankClipped) {
  for (const std::string name : {"local", "threads"}) {
    for (const auto& hook : {std::shared_ptr<CommHook>(), make_quantization_perchannel_hook()}) {
      std::vector<at::Tensor> expected;
      for (int rank = 0; rank < 3; ++rank) {
        Zoo zoo = zoo_with_gradients(rank, 0);
        clip_grad_norm(zoo->parameters(), 0.1 * (rank + 1));
        const auto gradients = gradients_of(*zoo);
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          const at::Tensor part = gradients[i].to(at::kDouble) / 3;
          if (rank == 0) {
            expected.push_back(part);
          } else {
            expected[i] = expected[i] + part;
          }
        }
      }
      run_ranks({name}, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        Zoo zoo;
        DistributedDataParallel ddp(zoo, options_for({name}, group));
        {
          const auto local = ddp.no_sync();
          ddp(rank, 0).backward();
        }
        clip_grad_norm(ddp.parameters(), 0.1 * (rank + 1));
        reduce_gradients(zoo->named_parameters().pairs(), hook, group);
        const auto gradients = gradients_of(*zoo);
        for (std::size_t i = 0; i < gradients.size(); ++i)
          EXPECT_TRUE(at::allclose(gradients[i].to(at::kDouble), expected[i], 4e-3, 1e-4)) << i;
      });
    }
  }
}

}  // namespace
}  // namespace gradwire::testing::clip_hook_test
