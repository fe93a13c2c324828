// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Affine quantization against its formula in plain arithmetic, for every set of kernels that this processor can run.
#include "gradwire/kernels/affine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gradwire/kernels/dispatch.h"
#include "gradwire/kernels/dispatch_internal.h"

namespace gradwire::kernels {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_floats(std::size_t count, float low, float high, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

// 0 to 140, and around a row of the per-channel hook.
std::vector<std::size_t> counts() {
  std::vector<std::size_t> list;
  for (std::size_t count = 0; count <= 140; ++count) list.push_back(count);
  for (const std::size_t count : {511, 512, 513, 4099}) list.push_back(count);
  return list;
}

// What a rank with `values` alone gets back.
std::vector<float> there_and_back(const std::vector<float>& values) {
  const AffineScale affine = affine_scale(values.data(), values.size());
  std::vector<std::uint8_t> codes(values.size());
  quantize_affine(values.data(), values.size(), affine, codes.data());
  std::vector<float> back(values.size());
  const AffineCodes part{codes.data(), affine};
  average_affine({&part, 1}, values.size(), 1, back.data());
  return back;
}

class AffineTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { select(GetParam()); }
  void TearDown() override { select(""); }
};

INSTANTIATE_TEST_SUITE_P(Kernels, AffineTest, testing::ValuesIn(available()),
                         [](const auto& instance) { return instance.param; });

TEST_P(AffineTest, TheScaleCoversTheValuesAndZero) {
  for (const auto& [low, high] : {std::pair{-1.0f, 3.0f}, {2.0f, 5.0f}, {-7.0f, -4.0f}, {0.0f, 1e-30f}}) {
    for (const std::size_t count : counts()) {
      const auto values = random_floats(count, low, high, 1);
      float smallest = 0, largest = 0;
      for (const float value : values) smallest = std::min(smallest, value), largest = std::max(largest, value);
      const AffineScale affine = affine_scale(values.data(), count);
      if (count == 0) {
        EXPECT_EQ(affine.scale, std::numeric_limits<float>::min());
      } else {
        EXPECT_EQ(affine.scale, (largest - smallest) / 255.0f) << count;
      }
      EXPECT_EQ(affine.zero_point, -std::nearbyint(smallest / affine.scale) + 0.0f);
    }
  }
}

// An element at any place decides the range.
TEST_P(AffineTest, EveryElementCounts) {
  for (const std::size_t count : {1, 7, 16, 33, 100}) {
    for (std::size_t at = 0; at < count; ++at) {
      auto values = random_floats(count, -1, 1, 2);
      values[at] = 51;
      values[(at + 1) % count] = -204;
      EXPECT_EQ(affine_scale(values.data(), count).scale, count == 1 ? 204.0f / 255 : 1.0f);
      for (const float bad : {kInfinity, -kInfinity, kNan}) {
        values[at] = bad;
        EXPECT_TRUE(std::isnan(affine_scale(values.data(), count).scale));
      }
    }
  }
}

TEST_P(AffineTest, CodesRoundHalfToEven) {
  for (const std::size_t count : counts()) {
    auto values = random_floats(count, -30, 33, 3);
    for (std::size_t i = 0; i < count; i += 3) values[i] = std::round(values[i] * 8) / 8;  // ties among them
    std::vector<std::uint8_t> codes(count + 1, 0xa5);
    quantize_affine(values.data(), count, {0.25f, 100}, codes.data());
    ASSERT_EQ(codes[count], 0xa5);
    for (std::size_t i = 0; i < count; ++i) {
      const double expected = std::clamp(std::nearbyint(double{values[i]} / 0.25) + 100, 0.0, 255.0);
      ASSERT_EQ(codes[i], expected) << values[i];
    }
  }
}

// Far beyond the codes, up to quotients that no integer and no float holds, and around where a code is the last one.
TEST_P(AffineTest, CodesOfAnyValueAreClamped) {
  std::vector<float> odd{0.0f, -0.0f, 0.5f, 1.5f, 254.5f, 255.5f, 256, 256.5f, 257};
  for (const float large :
       {4194303.5f, 4194304.0f, 6e6f, 8388608.0f, 1.3e7f, 2e7f, 2147483648.0f, 3e9f, 1e10f, 1e30f, kMax, kInfinity}) {
    odd.push_back(large);
  }
  for (std::size_t i = odd.size(); i > 0; --i) odd.push_back(-odd[i - 1]);
  odd.push_back(kNan);
  for (const float scale : {1.0f, 0.25f, 1e30f, std::numeric_limits<float>::min(), kInfinity}) {
    for (const float zero_point : {0.0f, 10.0f, 128.0f, 255.0f}) {
      for (const std::size_t count : counts()) {
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) values[i] = odd[(i * 7 + count) % odd.size()];
        std::vector<std::uint8_t> codes(count + 1, 0xa5);
        quantize_affine(values.data(), count, {scale, zero_point}, codes.data());
        ASSERT_EQ(codes[count], 0xa5);
        for (std::size_t i = 0; i < count; ++i) {
          const float quotient = values[i] / scale;
          const double expected = std::isnan(quotient)
                                      ? 0.0
                                      : std::clamp(std::nearbyint(double{quotient}) + double{zero_point}, 0.0, 255.0);
          ASSERT_EQ(codes[i], expected) << values[i] << " / " << scale << " + " << zero_point << ", " << i << " of "
                                        << count;
        }
      }
    }
  }
}

TEST_P(AffineTest, AveragesInTheOrderOfTheParts) {
  for (const std::size_t count : counts()) {
    std::vector<std::vector<std::uint8_t>> codes(3, std::vector<std::uint8_t>(count));
    std::mt19937 random(4);
    for (auto& part : codes) {
      for (auto& code : part) code = static_cast<std::uint8_t>(random());
    }
    const std::vector<AffineCodes> parts{
        {codes[0].data(), {0.1f, 3}}, {codes[1].data(), {1e-5f, 255}}, {codes[2].data(), {700.3f, 0}}};
    std::vector<float> average(count + 1, 77);
    average_affine(parts, count, 3, average.data());
    ASSERT_EQ(average[count], 77);
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (const auto& part : parts) {
        const float term = part.affine.scale * (static_cast<float>(part.codes[i]) - part.affine.zero_point);
        sum = sum + term;
      }
      ASSERT_EQ(average[i], sum / 3.0f);
    }
  }
}

TEST_P(AffineTest, OddValuesHaveStatedResults) {
  EXPECT_EQ(there_and_back({}), std::vector<float>{});
  EXPECT_EQ(there_and_back({0, -0.0f, 0}), (std::vector<float>{0, 0, 0}));
  for (const float one : {1.0f, -3e-20f, 5e-36f}) {
    for (const std::size_t count : {1, 40}) {
      for (const float back : there_and_back(std::vector<float>(count, one))) EXPECT_NEAR(back / one, 1, 1e-6);
    }
  }
  // Denormal numbers: whole steps of 2^-126, the smallest scale.
  for (const float back : there_and_back(std::vector<float>(40, 1e-40f))) EXPECT_EQ(back, 0);
  // The largest numbers: within a step, which may lie beyond the type; never a NaN.
  std::vector<float> extremes(40, kMax);
  for (std::size_t i = 0; i < 40; i += 2) extremes[i] = -kMax;
  const auto back = there_and_back(extremes);
  for (std::size_t i = 0; i < 40; ++i) {
    EXPECT_FALSE(std::isnan(back[i]));
    EXPECT_GE(std::fabs(back[i]), kMax * 0.99f);
    EXPECT_EQ(std::signbit(back[i]), std::signbit(extremes[i]));
  }
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    for (const float poisoned : there_and_back({1, bad, 3})) EXPECT_TRUE(std::isnan(poisoned));
  }
}

// Every error is half a step at most.
TEST_P(AffineTest, ErrorIsBounded) {
  for (const float magnitude : {1e-30f, 1e-9f, 1.0f, 1e30f}) {
    const auto values = random_floats(4099, -0.3f * magnitude, magnitude, 5);
    const double step = double{affine_scale(values.data(), values.size()).scale};
    const auto back = there_and_back(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_LE(std::fabs(double{values[i]} - double{back[i]}), step * 0.5001);
    }
  }
}

}  // namespace
}  // namespace gradwire::kernels
