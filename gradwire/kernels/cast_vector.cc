// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Vector loops for the conversions among f16, bf16 and f32, and between f32 and f64.
#include "gradwire/kernels/highway_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/kernels/cast_vector.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "gradwire/kernels/vector_half_internal.h"
#include "gradwire/kernels/vector_loop_internal.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::kernels {
namespace HWY_NAMESPACE {

template <class From, class To, bool kScaled>
HWY_NOINLINE std::size_t cast_loop(const CastCall& call, std::size_t begin, std::size_t end) {
  const SingleTag tag;
  const std::size_t lanes = hn::Lanes(tag);
  const auto* source = static_cast<const typename From::Stored*>(call.source);
  auto* destination = static_cast<typename To::Stored*>(call.destination);
  const auto factor = hn::Set(tag, static_cast<float>(call.factor));
  const auto load = [&](std::size_t at) HWY_ATTR {
    const auto value = From::load(source + at);
    if constexpr (kScaled) {
      return hn::Mul(value, factor);
    } else {
      return value;
    }
  };
  std::size_t i = begin;
  for (; end - i >= 4 * lanes; i += 4 * lanes) {
    const auto v0 = load(i);
    const auto v1 = load(i + lanes);
    const auto v2 = load(i + 2 * lanes);
    const auto v3 = load(i + 3 * lanes);
    To::store(v0, destination + i);
    To::store(v1, destination + i + lanes);
    To::store(v2, destination + i + 2 * lanes);
    To::store(v3, destination + i + 3 * lanes);
  }
  for (; end - i >= lanes; i += lanes) To::store(load(i), destination + i);
  return i;
}

template <class From, class To>
std::size_t cast_pair(const CastCall& call, std::size_t begin, std::size_t end) {
  return call.scaled ? cast_loop<From, To, true>(call, begin, end) : cast_loop<From, To, false>(call, begin, end);
}

template <class From>
std::size_t cast_from(const CastCall& call, std::size_t begin, std::size_t end) {
  switch (call.to) {
    case DType::f16:
      return cast_pair<From, F16Format>(call, begin, end);
    case DType::bf16:
      return cast_pair<From, Bf16Format>(call, begin, end);
    case DType::f32:
      return cast_pair<From, PlainFormat<float>>(call, begin, end);
    default:
      return begin;
  }
}

#if HWY_HAVE_FLOAT64
// f32 and f64 either way; a factor is applied in f64.
template <bool kWiden>
HWY_NOINLINE std::size_t cast_double(const CastCall& call, std::size_t begin, std::size_t end) {
  const hn::ScalableTag<double> wide;
  const hn::Rebind<float, decltype(wide)> narrow;
  const std::size_t lanes = hn::Lanes(wide);
  const auto factor = hn::Set(wide, call.scaled ? call.factor : 1.0);
  std::size_t i = begin;
  for (; end - i >= lanes; i += lanes) {
    if constexpr (kWiden) {
      const auto value = hn::PromoteTo(wide, hn::LoadU(narrow, static_cast<const float*>(call.source) + i));
      hn::StoreU(hn::Mul(value, factor), wide, static_cast<double*>(call.destination) + i);
    } else {
      const auto value = hn::Mul(hn::LoadU(wide, static_cast<const double*>(call.source) + i), factor);
      hn::StoreU(hn::DemoteTo(narrow, value), narrow, static_cast<float*>(call.destination) + i);
    }
  }
  return i;
}
#endif

std::size_t cast_vector(const CastCall& call, std::size_t begin, std::size_t end) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
#if HWY_HAVE_FLOAT64
  if (call.from == DType::f32 && call.to == DType::f64) return cast_double<true>(call, begin, end);
  if (call.from == DType::f64 && call.to == DType::f32) return cast_double<false>(call, begin, end);
#endif
  switch (call.from) {
    case DType::f16:
      return cast_from<F16Format>(call, begin, end);
    case DType::bf16:
      return cast_from<Bf16Format>(call, begin, end);
    case DType::f32:
      return cast_from<PlainFormat<float>>(call, begin, end);
    default:
      return begin;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

CastLoop find_cast(std::int64_t target) noexcept { return GRADWIRE_FOR_TARGET(target, cast_vector); }

}  // namespace gradwire::kernels
#endif
