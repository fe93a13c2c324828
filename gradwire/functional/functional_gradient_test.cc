// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Values, gradients and second derivatives of every differentiable collective equal those of the same function composed
// of torch's operators on one rank: float64 and complex, worlds 1 to 3, ties and zeros, strided, empty and scalar.
#include "gradwire/functional/functional_test_support.h"

namespace gradwire::testing::functional_gradient_test {
namespace {

using test_support::run_ranks;

class Gradients : public ::testing::TestWithParam<int> {};

TEST_P(Gradients, EqualThoseOfTheMeaning) {
  run_ranks("threads", GetParam(), [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("threads", store, rank, GetParam());
    for (const Case& test : cases()) {
      for (const std::uint64_t seed : {1U, 2U}) {
        check(test, group, at::kDouble, seed);
        if (!test.real_only) check(test, group, at::kComplexDouble, seed);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}

// Ranks whose own inputs need no gradient take part in backward, and the others' gradients are as if all did.
TEST_P(Gradients, AreRightWhereSomeRanksNeedNone) {
  run_ranks("threads", GetParam(), [](int rank, const std::shared_ptr<Store>& store) {
    const int size = GetParam();
    const auto group = make_process_group("threads", store, rank, size);
    for (const Case& test : cases()) {
      for (int with = 0; with < size; ++with) {
        SCOPED_TRACE(concat(test.name, ": only rank ", with, " needs a gradient; rank ", rank, " of ", size));
        Tensors mine = draw_all(test, size, at::kDouble, 3)[static_cast<std::size_t>(rank)];
        for (at::Tensor& input : mine) input = input.detach().requires_grad_(rank == with);
        const Tensors outputs = test.ours(mine, group);
        for (const at::Tensor& output : outputs) EXPECT_TRUE(output.requires_grad());
        loss_of(outputs, rank).backward();
        if (rank == with) {
          const Results wanted = expected(test, size, at::kDouble, 3)[static_cast<std::size_t>(rank)];
          Tensors gradients;
          for (const at::Tensor& input : mine) gradients.push_back(input.grad());
          expect_close(gradients, wanted.first, "gradient");
        } else {
          for (const at::Tensor& input : mine) EXPECT_FALSE(input.grad().defined());
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Gradients, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace gradwire::testing::functional_gradient_test
