// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Vector loops for f32 and f64, and for those operations on complex numbers that treat their two parts alike.
#include "gradwire/kernels/highway_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/kernels/reduce_float.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "gradwire/kernels/vector_float_internal.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::kernels {
namespace HWY_NAMESPACE {

// A complex array is an array of twice as many reals. Vectors hold an even number of lanes, so no element is left half
// done.
template <class T>
std::size_t run_pairs(const ReduceCall& call, std::size_t begin, std::size_t end, bool streamed) {
  if (call.op.kind == ReduceOp::Kind::product) return begin;  // mixes the parts: the scalar loop's
  return run_float<PlainFormat<T>>(call, 2 * begin, 2 * end, streamed) / 2;
}

std::size_t reduce_float(const ReduceCall& call, std::size_t begin, std::size_t end, bool streamed) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  switch (call.dtype) {
    case DType::f32:
      return run_float<PlainFormat<float>>(call, begin, end, streamed);
    case DType::c64:
      return run_pairs<float>(call, begin, end, streamed);
#if HWY_HAVE_FLOAT64
    case DType::f64:
      return run_float<PlainFormat<double>>(call, begin, end, streamed);
    case DType::c128:
      return run_pairs<double>(call, begin, end, streamed);
#endif
    default:
      return begin;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

ReduceLoop find_reduce_float(std::int64_t target) noexcept { return GRADWIRE_FOR_TARGET(target, reduce_float); }

}  // namespace gradwire::kernels
#endif
