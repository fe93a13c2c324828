// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/one_bit_codec.h"

#include <algorithm>

#include "gradwire/compress/codec_internal.h"
#include "gradwire/kernels/quantize.h"

namespace gradwire::compress {
namespace {

class OneBitCodec final : public PartCodec {
 public:
  explicit OneBitCodec(const OneBitOptions& options) : block_(options.block) {}
  std::string name() const override { return concat("one_bit:block=", block_); }
  std::size_t max_encoded_size(std::size_t count) const noexcept override {
    return scale_bytes(count) + divide_up(count, 8);
  }
  std::size_t block() const noexcept override { return block_; }

  std::size_t encode_part(std::span<const float> values, std::size_t first, std::size_t whole, const EncodeKey&,
                          std::span<std::byte> bytes) const override {
    require_room(*this, whole, bytes.size());
    std::byte* scales = bytes.data() + scale_bytes(first);
    std::byte* signs = bytes.data() + scale_bytes(whole) + first / 8;
    for (std::size_t begin = 0; begin < values.size(); begin += block_) {
      const auto block = values.subspan(begin, std::min(block_, values.size() - begin));
      const float sum = kernels::sum_magnitudes(block.data(), block.size());
      write_as(scales + scale_bytes(begin), sum / static_cast<float>(block.size()));
      kernels::pack_signs(block.data(), block.size(), as_codes(signs + begin / 8));
    }
    return max_encoded_size(whole);
  }

  void decode_part(std::span<const std::byte> bytes, std::size_t first, std::size_t whole, const EncodeKey&,
                   std::span<float> values) const override {
    require_size(*this, whole, bytes.size());
    const std::byte* scales = bytes.data() + scale_bytes(first);
    const std::byte* signs = bytes.data() + scale_bytes(whole) + first / 8;
    for (std::size_t begin = 0; begin < values.size(); begin += block_) {
      const auto block = values.subspan(begin, std::min(block_, values.size() - begin));
      const auto scale = read_as<float>(scales + scale_bytes(begin));
      kernels::unpack_signs(as_codes(signs + begin / 8), block.size(), scale, block.data());
    }
  }

 private:
  std::size_t scale_bytes(std::size_t count) const noexcept { return 4 * divide_up(count, block_); }
  std::size_t block_;
};

}  // namespace

std::unique_ptr<Codec> make_one_bit_codec(const OneBitOptions& options) {
  if (options.block < 8 || options.block > (std::size_t{1} << 24) || options.block % 8 != 0) {
    throw InvalidArgument(concat("one_bit: block=", options.block, " must be a multiple of 8 from 8 to 2^24"));
  }
  return std::make_unique<OneBitCodec>(options);
}

}  // namespace gradwire::compress
