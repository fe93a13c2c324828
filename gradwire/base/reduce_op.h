// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reductions: how the elements of several ranks are combined.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gradwire/base/dtype.h"

namespace gradwire {

// A reduction: a kind, and for premul_sum its factor. A value type; compare with ==.
//
// Which pairs of kind and dtype are defined (anything else is refused with InvalidArgument before communication
// starts):
//
//                 f16 bf16 f32 f64   i8 u8 i32 i64   bool   c64 c128
//   sum           yes                yes (wraps)     or     yes
//   avg           yes                yes (to 0)      no     yes
//   product       yes                yes (wraps)     and    yes
//   min, max      yes (carry NaN)    yes             and/or no
//   band/bor/bxor no                 yes             yes    no
//   premul_sum    yes                no              no     yes
//
// Elements are combined in rank order: ((x0 + x1) + x2) + ... f16 and bf16 are combined in f32 and rounded once, to
// nearest even, at the end. avg divides the sum by the number of ranks;
// of integers the sum wraps, and the quotient is rounded toward zero. premul_sum multiplies every rank's element by
// `factor` first, which is rounded to f32 for f32, f16 and bf16. min and max of values of which one is NaN are NaN. A
// boolean sum is a logical or (as in PyTorch).
struct ReduceOp {
  enum class Kind : std::uint8_t {  // how two elements are combined
    sum = 0,
    avg = 1,
    product = 2,
    min = 3,
    max = 4,
    band = 5,
    bor = 6,
    bxor = 7,
    premul_sum = 8
  };

  Kind kind = Kind::sum;
  double factor = 1.0;  // premul_sum only

  static constexpr ReduceOp sum() noexcept { return {Kind::sum}; }
  static constexpr ReduceOp avg() noexcept { return {Kind::avg}; }
  static constexpr ReduceOp product() noexcept { return {Kind::product}; }
  static constexpr ReduceOp min() noexcept { return {Kind::min}; }
  static constexpr ReduceOp max() noexcept { return {Kind::max}; }
  static constexpr ReduceOp band() noexcept { return {Kind::band}; }
  static constexpr ReduceOp bor() noexcept { return {Kind::bor}; }
  static constexpr ReduceOp bxor() noexcept { return {Kind::bxor}; }
  static constexpr ReduceOp premul_sum(double factor) noexcept { return {Kind::premul_sum, factor}; }

  friend bool operator==(const ReduceOp&, const ReduceOp&) = default;
};

inline constexpr int kReduceOpCount = 9;  // the number of values of ReduceOp::Kind

// "sum", "avg", ...: the word used in messages and on command lines.
std::string_view name_of(ReduceOp::Kind kind) noexcept;

// The inverse of name_of(), with factor 1. Throws InvalidArgument for an unknown name, with the list of names.
ReduceOp reduce_op_from_name(std::string_view name);

// Returns whether the table above defines the pair.
bool is_defined(ReduceOp op, DType dtype) noexcept;

// Throws InvalidArgument, which names the pair and an alternative, unless is_defined().
void require_defined(ReduceOp op, DType dtype);

}  // namespace gradwire
