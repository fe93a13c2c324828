// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The expected results of collectives, computed element by element without the library's kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/base/dtype.h"
#include "gradwire/base/reduce_op.h"

namespace gradwire::testing {

using Bytes = std::vector<std::byte>;

inline constexpr DType kAllDTypes[] = {DType::f16, DType::bf16, DType::f32,     DType::f64, DType::i8,  DType::u8,
                                       DType::i32, DType::i64,  DType::boolean, DType::c64, DType::c128};
inline const ReduceOp kAllOps[] = {ReduceOp::sum(), ReduceOp::avg(),  ReduceOp::product(),
                                   ReduceOp::min(), ReduceOp::max(),  ReduceOp::band(),
                                   ReduceOp::bor(), ReduceOp::bxor(), ReduceOp::premul_sum(0.7)};

// A reproducible stream of numbers (SplitMix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  // In [0, bound).
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }

 private:
  std::uint64_t state_;
};

// Returns the input of `rank`: `count` elements that depend only on the arguments. Integers take any value. Floating
// point numbers have full mantissas, so that the order of additions matters, and exponents with which no operation
// overflows on 8 ranks. Booleans include bytes other than 0 and 1.
Bytes make_input(DType dtype, std::size_t count, int rank, std::uint64_t seed);
std::vector<Bytes> make_inputs(DType dtype, std::size_t count, int ranks, std::uint64_t seed);

// Returns inputs[0] op inputs[1] op ..., in this order, rounded as ReduceOp specifies.
Bytes combine(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs);

// Returns "" if both hold the same bits, otherwise the place and the values of the first difference.
std::string difference(const std::byte* actual, const Bytes& expected, DType dtype);

// Returns element i as a double (f16, bf16, f32, f64).
double floating_at(const std::byte* data, DType dtype, std::size_t i);
// Returns the nearest value of `dtype`, ties to even; for NaN a quiet NaN.
void set_floating(std::byte* data, DType dtype, std::size_t i, double value);

}  // namespace gradwire::testing
