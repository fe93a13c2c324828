// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The operations on floating-point vectors, for any Format whose values are floats. Compiled once for each Highway
// target.
#if defined(GRADWIRE_KERNELS_VECTOR_FLOAT_INTERNAL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_KERNELS_VECTOR_FLOAT_INTERNAL_H
#undef GRADWIRE_KERNELS_VECTOR_FLOAT_INTERNAL_H
#else
#define GRADWIRE_KERNELS_VECTOR_FLOAT_INTERNAL_H
#endif

#include <bit>

#include "gradwire/kernels/vector_loop_internal.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::kernels {
namespace HWY_NAMESPACE {

struct Average : Sum {
  explicit Average(std::size_t number) : count(static_cast<int>(number)) {}
  template <class Tag, class V>
  HWY_INLINE V leave(Tag tag, V value) const {
    return hn::Div(value, hn::Set(tag, static_cast<hn::TFromD<Tag>>(count)));
  }
  int count;
};

// The average of a power of two: the reciprocal is exact, so multiplying by it rounds like dividing, at a fraction of
// the time.
struct ScaledAverage : Average {
  using Average::Average;
  template <class Tag, class V>
  HWY_INLINE V leave(Tag tag, V value) const {
    using T = hn::TFromD<Tag>;
    return hn::Mul(value, hn::Set(tag, T{1} / static_cast<T>(count)));
  }
};

struct PremulSum : Sum {
  explicit PremulSum(double premul) : factor(premul) {}
  template <class Tag, class V>
  HWY_INLINE V enter(Tag tag, V value) const {
    return hn::Mul(value, hn::Set(tag, static_cast<hn::TFromD<Tag>>(factor)));
  }
  double factor;
};

// Not hn::Min: what the processors' own do with NaN and with zeros of both signs differs. (And not hn::Ne to find a
// NaN: in Highway 1.0.3 it is false for NaN on AVX2 and AVX-512.)
struct Min : Sum {
  template <class Tag, class V>
  HWY_INLINE V combine(Tag, V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a);
  }
};
struct Max : Sum {
  template <class Tag, class V>
  HWY_INLINE V combine(Tag, V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(b)), b, a);
  }
};

template <class Format>
std::size_t run_float(const ReduceCall& call, std::size_t begin, std::size_t end, bool streamed) {
  using Kind = ReduceOp::Kind;
  switch (call.op.kind) {
    case Kind::sum:
      return run_hot<Format>(call, Sum(), begin, end, streamed);
    case Kind::avg:
      if (std::has_single_bit(call.sources.size())) {
        return run_hot<Format>(call, ScaledAverage(call.sources.size()), begin, end, streamed);
      }
      return run<Format>(call, Average(call.sources.size()), begin, end, streamed);
    case Kind::product:
      return run<Format>(call, Product(), begin, end, streamed);
    case Kind::min:
      return run<Format>(call, Min(), begin, end, streamed);
    case Kind::max:
      return run<Format>(call, Max(), begin, end, streamed);
    case Kind::premul_sum:
      return run_hot<Format>(call, PremulSum(call.op.factor), begin, end, streamed);
    default:
      return begin;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
HWY_AFTER_NAMESPACE();

#endif
