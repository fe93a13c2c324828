// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/cast_codec.h"

#include "gradwire/compress/codec_internal.h"
#include "gradwire/kernels/cast.h"

namespace gradwire::compress {
namespace {

class CastCodec final : public PartCodec {
 public:
  explicit CastCodec(DType dtype) : dtype_(dtype) {}
  std::string name() const override { return dtype_ == DType::f16 ? "fp16" : "bf16"; }
  std::size_t max_encoded_size(std::size_t count) const noexcept override { return 2 * count; }
  std::size_t block() const noexcept override { return 1; }
  std::size_t encode_part(std::span<const float> values, std::size_t first, std::size_t whole, const EncodeKey&,
                          std::span<std::byte> bytes) const override {
    require_room(*this, whole, bytes.size());
    kernels::cast(DType::f32, values.data(), dtype_, bytes.data() + 2 * first, values.size());
    return 2 * whole;
  }
  void decode_part(std::span<const std::byte> bytes, std::size_t first, std::size_t whole, const EncodeKey&,
                   std::span<float> values) const override {
    require_size(*this, whole, bytes.size());
    kernels::cast(dtype_, bytes.data() + 2 * first, DType::f32, values.data(), values.size());
  }

 private:
  DType dtype_;
};

}  // namespace

std::unique_ptr<Codec> make_cast_codec(DType dtype) {
  if (dtype != DType::f16 && dtype != DType::bf16) {
    throw InvalidArgument(concat("the cast codec converts to f16 or bf16, not to ", name_of(dtype)));
  }
  return std::make_unique<CastCodec>(dtype);
}

}  // namespace gradwire::compress
