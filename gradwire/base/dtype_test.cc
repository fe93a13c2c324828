// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/dtype.h"

#include <gtest/gtest.h>

#include <complex>
#include <set>
#include <string>

#include "gradwire/base/error.h"

namespace gradwire::dtype_test {
namespace {

DType dtype_at(int index) { return static_cast<DType>(index); }

TEST(DTypeTest, ValuesAreThoseThatTravelBetweenRanks) {
  EXPECT_EQ(static_cast<int>(DType::f16), 0);
  EXPECT_EQ(static_cast<int>(DType::bf16), 1);
  EXPECT_EQ(static_cast<int>(DType::f32), 2);
  EXPECT_EQ(static_cast<int>(DType::f64), 3);
  EXPECT_EQ(static_cast<int>(DType::i8), 4);
  EXPECT_EQ(static_cast<int>(DType::u8), 5);
  EXPECT_EQ(static_cast<int>(DType::i32), 6);
  EXPECT_EQ(static_cast<int>(DType::i64), 7);
  EXPECT_EQ(static_cast<int>(DType::boolean), 8);
  EXPECT_EQ(static_cast<int>(DType::c64), 9);
  EXPECT_EQ(static_cast<int>(DType::c128), 10);
  EXPECT_EQ(kDTypeCount, 11);
}

TEST(DTypeTest, SizesAreThoseOfTheirCTypes) {
  EXPECT_EQ(size_of(DType::f16), 2U);
  EXPECT_EQ(size_of(DType::bf16), 2U);
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::f64), sizeof(double));
  EXPECT_EQ(size_of(DType::i8), sizeof(std::int8_t));
  EXPECT_EQ(size_of(DType::u8), sizeof(std::uint8_t));
  EXPECT_EQ(size_of(DType::i32), sizeof(std::int32_t));
  EXPECT_EQ(size_of(DType::i64), sizeof(std::int64_t));
  EXPECT_EQ(size_of(DType::boolean), sizeof(bool));
  EXPECT_EQ(size_of(DType::c64), sizeof(std::complex<float>));
  EXPECT_EQ(size_of(DType::c128), sizeof(std::complex<double>));
}

TEST(DTypeTest, NamesAreDistinctAndLeadBack) {
  std::set<std::string> names;
  for (int i = 0; i < kDTypeCount; ++i) {
    names.emplace(name_of(dtype_at(i)));
    EXPECT_EQ(dtype_from_name(name_of(dtype_at(i))), dtype_at(i));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kDTypeCount));
  EXPECT_EQ(name_of(static_cast<DType>(200)), "unknown dtype");
}

TEST(DTypeTest, AnUnknownNameIsRefusedWithTheRightOnes) {
  for (const char* name : {"", "float", "F32", "f32 "}) {
    try {
      dtype_from_name(name);
      ADD_FAILURE() << "'" << name << "' was taken";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      for (int i = 0; i < kDTypeCount; ++i) EXPECT_NE(text.find(name_of(dtype_at(i))), std::string::npos) << text;
    }
  }
}

TEST(DTypeTest, EveryTypeIsOfOneKind) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType dtype = dtype_at(i);
    const int kinds = is_floating(dtype) + is_integer(dtype) + is_complex(dtype) + (dtype == DType::boolean ? 1 : 0);
    EXPECT_EQ(kinds, 1) << name_of(dtype);
  }
  EXPECT_TRUE(is_floating(DType::bf16));
  EXPECT_TRUE(is_integer(DType::u8));
  EXPECT_TRUE(is_complex(DType::c64));
}

}  // namespace
}  // namespace gradwire::dtype_test
