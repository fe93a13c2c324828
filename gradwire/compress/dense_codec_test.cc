// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How well the codecs that send every value keep it: fp16, bf16, fp8, integers, 1 bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "gradwire/base/error.h"
#include "gradwire/compress/codec_test_support.h"
#include "gradwire/compress/fp8_codec.h"
#include "gradwire/compress/integer_codec.h"
#include "gradwire/compress/one_bit_codec.h"
#include "gradwire/compress/random.h"
#include "gradwire/compress/registry.h"

namespace gradwire::compress::dense_codec_test {
namespace {

using codec_test_support::normal_values;
using codec_test_support::round_trip;

TEST(Philox, GivesThePublishedNumbers) {
  // The known answers of the authors' Random123 library for philox4x32-10.
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}), (PhiloxBlock{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox({0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}),
            (PhiloxBlock{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
}

TEST(RandomSequence, DiffersForEveryFieldOfTheKey) {
  const EncodeKey key{1, 2, 3, 4};
  const auto first = RandomSequence(key, 5).block(0);
  EXPECT_EQ(RandomSequence(key, 5).block(0), first);
  EXPECT_NE(RandomSequence(key, 5).block(1), first);
  EXPECT_NE(RandomSequence(key, 6).block(0), first);
  EXPECT_NE(RandomSequence({9, 2, 3, 4}, 5).block(0), first);
  EXPECT_NE(RandomSequence({1, 9, 3, 4}, 5).block(0), first);
  EXPECT_NE(RandomSequence({1, 2, 9, 4}, 5).block(0), first);
  EXPECT_NE(RandomSequence({1, 2, 3, 9}, 5).block(0), first);
  EXPECT_NE(RandomSequence({1, 2, 3, 4, 9}, 5).block(0), first);
}

TEST(IntegerCodec, RoundingToNearestErrsByHalfAStepAtMost) {
  for (const int bits : {8, 4, 2}) {
    const std::size_t block = 64;
    const auto codec = make_integer_codec(bits, {block, Rounding::nearest});
    for (const float scale : {1.0f, 1e-20f, 1e20f, 1e-34f}) {
      const auto values = normal_values(1000, 1, scale);
      const auto back = round_trip(*codec, values);
      for (std::size_t begin = 0; begin < values.size(); begin += block) {
        const std::size_t end = std::min(begin + block, values.size());
        double largest = 0;
        for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(double{values[i]}));
        const double step = largest / ((1 << (bits - 1)) - 1);
        for (std::size_t i = begin; i < end; ++i) {
          ASSERT_LE(std::fabs(double{values[i]} - back[i]), 0.50001 * step) << bits << " bits, value " << values[i];
        }
      }
    }
  }
}

TEST(IntegerCodec, TheLargestOfABlockIsKept) {
  for (const int bits : {8, 4, 2}) {
    const auto codec = make_integer_codec(bits);
    std::vector<float> values(256, 0.0f);
    values[17] = -3.25f;
    const auto back = round_trip(*codec, values);
    EXPECT_NEAR(back[17], -3.25f, 1e-6f);
    EXPECT_EQ(std::count(back.begin(), back.end(), 0.0f), 255);
  }
}

TEST(IntegerCodec, ABlockThatIsNotFiniteSpoilsNoOther) {
  const auto codec = make_integer_codec(8, {8, Rounding::nearest});
  std::vector<float> values(24, 1.0f);
  values[9] = std::numeric_limits<float>::infinity();
  const auto back = round_trip(*codec, values);
  for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(std::isnan(back[i]), i / 8 == 1) << i;
}

// The mean of many encodings is the value: within five standard deviations of a sum of bounded errors.
TEST(IntegerCodec, StochasticRoundingHasTheRightExpectation) {
  for (const int bits : {8, 4, 2}) {
    const auto codec = make_integer_codec(bits, {8, Rounding::stochastic});
    const std::vector<float> values{1.0f, -0.83f, 0.5f, 0.111f, 0.0f, -0.2f, 0.9999f, -1.0f};
    const int draws = 4000;
    std::vector<double> sums(values.size());
    for (int step = 0; step < draws; ++step) {
      const auto back = round_trip(*codec, values, {7, 1, static_cast<std::uint64_t>(step), 0});
      for (std::size_t i = 0; i < values.size(); ++i) sums[i] += back[i];
    }
    const double scale = 1.0 / ((1 << (bits - 1)) - 1);
    const double bound = 5 * 0.5 * scale / std::sqrt(double{draws});
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(sums[i] / draws, values[i], bound) << bits << " bits, value " << values[i];
    }
  }
}

TEST(IntegerCodec, StochasticRoundingDiffersByRankAndStepAndIsRepeatable) {
  const auto codec = make_integer_codec(4, {256, Rounding::stochastic});
  const auto values = normal_values(5000, 2);
  const auto first = round_trip(*codec, values, {1, 2, 3, 0});
  EXPECT_EQ(round_trip(*codec, values, {1, 2, 3, 0}), first);
  EXPECT_NE(round_trip(*codec, values, {1, 2, 3, 1}), first);
  EXPECT_NE(round_trip(*codec, values, {1, 2, 4, 0}), first);
}

TEST(OneBitCodec, SendsSignsAndTheMeanMagnitude) {
  const auto codec = make_one_bit_codec({8});
  const auto back = round_trip(*codec, {1, -2, 3, -4, 5, -6, 7, -8, /* a block of two */ -0.0f, 3});
  EXPECT_EQ(back, (std::vector<float>{4.5f, -4.5f, 4.5f, -4.5f, 4.5f, -4.5f, 4.5f, -4.5f, -1.5f, 1.5f}));
}

// All values of a format, from its definition.
std::vector<double> format_values(int exponent_bits, bool has_infinity) {
  const int mantissa_bits = 7 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  std::vector<double> values;
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> mantissa_bits;
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    if (has_infinity ? exponent == (1 << exponent_bits) - 1 : code == 127) break;
    values.push_back(exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                   : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits));
  }
  return values;
}

class Fp8Test : public testing::TestWithParam<Fp8Format> {
 protected:
  std::vector<double> values_ = GetParam() == Fp8Format::e4m3 ? format_values(4, false) : format_values(5, true);
};

INSTANTIATE_TEST_SUITE_P(Formats, Fp8Test, testing::Values(Fp8Format::e4m3, Fp8Format::e5m2), [](const auto& instance) {
  return instance.param == Fp8Format::e4m3 ? std::string("e4m3") : std::string("e5m2");
});

TEST_P(Fp8Test, EveryValueOfTheFormatIsKeptAtEveryScale) {
  EXPECT_EQ(values_.back(), GetParam() == Fp8Format::e4m3 ? 448 : 57344);
  const auto codec = make_fp8_codec(GetParam());
  for (const int exponent : {-100, -9, 0, 1, 60, 111}) {
    std::vector<float> values;
    for (const double value : values_) {
      values.push_back(static_cast<float>(std::ldexp(value, exponent)));
      values.push_back(-values.back());
    }
    EXPECT_EQ(round_trip(*codec, values), values) << "times 2^" << exponent;
  }
}

TEST_P(Fp8Test, RoundsToTheNearestAndTiesToEven) {
  std::vector<float> values{static_cast<float>(values_.back())};  // makes the scale 1
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (std::size_t i = 0; i + 1 < values_.size(); ++i) {
    const double width = values_[i + 1] - values_[i];
    for (const double part : {0.5, 0.4999, 0.5001, uniform(random), uniform(random)}) {
      values.push_back(static_cast<float>(values_[i] + part * width));
    }
  }
  const auto back = round_trip(*make_fp8_codec(GetParam(), {4096}), values);
  for (std::size_t i = 1; i < values.size(); ++i) {
    const auto above = std::upper_bound(values_.begin(), values_.end(), double{values[i]});
    const auto low = static_cast<std::size_t>(above - values_.begin()) - 1;
    const double down = values[i] - values_[low];
    const double up = values_[low + 1] - values[i];
    const bool round_up = up < down || (up == down && low % 2 == 1);
    ASSERT_EQ(double{back[i]}, values_[low + (round_up ? 1 : 0)]) << values[i];
  }
}

TEST_P(Fp8Test, InfinityAndNaNSpoilNoOtherValue) {
  const auto codec = make_fp8_codec(GetParam());
  const float infinity = std::numeric_limits<float>::infinity();
  const auto back = round_trip(*codec, {1.0f, -infinity, 0.5f, std::numeric_limits<float>::quiet_NaN(), -2.0f});
  EXPECT_EQ(back[0], 1.0f);
  EXPECT_EQ(back[2], 0.5f);
  EXPECT_TRUE(std::isnan(back[3]));
  EXPECT_EQ(back[4], -2.0f);
  if (GetParam() == Fp8Format::e5m2) {
    EXPECT_EQ(back[1], -infinity);
  } else {
    EXPECT_TRUE(std::isnan(back[1]));
  }
}

TEST(CastCodecs, KeepTheirTypesPrecision) {
  const auto values = normal_values(4097, 4);
  const auto fp16 = round_trip(*make_codec("fp16"), values);
  const auto bf16 = round_trip(*make_codec("bf16"), values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_LE(std::fabs(fp16[i] - values[i]), std::fabs(values[i]) * 0x1p-11f + 0x1p-25f);
    ASSERT_LE(std::fabs(bf16[i] - values[i]), std::fabs(values[i]) * 0x1p-8f);
  }
}

}  // namespace
}  // namespace gradwire::compress::dense_codec_test
