// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The codecs' loops against plain restatements of their contracts, for every set of kernels that this processor can
// run.
#include "gradwire/kernels/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gradwire/kernels/dispatch.h"
#include "gradwire/kernels/dispatch_internal.h"

namespace gradwire::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint8_t kGuard = 0xa5;

std::vector<float> random_floats(std::size_t count, float range, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-range, range);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

// 0 to 140, and around the pieces that quantize() is cut into.
std::vector<std::size_t> counts() {
  std::vector<std::size_t> list;
  for (std::size_t count = 0; count <= 140; ++count) list.push_back(count);
  for (const std::size_t count : {2047, 2048, 2049, 2055, 4100, 10007}) list.push_back(count);
  return list;
}

// Code `at` out of packed ones.
unsigned code_at(int bits, const std::vector<std::uint8_t>& packed, std::size_t at) {
  const std::size_t first_bit = at * static_cast<std::size_t>(bits);
  return (packed[first_bit / 8] >> (first_bit % 8)) & ((1u << bits) - 1u);
}

class QuantizeTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { select(GetParam()); }
  void TearDown() override { select(""); }
};

INSTANTIATE_TEST_SUITE_P(Kernels, QuantizeTest, testing::ValuesIn(available()),
                         [](const auto& instance) { return instance.param; });

TEST_P(QuantizeTest, MaxMagnitudeFindsTheLargestWhereverItIs) {
  EXPECT_EQ(max_magnitude(nullptr, 0), 0.0f);
  for (const std::size_t count : {1, 15, 16, 33, 100}) {
    for (std::size_t at = 0; at < count; ++at) {
      auto values = random_floats(count, 1, 1);
      values[at] = -7;
      EXPECT_EQ(max_magnitude(values.data(), count), 7.0f);
      values[at] = -kInfinity;
      EXPECT_EQ(max_magnitude(values.data(), count), kInfinity);
      values[count / 2] = kNan;
      EXPECT_TRUE(std::isnan(max_magnitude(values.data(), count)));
    }
  }
}

TEST_P(QuantizeTest, SumMagnitudesAddsInTheDocumentedOrder) {
  for (const std::size_t count : counts()) {
    const auto values = random_floats(count, 100, 2);
    std::vector<float> partial(16);
    for (std::size_t i = 0; i < count; ++i) partial[i % 16] += std::fabs(values[i]);
    for (std::size_t half = 8; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) partial[i] += partial[i + half];
    }
    EXPECT_EQ(sum_magnitudes(values.data(), count), partial[0]) << count;
  }
  const std::vector<float> poisoned{1, 2, kInfinity, 3};
  EXPECT_EQ(sum_magnitudes(poisoned.data(), 4), kInfinity);
}

TEST_P(QuantizeTest, CodesRoundHalfToEvenAndComeBack) {
  for (const int bits : {8, 4, 2}) {
    const int offset = 1 << (bits - 1);
    const float largest = static_cast<float>(offset - 1);
    for (const std::size_t count : counts()) {
      auto values = random_floats(count, largest * 0.25f, 3);
      for (std::size_t i = 0; i < count; i += 3) values[i] = std::round(values[i] * 8) / 8;  // ties among them
      const std::size_t size = (count * static_cast<std::size_t>(bits) + 7) / 8;
      std::vector<std::uint8_t> packed(size + 1, kGuard);
      quantize(bits, values.data(), count, 4.0f, packed.data());
      ASSERT_EQ(packed[size], kGuard) << bits << " bits, count " << count;
      std::vector<float> back(count + 1, 77);
      dequantize(bits, packed.data(), count, 0.25f, back.data());
      ASSERT_EQ(back[count], 77);
      for (std::size_t i = 0; i < count; ++i) {
        const double expected = std::nearbyint(double{values[i]} * 4);
        ASSERT_EQ(static_cast<int>(code_at(bits, packed, i)) - offset, static_cast<int>(expected)) << values[i];
        ASSERT_EQ(back[i], static_cast<float>(expected * 0.25));
      }
      if (count * static_cast<std::size_t>(bits) % 8 != 0) {
        ASSERT_EQ(packed[size - 1] >> (count * static_cast<std::size_t>(bits) % 8), 0);
      }
    }
  }
}

TEST_P(QuantizeTest, StochasticCodesAreThoseOfTheNumbersOfTheirPlaces) {
  const PhiloxKey key{0x12345678u, 0x9abcdef0u};
  for (const int bits : {8, 4, 2}) {
    const int offset = 1 << (bits - 1);
    // The last two: where the low half of the counter wraps, in the middle of vectors.
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{4000}, (std::uint64_t{1} << 34) - 400}) {
      for (const std::size_t count : counts()) {
        const auto values = random_floats(count, static_cast<float>(offset), 7);  // some beyond the levels
        const std::size_t size = (count * static_cast<std::size_t>(bits) + 7) / 8;
        std::vector<std::uint8_t> packed(size + 1, kGuard);
        quantize_stochastic(bits, values.data(), count, 1.0f, key, first, packed.data());
        ASSERT_EQ(packed[size], kGuard) << bits << " bits, count " << count;
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint32_t number = philox_block(key, (first + i) / 4)[(first + i) % 4];
          const float uniform = static_cast<float>(number >> 8) / 16777216.0f;
          const int rounded = static_cast<int>(std::floor(values[i] + uniform));
          const int expected = std::min(std::max(rounded, 1 - offset), offset - 1);
          ASSERT_EQ(static_cast<int>(code_at(bits, packed, i)) - offset, expected) << i << " of " << count;
        }
      }
    }
  }
}

TEST_P(QuantizeTest, EveryCodeIsDecoded) {
  for (const int bits : {8, 4, 2}) {
    const std::size_t count = 256u * 8u / static_cast<std::size_t>(bits);
    std::vector<std::uint8_t> packed(256);
    for (std::size_t i = 0; i < 256; ++i) packed[i] = static_cast<std::uint8_t>(i);
    std::vector<float> back(count);
    dequantize(bits, packed.data(), count, 0.5f, back.data());
    for (std::size_t i = 0; i < count; ++i) {
      const int code = static_cast<int>(code_at(bits, packed, i)) - (1 << (bits - 1));
      ASSERT_EQ(back[i], static_cast<float>(code) * 0.5f);
    }
  }
}

constexpr Fp8Layout kE4m3{3, 7, 0x7f, 0x7f};
constexpr Fp8Layout kE5m2{2, 15, 0x7c, 0x7e};

// The values of the codes from 0 up to the largest finite one, after the definition of the formats.
std::vector<double> values_of(const Fp8Layout& layout) {
  std::vector<double> values;
  for (int code = 0; code < std::min<int>(layout.infinity, layout.nan); ++code) {
    const int mantissa = code % (1 << layout.mantissa_bits);
    const int exponent = code >> layout.mantissa_bits;
    const int whole = exponent == 0 ? mantissa : mantissa + (1 << layout.mantissa_bits);
    values.push_back(std::ldexp(whole, std::max(exponent, 1) - layout.bias - layout.mantissa_bits));
  }
  return values;
}

// The code next to x, the even one of two.
unsigned fp8_code(const Fp8Layout& layout, const std::vector<double>& values, float x) {
  const unsigned sign = std::signbit(x) ? 0x80u : 0u;
  if (std::isnan(x)) return layout.nan | sign;
  if (std::isinf(x)) return layout.infinity | sign;
  const double magnitude = std::fabs(static_cast<double>(x));
  std::size_t best = 0;
  for (std::size_t code = 1; code < values.size(); ++code) {
    const double distance = std::fabs(values[code] - magnitude);
    const double least = std::fabs(values[best] - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return static_cast<unsigned>(best) | sign;
}

TEST_P(QuantizeTest, Fp8IsTheNearestCode) {
  for (const Fp8Layout& layout : {kE4m3, kE5m2}) {
    const std::vector<double> values = values_of(layout);
    std::vector<float> inputs{0.0f, kInfinity, kNan, 1e-40f, std::numeric_limits<float>::denorm_min()};
    for (std::size_t code = 0; code < values.size(); ++code) {
      const auto value = static_cast<float>(values[code]);
      inputs.insert(inputs.end(), {value, std::nextafter(value, 0.0f)});
      if (code + 1 == values.size()) continue;
      const auto middle = static_cast<float>((values[code] + values[code + 1]) / 2);
      inputs.insert(inputs.end(), {std::nextafter(value, kInfinity), middle, std::nextafter(middle, 0.0f),
                                   std::nextafter(middle, kInfinity)});
    }
    for (const float value : random_floats(1000, static_cast<float>(values.back()), 9)) inputs.push_back(value);
    for (std::size_t i = 0, known = inputs.size(); i < known; ++i) inputs.push_back(-inputs[i]);
    for (const std::size_t count : {inputs.size(), inputs.size() - 5, std::size_t{3}, std::size_t{0}}) {
      std::vector<std::uint8_t> codes(count + 1, kGuard);
      encode_fp8(layout, inputs.data(), count, 1.0f, 1.0f, codes.data());
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(codes[i], fp8_code(layout, values, inputs[i])) << inputs[i];
      EXPECT_EQ(codes[count], kGuard);
    }
    // Both factors count, and a product that only the two together bring into range does not overflow.
    const std::vector<float> large(20, 0x1p100f);
    std::vector<std::uint8_t> codes(large.size());
    encode_fp8(layout, large.data(), large.size(), 0x1p-60f, 0x1p-40f, codes.data());
    for (const std::uint8_t code : codes) ASSERT_EQ(code, fp8_code(layout, values, 1.0f));
  }
}

// The bytes that `values` have from an odd address on.
class Misaligned {
 public:
  explicit Misaligned(std::size_t count) : bytes_(count * sizeof(float) + 1) {}
  explicit Misaligned(const std::vector<float>& values) : Misaligned(values.size()) {
    std::copy_n(reinterpret_cast<const unsigned char*>(values.data()), values.size() * sizeof(float),
                bytes_.data() + 1);
  }
  template <class T>
  T* data() noexcept {
    return reinterpret_cast<T*>(bytes_.data() + 1);
  }
  template <class T>
  std::vector<T> copy(std::size_t count) const {
    std::vector<T> values(count);
    std::copy_n(bytes_.data() + 1, count * sizeof(T), reinterpret_cast<unsigned char*>(values.data()));
    return values;
  }

 private:
  std::vector<unsigned char> bytes_;
};

// Under UndefinedBehaviorSanitizer an access that asks for alignment fails.
TEST_P(QuantizeTest, AnyAlignmentGivesTheSame) {
  for (const std::size_t count : counts()) {
    const auto values = random_floats(count, 1, 6);
    Misaligned source(values);
    std::vector<std::uint8_t> codes(count), expected(count);
    encode_fp8(kE4m3, source.data<float>(), count, 2.0f, 0.5f, codes.data());
    encode_fp8(kE4m3, values.data(), count, 2.0f, 0.5f, expected.data());
    ASSERT_EQ(codes, expected);
    const auto least = std::bit_cast<std::uint32_t>(0.5f);
    Misaligned indices(count + kSelectSlack), kept(count + kSelectSlack);
    std::vector<std::uint32_t> expected_indices(count + kSelectSlack);
    std::vector<float> expected_kept(count + kSelectSlack);
    const std::size_t found =
        select_large(source.data<float>(), count, least, 10, indices.data<std::uint32_t>(), kept.data<float>());
    ASSERT_EQ(found, select_large(values.data(), count, least, 10, expected_indices.data(), expected_kept.data()));
    expected_indices.resize(found);
    expected_kept.resize(found);
    ASSERT_EQ(indices.copy<std::uint32_t>(found), expected_indices);
    ASSERT_EQ(kept.copy<float>(found), expected_kept);
  }
}

TEST_P(QuantizeTest, SignsPackAndUnpack) {
  for (const std::size_t count : counts()) {
    auto values = random_floats(count, 1, 4);
    if (count > 2) values[1] = -0.0f;
    if (count > 2) values[2] = 0.0f;
    const std::size_t size = (count + 7) / 8;
    std::vector<std::uint8_t> packed(size + 1, kGuard);
    pack_signs(values.data(), count, packed.data());
    ASSERT_EQ(packed[size], kGuard) << count;
    std::vector<float> back(count + 1, 77);
    unpack_signs(packed.data(), count, 0.75f, back.data());
    ASSERT_EQ(back[count], 77);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(code_at(1, packed, i), std::signbit(values[i]) ? 1u : 0u);
      ASSERT_EQ(back[i], std::signbit(values[i]) ? -0.75f : 0.75f) << i << " of " << count;
    }
    if (count % 8 != 0) {
      ASSERT_EQ(packed[size - 1] >> (count % 8), 0);
    }
  }
}

TEST_P(QuantizeTest, SelectLargeFindsAllAndOnlyThose) {
  for (const std::size_t count : counts()) {
    auto values = random_floats(count, 1, 5);
    if (count > 5) values[5] = kNan;
    if (count > 7) values[7] = -kInfinity;
    for (const float bound : {0.0f, 0.5f, 0.99f, 2.0f, kInfinity}) {
      std::vector<std::uint32_t> indices(count + kSelectSlack);
      std::vector<float> kept(count + kSelectSlack);
      const std::size_t found =
          select_large(values.data(), count, std::bit_cast<std::uint32_t>(bound), 1000, indices.data(), kept.data());
      std::size_t expected = 0;
      for (std::size_t i = 0; i < count; ++i) {
        if (std::fabs(values[i]) < bound) continue;  // NaN is not less
        ASSERT_LT(expected, found);
        ASSERT_EQ(indices[expected], 1000 + i);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(kept[expected]), std::bit_cast<std::uint32_t>(values[i]));
        ++expected;
      }
      ASSERT_EQ(found, expected) << "count " << count << ", bound " << bound;
    }
  }
}

TEST_P(QuantizeTest, TheSelectedSetIsTheOneThatRuns) {
  const auto values = random_floats(4096, 1, 6);
  std::vector<std::uint8_t> packed(4096);
  note_run("nothing");
  quantize(8, values.data(), values.size(), 100, packed.data());
  // The reference notes nothing, so that the name of a vector loop is not hidden by its tail.
  EXPECT_EQ(last_run() == "nothing", GetParam() == "scalar");
}

}  // namespace
}  // namespace gradwire::kernels
