// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/reduce_op.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "gradwire/base/error.h"

namespace gradwire::reduce_op_test {
namespace {

using Kind = ReduceOp::Kind;

// The table of reduce_op.h, row by row: f16 bf16 f32 f64 | i8 u8 i32 i64 | bool | c64 c128.
constexpr std::array<const char*, kReduceOpCount> kTable{
    "yyyy yyyy y yy",  // sum
    "yyyy yyyy n yy",  // avg
    "yyyy yyyy y yy",  // product
    "yyyy yyyy y nn",  // min
    "yyyy yyyy y nn",  // max
    "nnnn yyyy y nn",  // band
    "nnnn yyyy y nn",  // bor
    "nnnn yyyy y nn",  // bxor
    "yyyy nnnn n yy",  // premul_sum
};

TEST(ReduceOpTest, DefinedPairsAreThoseOfTheTable) {
  for (int op = 0; op < kReduceOpCount; ++op) {
    std::string row = kTable[op];
    std::erase(row, ' ');
    ASSERT_EQ(row.size(), static_cast<std::size_t>(kDTypeCount));
    for (int i = 0; i < kDTypeCount; ++i) {
      const ReduceOp reduce{static_cast<Kind>(op)};
      const auto dtype = static_cast<DType>(i);
      EXPECT_EQ(is_defined(reduce, dtype), row[i] == 'y') << name_of(reduce.kind) << " of " << name_of(dtype);
    }
  }
}

TEST(ReduceOpTest, RequireDefinedThrowsForTheOthersAndNamesThePair) {
  for (int op = 0; op < kReduceOpCount; ++op) {
    for (int i = 0; i < kDTypeCount; ++i) {
      const ReduceOp reduce{static_cast<Kind>(op)};
      const auto dtype = static_cast<DType>(i);
      if (is_defined(reduce, dtype)) {
        EXPECT_NO_THROW(require_defined(reduce, dtype));
        continue;
      }
      try {
        require_defined(reduce, dtype);
        ADD_FAILURE() << name_of(reduce.kind) << " of " << name_of(dtype) << " was taken";
      } catch (const InvalidArgument& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find(name_of(reduce.kind)), std::string::npos) << text;
        EXPECT_NE(text.find(name_of(dtype)), std::string::npos) << text;
      }
    }
  }
}

TEST(ReduceOpTest, NamesLeadBack) {
  for (int op = 0; op < kReduceOpCount; ++op) {
    const auto kind = static_cast<Kind>(op);
    EXPECT_EQ(reduce_op_from_name(name_of(kind)), ReduceOp{kind});
  }
  EXPECT_EQ(name_of(Kind::premul_sum), "premul_sum");
  EXPECT_EQ(name_of(static_cast<Kind>(99)), "unknown reduce op");
  EXPECT_THROW(reduce_op_from_name("mean"), InvalidArgument);
}

TEST(ReduceOpTest, TheFactorIsPartOfTheValue) {
  EXPECT_EQ(ReduceOp::premul_sum(0.5).factor, 0.5);
  EXPECT_NE(ReduceOp::premul_sum(0.5), ReduceOp::premul_sum(0.25));
  EXPECT_NE(ReduceOp::sum(), ReduceOp::avg());
  EXPECT_EQ(ReduceOp::max(), ReduceOp::max());
}

TEST(ReduceOpTest, AnUnknownKindIsDefinedForNothing) {
  for (int i = 0; i < kDTypeCount; ++i) EXPECT_FALSE(is_defined({static_cast<Kind>(77)}, static_cast<DType>(i)));
}

}  // namespace
}  // namespace gradwire::reduce_op_test
