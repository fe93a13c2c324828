// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Vector loops of affine.h. Each does whole vectors and leaves the rest to the reference.
#include "gradwire/kernels/highway_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/kernels/affine_vector.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "gradwire/kernels/affine_internal.h"
#include "gradwire/kernels/dispatch_internal.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;
using ByteTag = hn::Rebind<std::uint8_t, FloatTag>;

ValueRange find_range(const float* source, std::size_t count) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  const FloatTag tag;
  const std::size_t lanes = hn::Lanes(tag);
  const auto zero = hn::Zero(tag);
  // Two of each: one would wait for itself.
  auto low0 = zero, low1 = zero, high0 = zero, high1 = zero, poison0 = zero, poison1 = zero;
  std::size_t i = 0;
  for (; count - i >= 2 * lanes; i += 2 * lanes) {
    const auto first = hn::LoadU(tag, source + i);
    const auto second = hn::LoadU(tag, source + i + lanes);
    low0 = hn::Min(low0, first);
    low1 = hn::Min(low1, second);
    high0 = hn::Max(high0, first);
    high1 = hn::Max(high1, second);
    poison0 = hn::Add(poison0, hn::Mul(first, zero));
    poison1 = hn::Add(poison1, hn::Mul(second, zero));
  }
  const ValueRange rest = affine_loops_scalar().find_range(source + i, count - i);
  return {std::min(rest.low, hn::GetLane(hn::MinOfLanes(tag, hn::Min(low0, low1)))),
          std::max(rest.high, hn::GetLane(hn::MaxOfLanes(tag, hn::Max(high0, high1)))),
          rest.poison + hn::GetLane(hn::SumOfLanes(tag, hn::Add(poison0, poison1)))};
}

void quantize_affine(const float* source, std::size_t count, AffineScale affine, std::uint8_t* codes) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  const FloatTag tag;
  const ByteTag narrow;
  const IntTag integer;
  const std::size_t lanes = hn::Lanes(tag);
  const auto scale = hn::Set(tag, affine.scale);
  const auto magic = hn::Set(tag, kRoundingMagic);
  const auto infinite = hn::Set(integer, std::bit_cast<std::int32_t>(kInfiniteSum));
  const auto zero =
      hn::Set(integer, std::bit_cast<std::int32_t>(kRoundingMagic) - static_cast<std::int32_t>(affine.zero_point));
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) {
    const auto bits = hn::BitCast(integer, hn::Add(hn::Div(hn::LoadU(tag, source + i), scale), magic));
    const auto number = hn::IfThenZeroElse(hn::Gt(bits, infinite), bits);
    // DemoteTo() takes all above 255 for 255.
    hn::StoreU(hn::DemoteTo(narrow, hn::Sub(hn::Max(number, zero), zero)), narrow, codes + i);
  }
  affine_loops_scalar().quantize(source + i, count - i, affine, codes + i);
}

void average_affine(std::span<const AffineCodes> parts, std::size_t begin, std::size_t end, float divisor,
                    float* destination) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  const FloatTag tag;
  const ByteTag narrow;
  const IntTag integer;
  const std::size_t lanes = hn::Lanes(tag);
  const auto by = hn::Set(tag, divisor);
  std::size_t i = begin;
  for (; end - i >= lanes; i += lanes) {
    auto sum = hn::Zero(tag);
    for (const AffineCodes& part : parts) {
      const auto code = hn::ConvertTo(tag, hn::PromoteTo(integer, hn::LoadU(narrow, part.codes + i)));
      const auto offset = hn::Sub(code, hn::Set(tag, part.affine.zero_point));
      sum = hn::Add(sum, hn::Mul(hn::Set(tag, part.affine.scale), offset));
    }
    hn::StoreU(hn::Div(sum, by), tag, destination + i);
  }
  affine_loops_scalar().average(parts, i, end, divisor, destination);
}

const AffineLoops* affine_loops() noexcept {
  static constexpr AffineLoops kLoops{&find_range, &quantize_affine, &average_affine};
  return &kLoops;
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

const AffineLoops* find_affine_loops(std::int64_t target) noexcept {
  return loops_of<AffineLoops>(GRADWIRE_FOR_TARGET(target, affine_loops));
}

}  // namespace gradwire::kernels
#endif
