// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Formats of f16 and bf16: halves in memory, vectors of f32 in registers. Same bits as element_internal.h. Compiled
// once for each Highway target.
//
// Highway's own conversion to bf16 is not used because it truncates, and the processors' because it flushes denormals;
// below AVX2 Highway's conversions of f16 lose denormals too.
#if defined(GRADWIRE_KERNELS_VECTOR_HALF_INTERNAL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_KERNELS_VECTOR_HALF_INTERNAL_H
#undef GRADWIRE_KERNELS_VECTOR_HALF_INTERNAL_H
#else
#define GRADWIRE_KERNELS_VECTOR_HALF_INTERNAL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace gradwire::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using SingleTag = hn::ScalableTag<float>;
using SingleBitsTag = hn::RebindToUnsigned<SingleTag>;
using HalfBitsTag = hn::Rebind<std::uint16_t, SingleTag>;  // as many lanes, half the bytes
using Single = hn::Vec<SingleTag>;
using SingleBits = hn::Vec<SingleBitsTag>;
using HalfBits = hn::Vec<HalfBitsTag>;

// The low halves of 32-bit lanes, which hold no more than 16 bits.
HWY_INLINE HalfBits take_low(SingleBits bits) { return hn::TruncateTo(HalfBitsTag(), bits); }

// Half a unit less one, and the last kept bit for ties: the carry rounds to nearest even.
template <int kShift>
HWY_INLINE SingleBits round_off(SingleBits bits) {
  const SingleBitsTag tag;
  const auto last = hn::And(hn::ShiftRight<kShift>(bits), hn::Set(tag, 1u));
  return hn::ShiftRight<kShift>(hn::Add(hn::Add(bits, hn::Set(tag, (1u << (kShift - 1)) - 1u)), last));
}

HWY_INLINE Single widen_bf16(HalfBits half) {
  return hn::BitCast(SingleTag(), hn::ShiftLeft<16>(hn::PromoteTo(SingleBitsTag(), half)));
}

HWY_INLINE HalfBits narrow_bf16(Single value) {
  const SingleBitsTag tag;
  const auto rounded = round_off<16>(hn::BitCast(tag, value));
  const auto is_nan = hn::RebindMask(tag, hn::IsNaN(value));
  return take_low(hn::IfThenElse(is_nan, hn::Set(tag, 0x7fc0u), rounded));
}

#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2  // in the order of these bits a larger one is an older processor

HWY_INLINE Single widen_f16(HalfBits half) {
  const SingleBitsTag tag;
  const SingleTag single;
  const auto bits = hn::PromoteTo(tag, half);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(tag, 0x8000u)));
  const auto magnitude = hn::And(bits, hn::Set(tag, 0x7fffu));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(tag, 112u << 23));
  // Infinity and NaN need the highest exponent; a NaN its quiet bit too.
  const auto is_special = hn::Gt(magnitude, hn::Set(tag, 0x7bffu));
  const auto is_nan = hn::Gt(magnitude, hn::Set(tag, 0x7c00u));
  const auto special =
      hn::Or(hn::Or(shifted, hn::Set(tag, 0x7f800000u)), hn::IfThenElseZero(is_nan, hn::Set(tag, 0x00400000u)));
  // Below the smallest normal number the bits are a count of 2^-24.
  const auto count = hn::ConvertTo(single, hn::BitCast(hn::RebindToSigned<SingleTag>(), magnitude));
  const auto denormal = hn::BitCast(tag, hn::Mul(count, hn::Set(single, 0x1p-24f)));
  const auto is_denormal = hn::Lt(magnitude, hn::Set(tag, 0x0400u));
  const auto finite = hn::IfThenElse(is_denormal, denormal, normal);
  return hn::BitCast(single, hn::Or(sign, hn::IfThenElse(is_special, special, finite)));
}

HWY_INLINE HalfBits narrow_f16(Single value) {
  const SingleBitsTag tag;
  const SingleTag single;
  const auto bits = hn::BitCast(tag, value);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(tag, 0x8000u));
  const auto magnitude = hn::And(bits, hn::Set(tag, 0x7fffffffu));
  const auto normal = round_off<13>(hn::Sub(magnitude, hn::Set(tag, 112u << 23)));
  const auto half = hn::Set(single, 0.5f);
  const auto denormal =
      hn::Sub(hn::BitCast(tag, hn::Add(hn::BitCast(single, magnitude), half)), hn::BitCast(tag, half));
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(tag, 0x03ffu));
  const auto nan = hn::Or(payload, hn::Set(tag, 0x7e00u));
  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(tag, 0x38800000u)), denormal, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(tag, 0x477fffffu)), hn::Set(tag, 0x7c00u), result);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(tag, 0x7f800000u)), nan, result);
  return take_low(hn::Or(sign, result));
}

#else

HWY_INLINE Single widen_f16(HalfBits half) {
  const hn::Rebind<hwy::float16_t, SingleTag> tag;
  return hn::PromoteTo(SingleTag(), hn::BitCast(tag, half));
}

HWY_INLINE HalfBits narrow_f16(Single value) {
  const hn::Rebind<hwy::float16_t, SingleTag> tag;
  return hn::BitCast(HalfBitsTag(), hn::DemoteTo(tag, value));
}

#endif

// Highway's Stream writes 16 bytes at least; where a vector of halves is shorter it would write past its end.
HWY_INLINE void stream_halves(HalfBits halves, std::uint16_t* to) {
  if constexpr (hn::MaxLanes(HalfBitsTag()) * sizeof(std::uint16_t) < 16) {
    hn::StoreU(halves, HalfBitsTag(), to);
  } else {
    hn::Stream(halves, HalfBitsTag(), to);
  }
}

struct Bf16Format {
  using Stored = std::uint16_t;
  using Tag = SingleTag;
  static HWY_INLINE Single load(const Stored* from) { return widen_bf16(hn::LoadU(HalfBitsTag(), from)); }
  static HWY_INLINE void store(Single value, Stored* to) { hn::StoreU(narrow_bf16(value), HalfBitsTag(), to); }
  static HWY_INLINE void stream(Single value, Stored* to) { stream_halves(narrow_bf16(value), to); }
};

struct F16Format {
  using Stored = std::uint16_t;
  using Tag = SingleTag;
  static HWY_INLINE Single load(const Stored* from) { return widen_f16(hn::LoadU(HalfBitsTag(), from)); }
  static HWY_INLINE void store(Single value, Stored* to) { hn::StoreU(narrow_f16(value), HalfBitsTag(), to); }
  static HWY_INLINE void stream(Single value, Stored* to) { stream_halves(narrow_f16(value), to); }
};

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
HWY_AFTER_NAMESPACE();

#endif
