// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/threshold_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "gradwire/compress/sparse_internal.h"
#include "gradwire/kernels/quantize.h"

namespace gradwire::compress {
namespace {

class ThresholdCodec final : public Codec {
 public:
  explicit ThresholdCodec(const ThresholdOptions& options) : threshold_(options.threshold) {}
  std::string name() const override { return concat("threshold:threshold=", exact(threshold_)); }
  std::size_t max_encoded_size(std::size_t count) const noexcept override { return kPairSize * count; }
  bool is_fixed_size() const noexcept override { return false; }

  std::size_t encode(std::span<const float> values, const EncodeKey&, std::span<std::byte> bytes) const override {
    require_numbered(*this, values.size());
    require_room(*this, values.size(), bytes.size());
    constexpr std::size_t kChunk = 4096;
    std::vector<std::uint32_t> indices(kChunk + kernels::kSelectSlack);
    std::vector<float> kept(indices.size());
    const auto least = std::bit_cast<std::uint32_t>(threshold_);
    std::size_t pairs = 0;
    for (std::size_t begin = 0; begin < values.size(); begin += kChunk) {
      const auto chunk = values.subspan(begin, std::min(kChunk, values.size() - begin));
      const std::size_t found = kernels::select_large(chunk.data(), chunk.size(), least,
                                                      static_cast<std::uint32_t>(begin), indices.data(), kept.data());
      for (std::size_t i = 0; i < found; ++i) write_pair(bytes.data(), pairs++, indices[i], kept[i]);
    }
    return kPairSize * pairs;
  }

  void decode(std::span<const std::byte> bytes, const EncodeKey&, std::span<float> values) const override {
    decode_pairs(*this, bytes, values);
  }

 private:
  float threshold_;
};

}  // namespace

std::unique_ptr<Codec> make_threshold_codec(const ThresholdOptions& options) {
  if (!(options.threshold > 0) || !std::isfinite(options.threshold)) {
    throw InvalidArgument(concat("threshold: threshold=", options.threshold, " must be above 0 and finite"));
  }
  return std::make_unique<ThresholdCodec>(options);
}

}  // namespace gradwire::compress
