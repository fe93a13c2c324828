// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/random_k_codec.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gradwire/compress/codec_internal.h"
#include "gradwire/compress/random_k_places_internal.h"
#include "gradwire/kernels/quantize.h"

namespace gradwire::compress {
namespace {

constexpr std::size_t kMarkerSize = 4;

class RandomKCodec final : public Codec {
 public:
  explicit RandomKCodec(const RandomKOptions& options) : options_(options) {
    if (options_.unbiased) for_means_ = std::make_unique<RandomKCodec>(RandomKOptions{options_.ratio, false});
  }
  std::string name() const override {
    return concat("random_k:ratio=", exact(options_.ratio), options_.unbiased ? ",unbiased=1" : "");
  }
  std::size_t max_encoded_size(std::size_t count) const noexcept override {
    return count == 0 ? 0 : kMarkerSize + 4 * number_kept(options_.ratio, count);
  }
  bool is_fixed_size() const noexcept override { return true; }
  bool keeps_scale() const noexcept override { return !options_.unbiased; }
  const Codec& for_means() const noexcept override { return for_means_ == nullptr ? *this : *for_means_; }

  std::size_t encode(std::span<const float> values, const EncodeKey& key, std::span<std::byte> bytes) const override {
    require_numbered(*this, values.size());
    require_room(*this, values.size(), bytes.size());
    if (values.empty()) return 0;
    const bool finite = std::isfinite(kernels::max_magnitude(values.data(), values.size()));
    write_as(bytes.data(), finite ? 0.0f : std::numeric_limits<float>::quiet_NaN());
    const std::size_t kept = number_kept(options_.ratio, values.size());
    RandomKPlaces places(key, values.size(), kept);
    for (std::size_t i = 0; i < kept; ++i) {
      const auto place = places.next(i);
      const float weight = options_.unbiased ? static_cast<float>(place.length) : 1.0f;
      write_as(bytes.data() + kMarkerSize + 4 * i, values[place.index] * weight);
    }
    return max_encoded_size(values.size());
  }

  void decode(std::span<const std::byte> bytes, const EncodeKey& key, std::span<float> values) const override {
    require_numbered(*this, values.size());
    require_size(*this, values.size(), bytes.size());
    if (values.empty()) return;
    const auto marker = read_as<float>(bytes.data());
    // 0 plus 0 or NaN: sums of encodings keep the meaning.
    const bool finite = !std::isnan(marker);
    std::fill(values.begin(), values.end(), finite ? 0.0f : marker);
    if (!finite) return;
    const std::size_t kept = number_kept(options_.ratio, values.size());
    RandomKPlaces places(key, values.size(), kept);
    for (std::size_t i = 0; i < kept; ++i) {
      values[places.next(i).index] = read_as<float>(bytes.data() + kMarkerSize + 4 * i);
    }
  }

 private:
  RandomKOptions options_;
  std::unique_ptr<RandomKCodec> for_means_;  // takes the same places and multiplies by nothing
};

}  // namespace

std::unique_ptr<Codec> make_random_k_codec(const RandomKOptions& options) {
  if (!(options.ratio > 0 && options.ratio <= 1)) {
    throw InvalidArgument(concat("random_k: ratio=", options.ratio, " must be above 0 and at most 1"));
  }
  return std::make_unique<RandomKCodec>(options);
}

}  // namespace gradwire::compress
