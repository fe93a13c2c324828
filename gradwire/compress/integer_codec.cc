// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/integer_codec.h"

#include <algorithm>

#include "gradwire/compress/codec_internal.h"
#include "gradwire/compress/random.h"
#include "gradwire/kernels/quantize.h"
#include "gradwire/kernels/value_internal.h"

namespace gradwire::compress {
namespace {

class IntegerCodec final : public PartCodec {
 public:
  IntegerCodec(int bits, const IntegerOptions& options)
      : bits_(bits), levels_(static_cast<float>((1 << (bits - 1)) - 1)), options_(options) {}

  std::string name() const override {
    return concat("int", bits_, ":block=", options_.block,
                  options_.rounding == Rounding::stochastic ? ",rounding=stochastic" : "");
  }
  std::size_t max_encoded_size(std::size_t count) const noexcept override { return scale_bytes(count) + packed(count); }
  std::size_t block() const noexcept override { return options_.block; }

  std::size_t encode_part(std::span<const float> values, std::size_t first, std::size_t whole, const EncodeKey& key,
                          std::span<std::byte> bytes) const override {
    require_room(*this, whole, bytes.size());
    std::byte* scales = bytes.data() + scale_bytes(first);
    std::byte* codes = bytes.data() + scale_bytes(whole) + packed(first);
    const RandomSequence random(key, kIntegerRounding);
    for (std::size_t begin = 0; begin < values.size(); begin += options_.block) {
      const auto block = values.subspan(begin, std::min(options_.block, values.size() - begin));
      const float scale = kernels::integer_scale(kernels::max_magnitude(block.data(), block.size()), levels_);
      write_as(scales + scale_bytes(begin), scale);
      // Of a block that is zero, or not finite, the scale says all; its codes are still written.
      encode_block(block, first + begin, kernels::inverse_of(scale), random, as_codes(codes + packed(begin)));
    }
    return max_encoded_size(whole);
  }

  void decode_part(std::span<const std::byte> bytes, std::size_t first, std::size_t whole, const EncodeKey&,
                   std::span<float> values) const override {
    require_size(*this, whole, bytes.size());
    const std::byte* scales = bytes.data() + scale_bytes(first);
    const std::byte* codes = bytes.data() + scale_bytes(whole) + packed(first);
    for (std::size_t begin = 0; begin < values.size(); begin += options_.block) {
      const auto block = values.subspan(begin, std::min(options_.block, values.size() - begin));
      const auto scale = read_as<float>(scales + scale_bytes(begin));
      kernels::dequantize(bits_, as_codes(codes + packed(begin)), block.size(), scale, block.data());
    }
  }

 private:
  std::size_t packed(std::size_t count) const noexcept {
    // In two parts, so that the product cannot overflow.
    const auto bits = static_cast<std::size_t>(bits_);
    return count / 8 * bits + (count % 8 * bits + 7) / 8;
  }
  std::size_t scale_bytes(std::size_t count) const noexcept { return 4 * divide_up(count, options_.block); }

  void encode_block(std::span<const float> block, std::size_t begin, float inverse, const RandomSequence& random,
                    std::uint8_t* codes) const {
    if (inverse == 0) {
      fill_zeros(block.size(), codes);
    } else if (options_.rounding == Rounding::nearest) {
      kernels::quantize(bits_, block.data(), block.size(), inverse, codes);
    } else {
      // A block starts at a multiple of 8, so number i of the sequence belongs to value i however blocks are cut.
      kernels::quantize_stochastic(bits_, block.data(), block.size(), inverse, random.key(), begin, codes);
    }
  }

  // The codes of zeros.
  void fill_zeros(std::size_t count, std::uint8_t* codes) const noexcept {
    const int byte = bits_ == 8 ? 0x80 : bits_ == 4 ? 0x88 : 0xaa;
    const std::size_t size = packed(count);
    std::fill_n(codes, size, static_cast<std::uint8_t>(byte));
    const std::size_t used = count % 8 * static_cast<std::size_t>(bits_) % 8;  // bits of the last byte; 0 is all of it
    if (used != 0) codes[size - 1] = static_cast<std::uint8_t>(byte & ((1 << used) - 1));
  }

  int bits_;
  float levels_;
  IntegerOptions options_;
};

}  // namespace

std::unique_ptr<Codec> make_integer_codec(int bits, const IntegerOptions& options) {
  if (bits != 8 && bits != 4 && bits != 2) {
    throw InvalidArgument(concat("an integer codec has 8, 4 or 2 bits, not ", bits));
  }
  if (options.block < 8 || options.block > (std::size_t{1} << 24) || options.block % 8 != 0) {
    throw InvalidArgument(concat("int", bits, ": block=", options.block, " must be a multiple of 8 from 8 to 2^24"));
  }
  return std::make_unique<IntegerCodec>(bits, options);
}

}  // namespace gradwire::compress
