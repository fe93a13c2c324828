// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/device/dense_codecs_internal.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "gradwire/compress/codec_internal.h"
#include "gradwire/compress/random.h"
#include "gradwire/hooks/device/device_bits_internal.h"

namespace gradwire::internal {
namespace {

using compress::Codec;
using compress::EncodeKey;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::int64_t divide_up(std::int64_t dividend, std::int64_t divisor) { return (dividend + divisor - 1) / divisor; }

at::Tensor no_bytes(const at::Tensor& like) { return at::empty({0}, like.options().dtype(at::kByte)); }

at::Tensor no_values(const at::Tensor& like) { return at::empty({0}, like.options().dtype(at::kFloat)); }

// fp16, bf16.
class DeviceCast final : public DeviceCodec {
 public:
  DeviceCast(const Codec& codec, at::ScalarType dtype) : codec_(codec), dtype_(dtype) {}
  at::Tensor encode(const at::Tensor& values, const EncodeKey&) const override { return as_bytes(values.to(dtype_)); }
  at::Tensor decode(const at::Tensor& bytes, std::int64_t count, const EncodeKey& key) const override {
    require_encoding(codec_, bytes, count, key);
    return numbers_in(bytes, 0, count, dtype_).to(at::kFloat);
  }

 private:
  const Codec& codec_;
  const at::ScalarType dtype_;
};

// The codecs whose encodings are the scales of all blocks, then the codes of all values.
class BlockCodec : public DeviceCodec {
 public:
  BlockCodec(const Codec& codec, int bits)
      : codec_(codec), block_(static_cast<std::int64_t>(codec.block())), bits_(bits) {}

  at::Tensor encode(const at::Tensor& values, const EncodeKey& key) const final {
    if (values.numel() == 0) return no_bytes(values);
    auto [scales, codes] = encode_rows(rows_of(values, block_), values.numel(), key);
    codes = codes.to(at::kByte).view({-1}).narrow(0, 0, values.numel());
    return at::cat({as_bytes(scales), pack(codes, bits_)});
  }
  at::Tensor decode(const at::Tensor& bytes, std::int64_t count, const EncodeKey& key) const final {
    require_encoding(codec_, bytes, count, key);
    if (count == 0) return no_values(bytes);
    const std::int64_t rows = divide_up(count, block_);
    const at::Tensor scales = numbers_in(bytes, 0, rows, at::kFloat).view({rows, 1});
    const at::Tensor codes = unpack(bytes.narrow(0, 4 * rows, bytes.numel() - 4 * rows), bits_, count);
    return decode_rows(rows_of(codes, block_), scales).view({-1}).narrow(0, 0, count);
  }

 protected:
  // The scale of each row (float32, 1-D), and the code of each value (any dtype).
  virtual std::pair<at::Tensor, at::Tensor> encode_rows(const at::Tensor& rows, std::int64_t count,
                                                        const EncodeKey& key) const = 0;
  virtual at::Tensor decode_rows(const at::Tensor& codes, const at::Tensor& scales) const = 0;

 private:
  const Codec& codec_;
  const std::int64_t block_;
  const int bits_;
};

class DeviceInteger final : public BlockCodec {
 public:
  DeviceInteger(const Codec& codec, int bits, bool stochastic)
      : BlockCodec(codec, bits), offset_(1 << (bits - 1)), stochastic_(stochastic) {}

 private:
  std::pair<at::Tensor, at::Tensor> encode_rows(const at::Tensor& rows, std::int64_t,
                                                const EncodeKey& key) const override {
    const at::Tensor scales = choose_scales(at::amax(at::abs(rows), 1));
    const at::Tensor usable = at::logical_and(at::isfinite(scales), at::gt(scales, 0));
    const at::Tensor inverse = at::where(usable, at::div(at::ones_like(scales), scales), 0.0).view({-1, 1});
    // Where there is no scale, the product of zero and an infinity would be no number.
    at::Tensor codes = at::where(at::ne(inverse, 0), rows * inverse, 0.0);
    if (stochastic_) {
      const compress::RandomSequence random(key, compress::kIntegerRounding);
      const at::Tensor numbers = philox_numbers(random.key(), rows.numel(), rows.device());
      const at::Tensor uniform = at::bitwise_right_shift(numbers, 8).to(at::kFloat) * 0x1p-24;
      codes = at::clamp(at::floor(codes + uniform.view(rows.sizes())), -levels(), levels());
    } else {
      codes = at::round(codes);
    }
    return {scales, codes + offset_};
  }
  at::Tensor decode_rows(const at::Tensor& codes, const at::Tensor& scales) const override {
    return (codes.to(at::kFloat) - offset_) * scales;
  }

  int levels() const { return offset_ - 1; }
  at::Tensor choose_scales(const at::Tensor& largest) const {
    constexpr float kSmallest = 0x1p-118f;  // as the codec itself
    at::Tensor scales = divided_by(largest, levels());
    scales = at::where(at::isfinite(scales * levels()), scales, at::nextafter(scales, at::zeros_like(scales)));
    scales = at::where(at::lt(largest, kSmallest), 0.0, scales);
    return at::where(at::isfinite(largest), scales, kNan).to(at::kFloat);
  }

  const int offset_;
  const bool stochastic_;
};

class DeviceFp8 final : public BlockCodec {
 public:
  DeviceFp8(const Codec& codec, at::ScalarType dtype, float largest, int infinity, int nan)
      : BlockCodec(codec, 8),
        dtype_(dtype),
        largest_(std::bit_cast<std::int32_t>(largest)),
        infinity_(infinity),
        nan_(nan) {}

 private:
  std::pair<at::Tensor, at::Tensor> encode_rows(const at::Tensor& rows, std::int64_t, const EncodeKey&) const override {
    const at::Tensor magnitudes = at::abs(rows);
    const at::Tensor largest = at::amax(at::where(at::isfinite(magnitudes), magnitudes, 0.0), 1);
    const at::Tensor bits = bits_of(largest.to(at::kFloat));
    // Of a number and of the format's largest one, the exponents and the mantissas.
    at::Tensor exponents = at::bitwise_right_shift(bits, kMantissa) - (largest_ >> kMantissa);
    exponents = exponents + at::gt(at::bitwise_and(bits, kMantissaMask), largest_ & kMantissaMask);
    exponents = at::where(at::eq(bits, 0), 0, at::clamp(exponents, -126, 127)).to(at::kInt);
    const at::Tensor half = at::div(at::neg(exponents), 2, "trunc");
    const at::Tensor scaled = rows * power(half).view({-1, 1}) * power(-exponents - half).view({-1, 1});
    // What a cast makes of infinity depends on the version of torch.
    const at::Tensor odd = at::where(at::isnan(rows), nan_, signs_of(rows) * 0x80 + infinity_).to(at::kByte);
    return {power(exponents), at::where(at::isfinite(rows), scaled.to(dtype_).view(at::kByte), odd)};
  }
  at::Tensor decode_rows(const at::Tensor& codes, const at::Tensor& scales) const override {
    return codes.contiguous().view(dtype_).to(at::kFloat) * scales;
  }

  // 2 to the power of each exponent.
  static at::Tensor power(const at::Tensor& exponents) {
    return at::bitwise_left_shift(exponents.to(at::kInt) + 127, kMantissa).to(at::kInt).view(at::kFloat);
  }

  static constexpr int kMantissa = 23;
  static constexpr std::int32_t kMantissaMask = (1 << kMantissa) - 1;
  const at::ScalarType dtype_;
  const std::int32_t largest_;  // its bits
  const int infinity_;          // the codes
  const int nan_;
};

class DeviceOneBit final : public BlockCodec {
 public:
  explicit DeviceOneBit(const Codec& codec) : BlockCodec(codec, 1) {}

 private:
  std::pair<at::Tensor, at::Tensor> encode_rows(const at::Tensor& rows, std::int64_t count,
                                                const EncodeKey&) const override {
    const at::Tensor sums = at::sum(at::abs(rows), at::IntArrayRef{1});
    // Only the last row may have fewer values.
    at::Tensor scales = divided_by(sums, static_cast<double>(rows.size(1)));
    const std::int64_t last = rows.size(0) - 1;
    const std::int64_t in_last = count - last * rows.size(1);
    scales.narrow(0, last, 1).copy_(divided_by(sums.narrow(0, last, 1), static_cast<double>(in_last)));
    return {scales, signs_of(rows)};
  }
  at::Tensor decode_rows(const at::Tensor& codes, const at::Tensor& scales) const override {
    return at::where(at::ne(codes, 0), at::neg(scales), scales);
  }
};

// A mark of infinity and NaN, then a bit a value.
class DeviceSign final : public DeviceCodec {
 public:
  explicit DeviceSign(const Codec& codec) : codec_(codec) {}
  at::Tensor encode(const at::Tensor& values, const EncodeKey&) const override {
    if (values.numel() == 0) return no_bytes(values);
    const at::Tensor odd = at::logical_not(at::all(at::isfinite(values))).to(at::kByte);
    const at::Tensor mark = at::where(at::any(values), odd, 2).to(at::kByte).view({1});
    return at::cat({mark, pack(signs_of(values), 1)});
  }
  at::Tensor decode(const at::Tensor& bytes, std::int64_t count, const EncodeKey& key) const override {
    require_encoding(codec_, bytes, count, key);
    if (count == 0) return no_values(bytes);
    const at::Tensor signs = unpack(bytes.narrow(0, 1, bytes.numel() - 1), 1, count).to(at::kFloat);
    const at::Tensor mark = bytes.narrow(0, 0, 1);
    const at::Tensor known = at::where(at::eq(mark, 2), 0.0, kNan);
    return at::where(at::eq(mark, 0), 1 - 2 * signs, known).to(at::kFloat);
  }

 private:
  const Codec& codec_;
};

}  // namespace

void require_encoding(const Codec& codec, const at::Tensor& bytes, std::int64_t count, const EncodeKey& key) {
  compress::require_size(codec, static_cast<std::size_t>(count), static_cast<std::size_t>(bytes.numel()), key.step);
}

std::unique_ptr<DeviceCodec> make_device_cast(const Codec& codec, Options&) {
  return std::make_unique<DeviceCast>(codec, codec.name() == "fp16" ? at::kHalf : at::kBFloat16);
}

std::unique_ptr<DeviceCodec> make_device_fp8(const Codec& codec, Options& options) {
  static_cast<void>(options.number("block", std::size_t{0}));
  if (codec.name().starts_with("fp8_e4m3"))
    return std::make_unique<DeviceFp8>(codec, at::kFloat8_e4m3fn, 448.0f, 0x7f, 0x7f);
  return std::make_unique<DeviceFp8>(codec, at::kFloat8_e5m2, 57344.0f, 0x7c, 0x7e);
}

std::unique_ptr<DeviceCodec> make_device_integer(const Codec& codec, Options& options) {
  static_cast<void>(options.number("block", std::size_t{0}));
  const bool stochastic = options.choice("rounding", {"nearest", "stochastic"}) == 1;
  return std::make_unique<DeviceInteger>(codec, codec.name()[3] - '0', stochastic);
}

std::unique_ptr<DeviceCodec> make_device_one_bit(const Codec& codec, Options& options) {
  static_cast<void>(options.number("block", std::size_t{0}));
  return std::make_unique<DeviceOneBit>(codec);
}

std::unique_ptr<DeviceCodec> make_device_sign(const Codec& codec, Options&) {
  return std::make_unique<DeviceSign>(codec);
}

}  // namespace gradwire::internal
