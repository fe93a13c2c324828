// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How reduce(), cast() and copy_from_peer() reach the loops of one instruction set.
//
// A loop may do less than it is asked for: it handles whole vectors from the front and returns where it stopped. The
// rest, and every pair it has no code for, is done by the scalar loop, whose bits are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "gradwire/base/dtype.h"
#include "gradwire/base/reduce_op.h"

namespace gradwire::kernels {

struct ReduceCall {
  DType dtype;
  ReduceOp op;
  std::span<const void* const> sources;
  std::span<void* const> destinations;
};

// Reduces elements [begin, end) and returns the index of the first one it left, `begin` at the least. With `streamed`,
// element `begin` of every destination is aligned to kStreamAlignment.
using ReduceLoop = std::size_t (*)(const ReduceCall& call, std::size_t begin, std::size_t end, bool streamed) noexcept;

inline constexpr std::size_t kStreamAlignment = 64;

inline constexpr std::size_t kLine = 64;         // bytes of a cache line
inline constexpr std::size_t kPageBytes = 4096;  // within which a processor fetches ahead

struct CastCall {
  DType from;
  const void* source;
  DType to;
  void* destination;
  bool scaled;  // multiply by `factor`
  double factor;
};

// Converts elements [begin, end) and returns the index of the first one it left.
using CastLoop = std::size_t (*)(const CastCall& call, std::size_t begin, std::size_t end) noexcept;

// Copies bytes [begin, end), between memory that does not overlap, and returns the first one that it left. With
// `streamed`, `to + begin` is aligned to kStreamAlignment. A loop does at least whole groups of kCopyFrom bytes.
using CopyLoop = std::size_t (*)(void* to, const void* from, std::size_t begin, std::size_t end,
                                 bool streamed) noexcept;

inline constexpr std::size_t kCopyFrom = 4 * kPageBytes;

struct QuantizeLoops;  // quantize_internal.h
struct MatrixLoops;    // matrix_internal.h
struct AffineLoops;    // affine_internal.h

// One instruction set.
struct KernelSet {
  std::string name;
  ReduceLoop reduce_float;    // f32, f64, c64, c128
  ReduceLoop reduce_half;     // f16, bf16
  ReduceLoop reduce_integer;  // i8, u8, i32, i64, boolean
  CastLoop cast;
  CopyLoop copy;
  const QuantizeLoops* quantize;
  const MatrixLoops* matrix;
  const AffineLoops* affine;
};

// The set in use. Unlike selected() it does not throw: with a GRADWIRE_KERNELS that cannot be honoured it is the best
// set.
const KernelSet& active() noexcept;

// The reference loops; they do everything they are asked for, but for copy_scalar(), which leaves all to copy_bytes().
std::size_t reduce_scalar(const ReduceCall& call, std::size_t begin, std::size_t end, bool streamed) noexcept;
std::size_t cast_scalar(const CastCall& call, std::size_t begin, std::size_t end) noexcept;
std::size_t copy_scalar(void* to, const void* from, std::size_t begin, std::size_t end, bool streamed) noexcept;

// Each loop notes the instruction set that it was compiled for (Highway's name, a string that lives for ever); a test
// reads it back. One note for each thread: a vector loop and the scalar loop for its rest change it with each call, so
// threads would fetch a common one from one another.
void note_run(const char* compiled_for) noexcept;
std::string_view last_run() noexcept;

// The vector loops of one Highway target (a HWY_* bit), null where this build has none.
ReduceLoop find_reduce_float(std::int64_t target) noexcept;
ReduceLoop find_reduce_half(std::int64_t target) noexcept;
ReduceLoop find_reduce_integer(std::int64_t target) noexcept;
CastLoop find_cast(std::int64_t target) noexcept;
CopyLoop find_copy(std::int64_t target) noexcept;

}  // namespace gradwire::kernels
