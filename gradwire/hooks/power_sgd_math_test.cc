// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The random numbers and the orthonormalization of PowerSGD.
#include "gradwire/hooks/power_sgd.h"
#include "gradwire/hooks/power_sgd_internal.h"
#include "gradwire/hooks/power_sgd_test_support.h"

namespace gradwire::testing::power_sgd_test::math {
namespace {

TEST(PowerSgdRandom, DrawsAreNumpys) {
  internal::NumpyDraws zero(0);
  for (const std::uint32_t expected : kFirstDraws) EXPECT_EQ(zero.next(), expected);
  internal::NumpyDraws skipped(0);
  skipped.skip(999);
  EXPECT_EQ(skipped.next(), 36556993u);
  internal::NumpyDraws answer(42);
  for (const std::uint32_t expected : {534895718u, 199900595u, 862061404u, 787846414u})
    EXPECT_EQ(answer.next(), expected);
  internal::NumpyDraws largest(4294967295u);
  for (const std::uint32_t expected : {419326371u, 479346978u, 697429004u}) EXPECT_EQ(largest.next(), expected);
}

TEST(PowerSgdRandom, AGeneratorGivesTorchsManualSeedNumbers) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(209652396);
  const at::Tensor few = at::randn({1, 3, 2}, generator).view(-1);
  EXPECT_FLOAT_EQ(few[0].item<float>(), -0.8103023767471313f);
  EXPECT_FLOAT_EQ(few[5].item<float>(), -0.6434366703033447f);
  generator = at::make_generator<at::CPUGeneratorImpl>(209652396);
  const at::Tensor many = at::randn({2, 9, 3}, generator).view(-1);
  EXPECT_FLOAT_EQ(many[0].item<float>(), -0.6394617557525635f);
  EXPECT_FLOAT_EQ(many[53].item<float>(), -0.5384410619735718f);
}

at::Tensor orthonormal(const at::Tensor& columns, double epsilon = 0) {
  at::Tensor runs = columns.t().contiguous();
  internal::orthonormalize(runs.mutable_data_ptr<float>(), static_cast<std::size_t>(columns.size(1)),
                           static_cast<std::size_t>(columns.size(0)), epsilon);
  return runs.t();
}

void expect_orthonormal(const at::Tensor& columns) {
  const at::Tensor wide = columns.to(at::kDouble);
  EXPECT_TRUE(at::allclose(wide.t().matmul(wide), at::eye(columns.size(1), at::kDouble), 0, 1e-6)) << columns;
}

TEST(PowerSgdOrthonormalize, SpansWhatQrSpans) {
  for (const std::int64_t rank : {1, 2, 3, 8}) {
    const at::Tensor columns = random_tensor({50, rank}, 3);
    const at::Tensor mine = orthonormal(columns);
    expect_orthonormal(mine);
    const at::Tensor theirs = std::get<0>(at::linalg_qr(columns.to(at::kDouble)));
    // Column by column, up to the sign.
    EXPECT_TRUE(at::allclose(mine.abs().to(at::kDouble), theirs.abs(), 0, 1e-5));
  }
}

TEST(PowerSgdOrthonormalize, ReplacesWhatHasNoDirectionOfItsOwn) {
  expect_orthonormal(orthonormal(at::zeros({7, 3})));
  expect_orthonormal(orthonormal(at::zeros({1, 1})));
  expect_orthonormal(orthonormal(at::zeros({3, 3})));
  expect_orthonormal(orthonormal(at::ones({9, 4})));
  const at::Tensor nearly = at::ones({40, 2});
  nearly[0][1] = 1 + 1e-6;
  expect_orthonormal(orthonormal(nearly));
  at::Tensor with_zero = random_tensor({9, 3}, 1);
  with_zero.select(1, 1).zero_();
  expect_orthonormal(orthonormal(with_zero));
}

TEST(PowerSgdOrthonormalize, KeepsItsHeadAtTheEndsOfTheRange) {
  for (const double scale : {1e-44, 1e-30, 1e30, 3e38}) {
    expect_orthonormal(orthonormal(random_tensor({20, 3}, 2).mul(scale)));
  }
}

TEST(PowerSgdOrthonormalize, EpsilonEnlargesNorms) {
  const at::Tensor columns = random_tensor({30, 1}, 4);
  const double norm = columns.norm().item<double>();
  EXPECT_TRUE(at::allclose(orthonormal(columns, 0.5), columns / (norm + 0.5), 1e-5, 1e-7));
  expect_orthonormal(orthonormal(at::zeros({6, 2}), 1e-8));
}

}  // namespace
}  // namespace gradwire::testing::power_sgd_test::math
