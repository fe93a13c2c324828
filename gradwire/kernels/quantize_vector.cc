// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Vector loops of quantize.h. Each does whole vectors and leaves the rest to the reference.
#include "gradwire/kernels/highway_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/kernels/quantize_vector.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "gradwire/kernels/dispatch_internal.h"
#include "gradwire/kernels/element_internal.h"
#include "gradwire/kernels/quantize_internal.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using IntTag = hn::RebindToSigned<FloatTag>;
using ByteTag = hn::Rebind<std::uint8_t, FloatTag>;

HWY_INLINE hn::Vec<WordTag> load_magnitude(const float* source) {
  const WordTag tag;
  return hn::And(hn::BitCast(tag, hn::LoadU(FloatTag(), source)), hn::Set(tag, 0x7fffffffu));
}

float max_magnitude(const float* source, std::size_t count) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  const WordTag tag;
  const std::size_t lanes = hn::Lanes(tag);
  auto largest = hn::Zero(tag);
  auto other = hn::Zero(tag);
  std::size_t i = 0;
  for (; count - i >= 2 * lanes; i += 2 * lanes) {
    largest = hn::Max(largest, load_magnitude(source + i));
    other = hn::Max(other, load_magnitude(source + i + lanes));
  }
  for (; count - i >= lanes; i += lanes) largest = hn::Max(largest, load_magnitude(source + i));
  const std::uint32_t front = hn::GetLane(hn::MaxOfLanes(tag, hn::Max(largest, other)));
  const float rest = quantize_loops_scalar().max_magnitude(source + i, count - i);
  return std::bit_cast<float>(std::max(front, std::bit_cast<std::uint32_t>(rest)));
}

float sum_magnitudes(const float* source, std::size_t count) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  // The partial sums are lanes of up to four vectors; with another number of lanes than that the reference does it all.
  const hn::CappedTag<float, kPartialSums> tag;
  const std::size_t lanes = hn::Lanes(tag);
  if (lanes * 4 < kPartialSums) return quantize_loops_scalar().sum_magnitudes(source, count);
  const auto magnitude = [&](std::size_t at) HWY_ATTR { return hn::Abs(hn::LoadU(tag, source + at)); };
  auto sum0 = hn::Zero(tag);
  auto sum1 = sum0;
  auto sum2 = sum0;
  auto sum3 = sum0;
  std::size_t i = 0;
  for (; count - i >= kPartialSums; i += kPartialSums) {
    sum0 = hn::Add(sum0, magnitude(i));
    if (lanes < kPartialSums) sum1 = hn::Add(sum1, magnitude(i + lanes));
    if (2 * lanes < kPartialSums) {
      sum2 = hn::Add(sum2, magnitude(i + 2 * lanes));
      sum3 = hn::Add(sum3, magnitude(i + 3 * lanes));
    }
  }
  float partial[4 * kPartialSums];
  hn::StoreU(sum0, tag, partial);
  hn::StoreU(sum1, tag, partial + lanes);
  hn::StoreU(sum2, tag, partial + 2 * lanes);
  hn::StoreU(sum3, tag, partial + 3 * lanes);
  float sixteen[kPartialSums];
  std::copy_n(partial, kPartialSums, sixteen);
  return finish_sum(sixteen, source + i, count - i);
}

void to_codes(int bits, const float* source, std::size_t count, float inverse_scale, std::uint8_t* bytes) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  const FloatTag tag;
  const ByteTag narrow;
  const IntTag integer;
  const std::size_t lanes = hn::Lanes(tag);
  const auto inverse = hn::Set(tag, inverse_scale);
  const auto offset = hn::Set(integer, 1 << (bits - 1));
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) {
    const auto rounded = hn::NearestInt(hn::Mul(hn::LoadU(tag, source + i), inverse));
    hn::StoreU(hn::DemoteTo(narrow, hn::Add(rounded, offset)), narrow, bytes + i);
  }
  quantize_loops_scalar().to_codes(bits, source + i, count - i, inverse_scale, bytes + i);
}

// Philox for as many blocks at once as there are lanes; word c of a block is in vector c.
class PhiloxVectors {
 public:
  using Word = hn::Vec<WordTag>;

  explicit PhiloxVectors(const PhiloxKey& key) : key_(key) {}

  // The numbers of the blocks from `n` on, in their order: 4 Lanes() of them. The low half of n + Lanes() must not
  // wrap.
  HWY_INLINE void blocks(std::uint64_t n, std::uint32_t* numbers) const {
    const WordTag tag;
    auto word0 = hn::Add(hn::Iota(tag, 0u), hn::Set(tag, static_cast<std::uint32_t>(n)));
    auto word1 = hn::Set(tag, static_cast<std::uint32_t>(n >> 32));
    auto word2 = hn::Zero(tag);
    auto word3 = hn::Zero(tag);
    PhiloxKey key = key_;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const Product left = multiply(word0, kPhiloxFactor0);
      const Product right = multiply(word2, kPhiloxFactor1);
      word0 = hn::Xor(hn::Xor(right.high, word1), hn::Set(tag, key[0]));
      word1 = right.low;
      word2 = hn::Xor(hn::Xor(left.high, word3), hn::Set(tag, key[1]));
      word3 = left.low;
      key[0] += kPhiloxStep0;
      key[1] += kPhiloxStep1;
    }
    hn::StoreInterleaved4(word0, word1, word2, word3, tag, numbers);
  }

 private:
  struct Product {
    Word high;
    Word low;
  };
  // There are 32-bit products of every other lane only, 64 bits wide.
  static HWY_INLINE Product multiply(Word word, std::uint32_t factor) {
    const WordTag tag;
    const hn::Repartition<std::uint64_t, WordTag> wide;
    const auto factors = hn::Set(tag, factor);
    const auto even = hn::MulEven(word, factors);
    const auto odd = hn::MulEven(hn::BitCast(tag, hn::ShiftRight<32>(hn::BitCast(wide, word))), factors);
    return {hn::OddEven(hn::BitCast(tag, odd), hn::BitCast(tag, hn::ShiftRight<32>(even))),
            hn::OddEven(hn::BitCast(tag, hn::ShiftLeft<32>(odd)), hn::BitCast(tag, even))};
  }

  PhiloxKey key_;
};

void to_codes_stochastic(int bits, const float* source, std::size_t count, float inverse_scale, const PhiloxKey& key,
                         std::uint64_t first, std::uint8_t* bytes) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  const FloatTag tag;
  const WordTag word;
  const IntTag integer;
  const ByteTag narrow;
  const std::size_t lanes = hn::Lanes(tag);
  std::size_t i = 0;
  constexpr std::size_t kMostLanes = 64;
  if (lanes >= 2 && lanes <= kMostLanes) {
    const PhiloxVectors random(key);
    const auto inverse = hn::Set(tag, inverse_scale);
    const auto offset = hn::Set(integer, 1 << (bits - 1));
    const auto levels = hn::Set(tag, static_cast<float>((1 << (bits - 1)) - 1));
    const auto unit = hn::Set(tag, 0x1p-24f);
    HWY_ALIGN std::uint32_t numbers[4 * kMostLanes];
    for (; count - i >= 4 * lanes; i += 4 * lanes) {
      const std::uint64_t block = (first + i) / 4;
      if (static_cast<std::uint32_t>(block) > 0xffffffffu - lanes) break;
      random.blocks(block, numbers);
      for (std::size_t j = 0; j < 4 * lanes; j += lanes) {
        const auto high = hn::BitCast(integer, hn::ShiftRight<8>(hn::Load(word, numbers + j)));
        const auto uniform = hn::Mul(hn::ConvertTo(tag, high), unit);
        const auto rounded = hn::Floor(hn::Add(hn::Mul(hn::LoadU(tag, source + i + j), inverse), uniform));
        const auto code = hn::ConvertTo(integer, hn::Min(hn::Max(rounded, hn::Neg(levels)), levels));
        hn::StoreU(hn::DemoteTo(narrow, hn::Add(code, offset)), narrow, bytes + i + j);
      }
    }
  }
  quantize_loops_scalar().to_codes_stochastic(bits, source + i, count - i, inverse_scale, key, first + i, bytes + i);
}

void from_codes(int bits, const std::uint8_t* bytes, std::size_t count, float scale, float* destination) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  const FloatTag tag;
  const ByteTag narrow;
  const IntTag integer;
  const std::size_t lanes = hn::Lanes(tag);
  const auto factor = hn::Set(tag, scale);
  const auto offset = hn::Set(integer, 1 << (bits - 1));
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) {
    const auto code = hn::PromoteTo(integer, hn::LoadU(narrow, bytes + i));
    hn::StoreU(hn::Mul(hn::ConvertTo(tag, hn::Sub(code, offset)), factor), tag, destination + i);
  }
  quantize_loops_scalar().from_codes(bits, bytes + i, count - i, scale, destination + i);
}

// The same source as the reference's, compiled for this target.
void pack(int bits, const std::uint8_t* bytes, std::size_t groups, std::uint8_t* codes) noexcept {
  if (bits == 4) {
    for (std::size_t group = 0; group < groups; ++group) {
      store_element(codes, group, static_cast<std::uint32_t>(squeeze4(load_element<std::uint64_t>(bytes, group))));
    }
  } else {
    for (std::size_t group = 0; group < groups; ++group) {
      store_element(codes, group, static_cast<std::uint16_t>(squeeze2(load_element<std::uint64_t>(bytes, group))));
    }
  }
}

void unpack(int bits, const std::uint8_t* codes, std::size_t groups, std::uint8_t* bytes) noexcept {
  if (bits == 4) {
    for (std::size_t group = 0; group < groups; ++group) {
      store_element(bytes, group, spread4(load_element<std::uint32_t>(codes, group)));
    }
  } else {
    for (std::size_t group = 0; group < groups; ++group) {
      store_element(bytes, group, spread2(load_element<std::uint16_t>(codes, group)));
    }
  }
}

void encode_fp8(const Fp8Layout& layout, const float* source, std::size_t count, float first_factor,
                float second_factor, std::uint8_t* codes) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  const FloatTag tag;
  const WordTag word;
  const IntTag integer;
  const ByteTag narrow;
  const Fp8Bits constants(layout);
  const std::size_t lanes = hn::Lanes(tag);
  const auto infinity = hn::Set(integer, 0x7f800000);
  const auto smallest_normal = hn::Set(integer, static_cast<std::int32_t>(constants.smallest_normal));
  const auto magic = hn::Set(word, constants.magic);
  // The rest of what is added before the shift.
  const auto rounding = hn::Set(word, constants.below_half - constants.rebias);
  const auto code_of = [&](std::size_t at) HWY_ATTR {
    const auto product =
        hn::Mul(hn::Mul(hn::LoadU(tag, source + at), hn::Set(tag, first_factor)), hn::Set(tag, second_factor));
    const auto bits = hn::BitCast(word, product);
    const auto magnitude = hn::And(bits, hn::Set(word, 0x7fffffffu));
    const auto last = hn::And(hn::ShiftRightSame(magnitude, constants.dropped), hn::Set(word, 1u));
    const auto normal =
        hn::BitCast(integer, hn::ShiftRightSame(hn::Add(hn::Add(magnitude, rounding), last), constants.dropped));
    const auto sum = hn::Add(hn::BitCast(tag, magnitude), hn::BitCast(tag, magic));
    const auto denormal = hn::BitCast(integer, hn::Sub(hn::BitCast(word, sum), magic));
    // Compared as signed numbers, which more processors can do; no magnitude has the highest bit.
    const auto compared = hn::BitCast(integer, magnitude);
    auto code = hn::IfThenElse(hn::Lt(compared, smallest_normal), denormal, normal);
    code = hn::IfThenElse(hn::Eq(compared, infinity), hn::Set(integer, layout.infinity), code);
    code = hn::IfThenElse(hn::Gt(compared, infinity), hn::Set(integer, layout.nan), code);
    return hn::Or(code, hn::BitCast(integer, hn::ShiftLeft<7>(hn::ShiftRight<31>(bits))));
  };
  std::size_t i = 0;
  for (; count - i >= lanes; i += lanes) hn::StoreU(hn::DemoteTo(narrow, code_of(i)), narrow, codes + i);
  quantize_loops_scalar().encode_fp8(layout, source + i, count - i, first_factor, second_factor, codes + i);
}

void pack_signs(const float* source, std::size_t count, std::uint8_t* bits) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  const IntTag tag;
  const std::size_t lanes = hn::Lanes(tag);
  std::size_t i = 0;
  const auto negative = [&](std::size_t at) HWY_ATTR {
    return hn::Lt(hn::BitCast(tag, hn::LoadU(FloatTag(), source + at)), hn::Zero(tag));
  };
  if (lanes >= 8) {
    for (; count - i >= lanes; i += lanes) hn::StoreMaskBits(tag, negative(i), bits + i / 8);
  } else if (lanes == 4) {
    for (; count - i >= 8; i += 8) {
      std::uint8_t low = 0;
      std::uint8_t high = 0;
      hn::StoreMaskBits(tag, negative(i), &low);
      hn::StoreMaskBits(tag, negative(i + 4), &high);
      bits[i / 8] = static_cast<std::uint8_t>(low | high << 4);
    }
  }
  quantize_loops_scalar().pack_signs(source + i, count - i, bits + i / 8);
}

void unpack_signs(const std::uint8_t* bits, std::size_t count, float scale, float* destination) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  const FloatTag tag;
  const WordTag word;
  const std::size_t lanes = hn::Lanes(tag);
  std::size_t i = 0;
  if (lanes >= 4 && lanes <= 32) {
    // Every lane shifts its own bit of the same word up to the sign. Eight bits at least, so that steps are whole
    // bytes.
    const std::size_t step = std::max<std::size_t>(lanes, 8);
    const auto magnitude = hn::Set(word, std::bit_cast<std::uint32_t>(scale));
    const auto shift = hn::Iota(word, 0u);
    const auto one = hn::Set(word, 1u);
    const auto select = hn::Shl(one, shift);
    for (; count - i >= step; i += step) {
      std::uint32_t packed = 0;
      for (std::size_t byte = 0; byte < step / 8; ++byte) packed |= std::uint32_t{bits[i / 8 + byte]} << (8 * byte);
      for (std::size_t j = 0; j < step; j += lanes) {
        const auto is_negative = hn::Ne(hn::And(hn::Set(word, packed >> j), select), hn::Zero(word));
        const auto sign = hn::IfThenElseZero(is_negative, hn::Set(word, 0x80000000u));
        hn::StoreU(hn::BitCast(tag, hn::Xor(magnitude, sign)), tag, destination + i + j);
      }
    }
  }
  quantize_loops_scalar().unpack_signs(bits + i / 8, count - i, scale, destination + i);
}

std::size_t select_large(const float* source, std::size_t count, std::uint32_t least, std::uint32_t first_index,
                         std::uint32_t* indices, float* values) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  const WordTag tag;
  const IntTag integer;
  const std::size_t lanes = hn::Lanes(tag);
  std::size_t found = 0;
  std::size_t i = 0;
  if (lanes <= 32 && least > 0) {  // 32 < kSelectSlack: a store of a whole vector stays inside
    // Magnitudes have no sign bit, so signed comparison, which every target has, orders them.
    const auto bound = hn::Set(integer, static_cast<std::int32_t>(least - 1));
    const auto magnitude = [&](std::size_t at) HWY_ATTR { return hn::BitCast(integer, load_magnitude(source + at)); };
    const auto take = [&](std::size_t at) HWY_ATTR {
      const auto is_large = hn::Gt(magnitude(at), bound);
      const auto index = hn::Iota(integer, static_cast<std::int32_t>(first_index + static_cast<std::uint32_t>(at)));
      const auto value = hn::LoadU(FloatTag(), source + at);
      hn::StoreU(hn::Compress(hn::BitCast(tag, index), hn::RebindMask(tag, is_large)), tag, indices + found);
      hn::StoreU(hn::Compress(value, hn::RebindMask(FloatTag(), is_large)), FloatTag(), values + found);
      found += hn::CountTrue(integer, is_large);
    };
    for (; count - i >= 4 * lanes; i += 4 * lanes) {
      // Large ones are rare: one test for four vectors.
      const auto front = hn::Max(magnitude(i), magnitude(i + lanes));
      const auto back = hn::Max(magnitude(i + 2 * lanes), magnitude(i + 3 * lanes));
      if (hn::AllFalse(integer, hn::Gt(hn::Max(front, back), bound))) continue;
      for (std::size_t j = 0; j < 4 * lanes; j += lanes) take(i + j);
    }
    for (; count - i >= lanes; i += lanes) take(i);
  }
  return found + quantize_loops_scalar().select_large(source + i, count - i, least,
                                                      first_index + static_cast<std::uint32_t>(i), indices + found,
                                                      values + found);
}

const QuantizeLoops* quantize_loops() noexcept {
  static constexpr QuantizeLoops kLoops{&max_magnitude, &sum_magnitudes, &to_codes,    &to_codes_stochastic,
                                        &from_codes,    &pack,           &unpack,      &encode_fp8,
                                        &pack_signs,    &unpack_signs,   &select_large};
  return &kLoops;
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradwire::kernels {

const QuantizeLoops* find_quantize_loops(std::int64_t target) noexcept {
  return loops_of<QuantizeLoops>(GRADWIRE_FOR_TARGET(target, quantize_loops));
}

}  // namespace gradwire::kernels
#endif
