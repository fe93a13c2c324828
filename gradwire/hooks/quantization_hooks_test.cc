// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/quantization_hooks.h"

#include <limits>

#include "gradwire/base/error.h"
#include "gradwire/hooks/hook_test_support.h"

namespace gradwire::testing::quantization_hooks_test {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

MakeHook per_tensor() {
  return [](const auto& group) { return make_quantization_pertensor_hook(group); };
}
MakeHook per_channel() {
  return [](const auto& group) { return make_quantization_perchannel_hook(group); };
}

// PyTorch's arithmetic on one row, written with its tensor operations: what a rank's row is after the way there and
// back.
at::Tensor pytorch_row(const at::Tensor& row) {
  const at::Tensor zero = at::zeros({});
  const at::Tensor low = at::minimum(row.min(), zero);
  const at::Tensor high = at::maximum(row.max(), zero);
  const at::Tensor scale = at::maximum((high - low) / 255.0, at::full({}, std::numeric_limits<float>::epsilon()));
  const at::Tensor zero_point = at::clamp(-at::round(low / scale), 0, 255);
  const at::Tensor codes = at::clamp(at::round(row / scale) + zero_point, 0, 255).to(at::kByte);
  return scale * (codes.to(at::kFloat) - zero_point);
}

at::Tensor pytorch_average(const std::vector<at::Tensor>& values, std::int64_t row) {
  at::Tensor sum = at::zeros_like(values[0]);
  for (const at::Tensor& one : values) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& part : one.split(row)) rows.push_back(pytorch_row(part));
    sum += at::cat(rows);
  }
  return sum / static_cast<std::int64_t>(values.size());
}

class Quantization : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Groups, Quantization, ::testing::Values("local", "threads"),
                         [](const auto& info) { return info.param; });

// Bit for bit, at sizes around the rows, exact multiples of 512 among them, over 1 to 4 ranks.
TEST_P(Quantization, ArithmeticIsPyTorchs) {
  for (const int world : {1, 2, 3, 4}) {
    for (const std::int64_t numel : {1, 2, 511, 512, 513, 1024, 5000}) {
      std::vector<at::Tensor> values;
      for (int rank = 0; rank < world; ++rank)
        values.push_back(random_tensor({numel}, 10 * rank + 1) * (rank + 1) + 0.2);
      SCOPED_TRACE(concat(numel, " elements, ", world, " ranks"));
      for (const at::Tensor& result : results_of(GetParam(), per_tensor(), values))
        EXPECT_TRUE(result.equal(pytorch_average(values, numel)));
      for (const at::Tensor& result : results_of(GetParam(), per_channel(), values))
        EXPECT_TRUE(result.equal(pytorch_average(values, kQuantizationRow)));
    }
  }
}

// PyTorch clamps the scale to 1.19e-7: gradients below that vanish, those below 3e-5 lose bits. Ours keep 8 of them.
TEST_P(Quantization, SmallRangesKeepTheirBits) {
  for (const double magnitude : {1e-5, 1e-8, 1e-30}) {
    const std::vector<at::Tensor> values{random_tensor({600}, 1) * magnitude, random_tensor({600}, 2) * magnitude};
    const at::Tensor exact = (values[0].to(at::kDouble) + values[1].to(at::kDouble)) / 2;
    for (const auto& make : {per_tensor(), per_channel()}) {
      const at::Tensor ours = results_of(GetParam(), make, values)[0].to(at::kDouble);
      EXPECT_LE((ours - exact).abs().max().item<double>(), 0.5 * magnitude / 255 * 1.001);
    }
    const at::Tensor theirs = pytorch_average(values, 600).to(at::kDouble);
    EXPECT_GT((theirs - exact).abs().max().item<double>(), 0.5 * magnitude / 255 * 1.5);
    if (magnitude < 1e-7) {
      EXPECT_EQ(theirs.abs().max().item<double>(), 0);
    }
  }
}

TEST_P(Quantization, InfinityAndNanReachAllRanks) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<at::Tensor> values{random_tensor({1300}, 1), random_tensor({1300}, 2), random_tensor({1300}, 3)};
    values[1][600] = bad;
    for (const at::Tensor& result : results_of(GetParam(), per_tensor(), values))
      EXPECT_TRUE(result.isnan().all().item<bool>());
    for (const at::Tensor& result : results_of(GetParam(), per_channel(), values)) {
      // Its row of 512, and no other.
      EXPECT_TRUE(result.slice(0, 512, 1024).isnan().all().item<bool>());
      EXPECT_TRUE(result.slice(0, 0, 512).isfinite().all().item<bool>());
      EXPECT_TRUE(result.slice(0, 1024).isfinite().all().item<bool>());
    }
  }
}

TEST_P(Quantization, OddBucketsHaveStatedResults) {
  for (const auto& make : {per_tensor(), per_channel()}) {
    const auto average = [&](const std::vector<at::Tensor>& values) { return results_of(GetParam(), make, values)[1]; };
    EXPECT_EQ(average({at::zeros({0}), at::zeros({0})}).numel(), 0);
    EXPECT_TRUE(average({at::zeros({700}), at::zeros({700})}).equal(at::zeros({700})));
    EXPECT_NEAR(average({at::full({1}, 3.0), at::full({1}, -1.0)}).item<float>(), 1, 1e-6);
    EXPECT_TRUE(at::allclose(average({at::full({600}, 7.0), at::full({600}, 7.0)}), at::full({600}, 7.0)));
    // A third of the largest number is within reach of a sum of two, and comes back within a code.
    const at::Tensor large = at::full({600}, kMax / 3);
    EXPECT_TRUE(at::allclose(average({large, large}), large, 1.0 / 255, 0));
    EXPECT_FALSE(average({at::full({600}, kMax), at::full({600}, kMax)}).isnan().any().item<bool>());
  }
}

TEST_P(Quantization, OtherTypesAreCastThereAndBack) {
  for (const auto dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
    const std::vector<at::Tensor> values{random_tensor({700}, 1).to(dtype), random_tensor({700}, 2).to(dtype)};
    const at::Tensor expected = pytorch_average({values[0].to(at::kFloat), values[1].to(at::kFloat)}, 512).to(dtype);
    for (const at::Tensor& result : results_of(GetParam(), per_channel(), values)) {
      EXPECT_EQ(result.scalar_type(), dtype);
      EXPECT_TRUE(result.equal(expected));
    }
  }
  const std::vector<at::Tensor> whole{at::full({3}, 2.0).to(at::kComplexFloat),
                                      at::full({3}, 4.0).to(at::kComplexFloat)};
  EXPECT_TRUE(results_of(GetParam(), per_tensor(), whole)[0].equal(at::full({3}, 3.0).to(at::kComplexFloat)));
}

// With fewer ranks taking part than the group has, the sum is divided by those.
TEST_P(Quantization, DividesByTheBucketsDivisor) {
  const std::vector<at::Tensor> values{at::full({5}, 3.0), at::zeros({5})};
  for (const at::Tensor& result : results_of(GetParam(), per_tensor(), values, /*divisor=*/1))
    EXPECT_TRUE(at::allclose(result, at::full({5}, 3.0)));
}

}  // namespace
}  // namespace gradwire::testing::quantization_hooks_test
