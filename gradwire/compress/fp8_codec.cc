// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/fp8_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "gradwire/compress/codec_internal.h"
#include "gradwire/kernels/quantize.h"

namespace gradwire::compress {
namespace {

// What distinguishes the two formats.
struct E4m3 {
  static constexpr const char* kName = "fp8_e4m3";
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr float kLargest = 448.0f;
  static constexpr std::uint8_t kInfinity = 0x7f;  // there is none: NaN
  static constexpr std::uint8_t kNan = 0x7f;
};
struct E5m2 {
  static constexpr const char* kName = "fp8_e5m2";
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr float kLargest = 57344.0f;
  static constexpr std::uint8_t kInfinity = 0x7c;
  static constexpr std::uint8_t kNan = 0x7e;
};

// The value of each code. A code is an f32 with a narrower exponent, but for its own rules about the highest one.
template <class Format>
std::array<float, 256> make_table() noexcept {
  std::array<float, 256> table{};
  for (std::uint32_t code = 0; code < 256; ++code) {
    const std::uint32_t magnitude = code & 0x7fu;
    const auto mantissa = static_cast<float>(magnitude & ((1u << Format::kMantissaBits) - 1u));
    const int exponent = static_cast<int>(magnitude >> Format::kMantissaBits);
    const auto one = static_cast<float>(1u << Format::kMantissaBits);
    float value = exponent == 0 ? std::ldexp(mantissa, 1 - Format::kBias - Format::kMantissaBits)
                                : std::ldexp(one + mantissa, exponent - Format::kBias - Format::kMantissaBits);
    if (value > Format::kLargest) {
      value = magnitude == Format::kInfinity && Format::kInfinity != Format::kNan
                  ? std::numeric_limits<float>::infinity()
                  : std::numeric_limits<float>::quiet_NaN();
    }
    table[code] = code >= 0x80u ? -value : value;
  }
  return table;
}

template <class Format>
class Fp8Codec final : public Codec {
 public:
  explicit Fp8Codec(const Fp8Options& options) : block_(options.block), table_(make_table<Format>()) {}
  std::string name() const override { return concat(Format::kName, ":block=", block_); }
  std::size_t max_encoded_size(std::size_t count) const noexcept override { return scale_bytes(count) + count; }
  bool is_fixed_size() const noexcept override { return true; }
  std::size_t block() const noexcept override { return block_; }

  std::size_t encode(std::span<const float> values, const EncodeKey& key, std::span<std::byte> bytes) const override {
    return encode_part(values, 0, values.size(), key, bytes);
  }
  void decode(std::span<const std::byte> bytes, const EncodeKey& key, std::span<float> values) const override {
    decode_part(bytes, 0, values.size(), key, values);
  }

  std::size_t encode_part(std::span<const float> values, std::size_t first, std::size_t whole, const EncodeKey&,
                          std::span<std::byte> bytes) const override {
    require_room(*this, whole, bytes.size());
    std::byte* scales = bytes.data() + scale_bytes(first);
    std::uint8_t* codes = as_codes(bytes.data() + scale_bytes(whole) + first);
    for (std::size_t begin = 0; begin < values.size(); begin += block_) {
      const auto block = values.subspan(begin, std::min(block_, values.size() - begin));
      const int exponent = choose_exponent(block);
      write_as(scales + scale_bytes(begin), std::ldexp(1.0f, exponent));
      // In two steps, because the reciprocal of a large scale is a denormal and that of a small one overflows.
      const float factor = std::ldexp(1.0f, -exponent / 2);
      const float other_factor = std::ldexp(1.0f, -exponent - -exponent / 2);
      kernels::encode_fp8(kLayout, block.data(), block.size(), factor, other_factor, codes + begin);
    }
    return max_encoded_size(whole);
  }

  void decode_part(std::span<const std::byte> bytes, std::size_t first, std::size_t whole, const EncodeKey&,
                   std::span<float> values) const override {
    require_size(*this, whole, bytes.size());
    const std::byte* scales = bytes.data() + scale_bytes(first);
    const std::uint8_t* codes = as_codes(bytes.data() + scale_bytes(whole) + first);
    for (std::size_t begin = 0; begin < values.size(); begin += block_) {
      const auto scale = read_as<float>(scales + scale_bytes(begin));
      const std::size_t end = std::min(begin + block_, values.size());
      for (std::size_t i = begin; i < end; ++i) values[i] = table_[codes[i]] * scale;
    }
  }

 private:
  static constexpr kernels::Fp8Layout kLayout{Format::kMantissaBits, Format::kBias, Format::kInfinity, Format::kNan};

  std::size_t scale_bytes(std::size_t count) const noexcept { return 4 * divide_up(count, block_); }

  static int choose_exponent(std::span<const float> block) noexcept {
    float largest = kernels::max_magnitude(block.data(), block.size());
    if (!std::isfinite(largest)) {
      largest = 0;
      for (const float value : block) {
        if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
      }
    }
    if (largest == 0) return 0;
    // largest / 2^exponent lies in [1, 2); the format's largest number in the same form says how far it may go up.
    const int wanted = std::ilogb(largest) - std::ilogb(Format::kLargest);
    const bool mantissa_too_large =
        std::ldexp(largest, -std::ilogb(largest)) > std::ldexp(Format::kLargest, -std::ilogb(Format::kLargest));
    return std::clamp(wanted + (mantissa_too_large ? 1 : 0), -126, 127);
  }

  std::size_t block_;
  std::array<float, 256> table_;
};

}  // namespace

std::unique_ptr<Codec> make_fp8_codec(Fp8Format format, const Fp8Options& options) {
  if (options.block < 1 || options.block > (std::size_t{1} << 24)) {
    throw InvalidArgument(concat("fp8: block=", options.block, " must be from 1 to 2^24"));
  }
  if (format == Fp8Format::e4m3) return std::make_unique<Fp8Codec<E4m3>>(options);
  return std::make_unique<Fp8Codec<E5m2>>(options);
}

}  // namespace gradwire::compress
