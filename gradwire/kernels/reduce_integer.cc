// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Vector loops for integers and booleans.
#include "gradwire/kernels/highway_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/kernels/reduce_integer.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "gradwire/kernels/vector_loop_internal.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::kernels {
namespace HWY_NAMESPACE {

// Bytes that become 0 or 1 on the way in.
struct BooleanFormat : PlainFormat<std::uint8_t> {
  static HWY_INLINE hn::Vec<Tag> load(const Stored* from) {
    return hn::Min(hn::LoadU(Tag(), from), hn::Set(Tag(), std::uint8_t{1}));
  }
};

GRADWIRE_COMBINES_BY(Min, hn::Min);
GRADWIRE_COMBINES_BY(Max, hn::Max);
GRADWIRE_COMBINES_BY(And, hn::And);
GRADWIRE_COMBINES_BY(Or, hn::Or);
GRADWIRE_COMBINES_BY(Xor, hn::Xor);

using Kind = ReduceOp::Kind;

// Bits have no element boundaries, so every integer type shares the loops over bytes.
template <class Format>
std::size_t run_bits(const ReduceCall& call, Kind kind, std::size_t begin, std::size_t end, bool streamed) {
  switch (kind) {
    case Kind::band:
      return run<Format>(call, And(), begin, end, streamed);
    case Kind::bor:
      return run<Format>(call, Or(), begin, end, streamed);
    default:
      return run<Format>(call, Xor(), begin, end, streamed);
  }
}

template <class T>
std::size_t run_integer(const ReduceCall& call, std::size_t begin, std::size_t end, bool streamed) {
  // Sums and products wrap, so they are those of the unsigned type, and signed and unsigned share code.
  using Unsigned = hwy::MakeUnsigned<T>;
  switch (call.op.kind) {
    case Kind::sum:
      return run<PlainFormat<Unsigned>>(call, Sum(), begin, end, streamed);
    case Kind::min:
      return run<PlainFormat<T>>(call, Min(), begin, end, streamed);
    case Kind::max:
      return run<PlainFormat<T>>(call, Max(), begin, end, streamed);
    case Kind::product:
      // Highway multiplies neither bytes nor, on every target, 64-bit lanes.
      if constexpr (sizeof(T) == 4) {
        return run<PlainFormat<Unsigned>>(call, Product(), begin, end, streamed);
      } else {
        return begin;
      }
    case Kind::band:
    case Kind::bor:
    case Kind::bxor: {
      const std::size_t bytes = sizeof(T);
      // A vector holds whole elements, so the loop stops between two of them.
      return run_bits<PlainFormat<std::uint8_t>>(call, call.op.kind, begin * bytes, end * bytes, streamed) / bytes;
    }
    default:
      return begin;
  }
}

std::size_t run_boolean(const ReduceCall& call, std::size_t begin, std::size_t end, bool streamed) {
  switch (call.op.kind) {
    case Kind::sum:
    case Kind::max:
      return run_bits<BooleanFormat>(call, Kind::bor, begin, end, streamed);
    case Kind::product:
    case Kind::min:
      return run_bits<BooleanFormat>(call, Kind::band, begin, end, streamed);
    default:
      return run_bits<BooleanFormat>(call, call.op.kind, begin, end, streamed);
  }
}

std::size_t reduce_integer(const ReduceCall& call, std::size_t begin, std::size_t end, bool streamed) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  switch (call.dtype) {
    case DType::i8:
      return run_integer<std::int8_t>(call, begin, end, streamed);
    case DType::u8:
      return run_integer<std::uint8_t>(call, begin, end, streamed);
    case DType::i32:
      return run_integer<std::int32_t>(call, begin, end, streamed);
    case DType::i64:
      return run_integer<std::int64_t>(call, begin, end, streamed);
    default:
      return run_boolean(call, begin, end, streamed);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

ReduceLoop find_reduce_integer(std::int64_t target) noexcept { return GRADWIRE_FOR_TARGET(target, reduce_integer); }

}  // namespace gradwire::kernels
#endif
