// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// cast() and cast_scaled() against the oracle, for every set of kernels that this processor can run.
#include "gradwire/kernels/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <numeric>

#include "gradwire/kernels/dispatch.h"
#include "gradwire/kernels/oracle_internal.h"

namespace gradwire::kernels {
namespace {

using oracle::HalfType;

constexpr DType kFloats[] = {DType::f16, DType::bf16, DType::f32, DType::f64};

const HalfType& half_type(DType dtype) { return dtype == DType::f16 ? HalfType::f16() : HalfType::bf16(); }

// The numeric value of a floating element, and the element nearest to a value.
double decode(DType dtype, const std::uint8_t* at) { return oracle::read_number(dtype, at).real; }
void encode(DType dtype, double value, std::uint8_t* at) { oracle::write_number(dtype, {value, 0}, at); }

std::vector<std::uint8_t> expected_cast(DType from, const std::vector<std::uint8_t>& source, DType to) {
  const std::size_t count = source.size() / size_of(from);
  std::vector<std::uint8_t> out(count * size_of(to));
  for (std::size_t i = 0; i < count; ++i) {
    encode(to, decode(from, source.data() + i * size_of(from)), out.data() + i * size_of(to));
  }
  return out;
}

// The index of the first element that cast() gets wrong, or the count.
std::size_t first_wrong(DType from, const std::vector<std::uint8_t>& source, DType to,
                        const std::vector<std::uint8_t>& expected) {
  const std::size_t count = source.size() / size_of(from);
  std::vector<std::uint8_t> out(count * size_of(to));
  cast(from, source.data(), to, out.data(), count);
  return oracle::first_difference(to, out.data(), expected.data(), count);
}

template <class Bits>
std::vector<std::uint8_t> bytes_of(const std::vector<Bits>& values) {
  std::vector<std::uint8_t> bytes(values.size() * sizeof(Bits));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class CastTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { select(GetParam()); }
  void TearDown() override { select(""); }
};

INSTANTIATE_TEST_SUITE_P(Kernels, CastTest, testing::ValuesIn(available()),
                         [](const auto& instance) { return instance.param; });

TEST_P(CastTest, EveryHalfToEveryType) {
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  const auto source = bytes_of(all);
  for (const DType from : {DType::f16, DType::bf16}) {
    for (const DType to : kFloats) {
      if (from == to) continue;
      EXPECT_EQ(first_wrong(from, source, to, expected_cast(from, source, to)), all.size())
          << name_of(from) << " to " << name_of(to);
    }
  }
}

TEST_P(CastTest, EveryHalfComesBackFromF32) {
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  for (const DType half : {DType::f16, DType::bf16}) {
    for (const DType wide : {DType::f32, DType::f64}) {
      std::vector<std::uint8_t> between(all.size() * size_of(wide));
      std::vector<std::uint16_t> back(all.size());
      cast(half, all.data(), wide, between.data(), all.size());
      cast(wide, between.data(), half, back.data(), all.size());
      EXPECT_EQ(oracle::first_difference(half, back.data(), all.data(), all.size()), all.size()) << name_of(half);
    }
  }
}

// Every number of the half type, the halfway point to the next, and the closest f32 on either side of both.
TEST_P(CastTest, F32AroundEveryHalfwayPoint) {
  for (const DType to : {DType::f16, DType::bf16}) {
    std::vector<std::uint32_t> values;
    for (std::uint32_t bits = 0; bits < 65535; ++bits) {
      const double low = half_type(to).decode(static_cast<std::uint16_t>(bits));
      const double high = half_type(to).decode(static_cast<std::uint16_t>(bits + 1));
      for (const double value : {low, (low + high) / 2}) {
        const auto around = std::bit_cast<std::uint32_t>(static_cast<float>(value));
        for (const std::uint32_t pattern : {around - 1, around, around + 1}) values.push_back(pattern);
      }
    }
    // Around the threshold of overflow, and NaN of all kinds.
    for (const std::uint32_t pattern : {0x477fefffu, 0x477ff000u, 0x477fffffu, 0x47800000u, 0x7f7f7fffu, 0x7f7f8000u,
                                        0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7f808000u, 0x7fbfffffu, 0x7fffffffu}) {
      values.push_back(pattern);
      values.push_back(pattern | 0x80000000u);
    }
    const auto source = bytes_of(values);
    const std::size_t wrong = first_wrong(DType::f32, source, to, expected_cast(DType::f32, source, to));
    EXPECT_EQ(wrong, values.size()) << name_of(to) << " of bits " << std::hex << values[wrong % values.size()];
  }
}

TEST_P(CastTest, TenMillionRandomBitPatterns) {
  static const auto source = [] {
    std::mt19937 random(1);
    std::vector<std::uint32_t> values(10'000'000);
    for (auto& value : values) value = static_cast<std::uint32_t>(random());
    return bytes_of(values);
  }();
  static const auto as_f16 = expected_cast(DType::f32, source, DType::f16);
  static const auto as_bf16 = expected_cast(DType::f32, source, DType::bf16);
  EXPECT_EQ(first_wrong(DType::f32, source, DType::f16, as_f16), source.size() / 4);
  EXPECT_EQ(first_wrong(DType::f32, source, DType::bf16, as_bf16), source.size() / 4);
}

// f64 to a half type rounds once: going through f32 would round these twice and get them wrong.
TEST_P(CastTest, F64RoundsOnce) {
  for (const DType to : {DType::f16, DType::bf16, DType::f32}) {
    std::vector<double> values;
    std::mt19937_64 random(2);
    for (int i = 0; i < 20000; ++i) {
      const auto bits = static_cast<std::uint16_t>(random());
      double low = 0;
      double high = 0;
      if (to == DType::f32) {
        const float single = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0x7fffffffu);
        if (!std::isfinite(single)) continue;
        low = single;
        high = std::nextafter(single, 2 * single + 1);
      } else {
        low = half_type(to).decode(bits);
        high = half_type(to).decode(static_cast<std::uint16_t>(bits + 1));
      }
      const double middle = (low + high) / 2;
      for (const double value : {low, middle, std::nextafter(middle, low), std::nextafter(middle, high)})
        values.push_back(value);
      values.push_back(std::bit_cast<double>(random()));
    }
    const auto source = bytes_of(values);
    EXPECT_EQ(first_wrong(DType::f64, source, to, expected_cast(DType::f64, source, to)), values.size()) << name_of(to);
  }
}

TEST_P(CastTest, ScalesInF32AndInF64BesideAnF64) {
  for (const double factor : {0.5, 1.0 / 3.0, -3e4, 1e-6}) {
    for (const DType from : kFloats) {
      const std::size_t count = 4099;
      const auto source = oracle::random_elements(from, count, 3);
      for (const DType to : kFloats) {
        const oracle::Arithmetic math{from != DType::f64 && to != DType::f64};
        std::vector<std::uint8_t> expected(count * size_of(to));
        for (std::size_t i = 0; i < count; ++i) {
          const double value = decode(from, source.data() + i * size_of(from));
          encode(to, math.multiply(value, math.rounded(factor)), expected.data() + i * size_of(to));
        }
        std::vector<std::uint8_t> out(expected.size());
        cast_scaled(from, source.data(), to, out.data(), count, factor);
        EXPECT_EQ(oracle::first_difference(to, out.data(), expected.data(), count), count)
            << name_of(from) << " to " << name_of(to) << " times " << factor;
      }
    }
  }
}

TEST_P(CastTest, EdgeCountsAndMisalignmentsStayWithinTheDestination) {
  for (const DType from : kFloats) {
    for (const DType to : kFloats) {
      const auto source = oracle::random_elements(from, 260, 4);
      const auto expected = from == to ? source : expected_cast(from, source, to);
      for (std::size_t count = 0; count <= 260; ++count) {
        const std::size_t offset = count % 64;
        std::vector<std::uint8_t> shifted(offset + source.size());
        std::copy(source.begin(), source.end(), shifted.begin() + static_cast<long>(offset));
        std::vector<std::uint8_t> out(offset + count * size_of(to) + 64, 0xa5);
        cast(from, shifted.data() + offset, to, out.data() + offset, count);
        ASSERT_EQ(oracle::first_difference(to, out.data() + offset, expected.data(), count), count);
        for (std::size_t i = 0; i < out.size(); ++i) {
          const bool inside = i >= offset && i < offset + count * size_of(to);
          ASSERT_TRUE(inside || out[i] == 0xa5) << name_of(from) << " to " << name_of(to) << ", count " << count;
        }
      }
    }
  }
}

TEST_P(CastTest, TypesOfOneSizeConvertInPlace) {
  auto memory = oracle::random_elements(DType::f16, 1003, 5);
  const auto expected = expected_cast(DType::f16, memory, DType::bf16);
  cast(DType::f16, memory.data(), DType::bf16, memory.data(), 1003);
  EXPECT_EQ(oracle::first_difference(DType::bf16, memory.data(), expected.data(), 1003), 1003u);
}

TEST_P(CastTest, NaNComesOutQuiet) {
  const std::uint32_t signalling = 0x7f800001u;
  std::vector<std::uint32_t> source(40, signalling);
  std::vector<std::uint16_t> half(40);
  cast(DType::f32, source.data(), DType::f16, half.data(), 40);
  for (const std::uint16_t bits : half) EXPECT_EQ(bits & 0x7e00u, 0x7e00u);
  cast(DType::f32, source.data(), DType::bf16, half.data(), 40);
  for (const std::uint16_t bits : half) EXPECT_EQ(bits & 0x7fc0u, 0x7fc0u);
}

}  // namespace
}  // namespace gradwire::kernels
