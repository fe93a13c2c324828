// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/sign_codec.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gradwire/compress/codec_internal.h"
#include "gradwire/kernels/quantize.h"

namespace gradwire::compress {
namespace {

class SignCodec final : public Codec {
 public:
  std::string name() const override { return "sign"; }
  std::size_t max_encoded_size(std::size_t count) const noexcept override {
    return count == 0 ? 0 : 1 + divide_up(count, 8);
  }
  bool is_fixed_size() const noexcept override { return true; }
  bool keeps_scale() const noexcept override { return false; }

  std::size_t encode(std::span<const float> values, const EncodeKey&, std::span<std::byte> bytes) const override {
    require_room(*this, values.size(), bytes.size());
    if (values.empty()) return 0;
    float largest = 0;
    bool finite = true;
    for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
      const auto piece = values.subspan(begin, std::min(kPiece, values.size() - begin));
      const float magnitude = kernels::max_magnitude(piece.data(), piece.size());
      finite = finite && std::isfinite(magnitude);
      largest = std::max(largest, magnitude);
      kernels::pack_signs(piece.data(), piece.size(), as_codes(bytes.data() + 1 + begin / 8));
    }
    bytes[0] = static_cast<std::byte>(!finite ? kNotFinite : largest == 0 ? kZeros : kSigns);
    return max_encoded_size(values.size());
  }

  void decode(std::span<const std::byte> bytes, const EncodeKey&, std::span<float> values) const override {
    require_size(*this, values.size(), bytes.size());
    if (values.empty()) return;
    const auto marker = static_cast<unsigned>(bytes[0]);
    if (marker > kZeros) refuse_bytes(*this, values.size(), bytes.size(), "its first byte is not 0, 1 or 2");
    if (marker == kNotFinite) {
      std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
    } else if (marker == kZeros) {
      std::fill(values.begin(), values.end(), 0.0f);
    } else {
      kernels::unpack_signs(as_codes(bytes.data() + 1), values.size(), 1.0f, values.data());
    }
  }

 private:
  enum Marker : unsigned { kSigns = 0, kNotFinite = 1, kZeros = 2 };
  static constexpr std::size_t kPiece = 4096;  // stays in the first-level cache between the two loops
};

}  // namespace

std::unique_ptr<Codec> make_sign_codec() { return std::make_unique<SignCodec>(); }

}  // namespace gradwire::compress
