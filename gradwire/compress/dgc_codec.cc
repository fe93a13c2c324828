// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/dgc_codec.h"

#include "gradwire/compress/sparse_internal.h"

namespace gradwire::compress {
namespace {

class DgcCodec final : public Codec {
 public:
  explicit DgcCodec(const DgcOptions& options) : options_(options) {
    for (double ratio = 0.25; ratio > options.ratio; ratio /= 4) ++stages_;
  }
  std::string name() const override { return concat("dgc:ratio=", exact(options_.ratio), ",ramp=", options_.ramp); }
  std::size_t max_encoded_size(std::size_t count) const noexcept override { return encoded_size(count, 0); }
  std::size_t encoded_size(std::size_t count, std::uint64_t step) const noexcept override {
    return kPairSize * number_kept(ratio_at(step), count);
  }
  bool is_fixed_size() const noexcept override { return true; }

  std::size_t encode(std::span<const float> values, const EncodeKey& key, std::span<std::byte> bytes) const override {
    require_numbered(*this, values.size());
    require_room(*this, values.size(), bytes.size(), key.step);
    encode_largest(values, number_kept(ratio_at(key.step), values.size()), bytes.data());
    return encoded_size(values.size(), key.step);
  }

  void decode(std::span<const std::byte> bytes, const EncodeKey& key, std::span<float> values) const override {
    require_size(*this, values.size(), bytes.size(), key.step);
    decode_pairs(*this, bytes, values);
  }

 private:
  double ratio_at(std::uint64_t step) const noexcept {
    if (step >= options_.ramp) return options_.ratio;
    double ratio = 0.25;  // powers of two, which every machine divides alike
    for (std::uint64_t stage = step * stages_ / options_.ramp; stage > 0; --stage) ratio /= 4;
    return stages_ == 0 ? options_.ratio : ratio;
  }

  DgcOptions options_;
  std::uint64_t stages_ = 0;
};

}  // namespace

std::unique_ptr<Codec> make_dgc_codec(const DgcOptions& options) {
  if (!(options.ratio > 0 && options.ratio <= 1)) {
    throw InvalidArgument(concat("dgc: ratio=", options.ratio, " must be above 0 and at most 1"));
  }
  return std::make_unique<DgcCodec>(options);
}

}  // namespace gradwire::compress
