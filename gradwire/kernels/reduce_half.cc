// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Vector loops for f16 and bf16: every operation in f32, one rounding at the end.
#include "gradwire/kernels/highway_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/kernels/reduce_half.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "gradwire/kernels/vector_float_internal.h"
#include "gradwire/kernels/vector_half_internal.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::kernels {
namespace HWY_NAMESPACE {

std::size_t reduce_half(const ReduceCall& call, std::size_t begin, std::size_t end, bool streamed) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  return call.dtype == DType::bf16 ? run_float<Bf16Format>(call, begin, end, streamed)
                                   : run_float<F16Format>(call, begin, end, streamed);
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

ReduceLoop find_reduce_half(std::int64_t target) noexcept { return GRADWIRE_FOR_TARGET(target, reduce_half); }

}  // namespace gradwire::kernels
#endif
