// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/fp8_codec.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "gradwire/compress/codec_internal.h"
#include "gradwire/kernels/quantize.h"
#include "gradwire/kernels/value_internal.h"

namespace gradwire::compress {
namespace {

// What distinguishes the two formats.
struct E4m3 {
  static constexpr const char* kName = "fp8_e4m3";
  static constexpr const kernels::Fp8Kind& kKind = kernels::kFp8E4m3;
};
struct E5m2 {
  static constexpr const char* kName = "fp8_e5m2";
  static constexpr const kernels::Fp8Kind& kKind = kernels::kFp8E5m2;
};

// The value of each code.
template <class Format>
constexpr std::array<float, 256> make_table() noexcept {
  std::array<float, 256> table{};
  for (std::uint32_t code = 0; code < 256; ++code) table[code] = kernels::fp8_value(Format::kKind.layout, code);
  return table;
}

template <class Format>
class Fp8Codec final : public PartCodec {
 public:
  explicit Fp8Codec(const Fp8Options& options) : block_(options.block), table_(make_table<Format>()) {}
  std::string name() const override { return concat(Format::kName, ":block=", block_); }
  std::size_t max_encoded_size(std::size_t count) const noexcept override { return scale_bytes(count) + count; }
  std::size_t block() const noexcept override { return block_; }

  std::size_t encode_part(std::span<const float> values, std::size_t first, std::size_t whole, const EncodeKey&,
                          std::span<std::byte> bytes) const override {
    require_room(*this, whole, bytes.size());
    std::byte* scales = bytes.data() + scale_bytes(first);
    std::uint8_t* codes = as_codes(bytes.data() + scale_bytes(whole) + first);
    for (std::size_t begin = 0; begin < values.size(); begin += block_) {
      const auto block = values.subspan(begin, std::min(block_, values.size() - begin));
      const int exponent = choose_exponent(block);
      write_as(scales + scale_bytes(begin), kernels::power_of_two(exponent));
      const kernels::Fp8Factors factors(exponent);
      kernels::encode_fp8(Format::kKind.layout, block.data(), block.size(), factors.first, factors.second,
                          codes + begin);
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
  std::size_t scale_bytes(std::size_t count) const noexcept { return 4 * divide_up(count, block_); }

  static int choose_exponent(std::span<const float> block) noexcept {
    float largest = kernels::max_magnitude(block.data(), block.size());
    if (!std::isfinite(largest)) {
      largest = 0;
      for (const float value : block) {
        if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
      }
    }
    return kernels::fp8_exponent(largest, Format::kKind.largest);
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
