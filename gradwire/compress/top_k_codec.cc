// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/top_k_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include "gradwire/compress/sparse_internal.h"
#include "gradwire/kernels/quantize.h"

namespace gradwire::compress {
namespace {

std::uint32_t magnitude_bits(float value) noexcept { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

// The values that are still in the running, in ascending order of index. Never more than room for 2k and one chunk.
class Candidates {
 public:
  static constexpr std::size_t kChunk = 16384;

  Candidates(std::size_t k, std::uint32_t least)
      : k_(k), least_(least), indices_(2 * k + kChunk + kernels::kSelectSlack), values_(indices_.size()) {}

  void add(std::span<const float> chunk, std::size_t first_index) {
    if (size_ >= 2 * k_) keep_largest();
    size_ += kernels::select_large(chunk.data(), chunk.size(), least_, static_cast<std::uint32_t>(first_index),
                                   indices_.data() + size_, values_.data() + size_);
  }

  // Reduces them to the k largest, earlier ones before later ones of the same magnitude, and raises the bar for the
  // rest.
  void keep_largest() {
    if (size_ <= k_) return;
    magnitudes_.resize(size_);
    std::transform(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(size_), magnitudes_.begin(),
                   magnitude_bits);
    const auto last_kept = magnitudes_.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
    std::nth_element(magnitudes_.begin(), last_kept, magnitudes_.end(), std::greater<>());
    const std::uint32_t bar = *last_kept;
    auto ties = k_ - static_cast<std::size_t>(std::count_if(magnitudes_.begin(), last_kept,
                                                            [bar](std::uint32_t bits) { return bits > bar; }));
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      const std::uint32_t bits = magnitude_bits(values_[i]);
      if (bits < bar || (bits == bar && ties == 0)) continue;
      if (bits == bar) --ties;
      indices_[kept] = indices_[i];
      values_[kept] = values_[i];
      ++kept;
    }
    size_ = kept;
    least_ = bar + 1;  // what only equals the bar comes later than k others that reach it
  }

  std::size_t size() const noexcept { return size_; }
  std::uint32_t index(std::size_t at) const noexcept { return indices_[at]; }
  float value(std::size_t at) const noexcept { return values_[at]; }

 private:
  std::size_t k_;
  std::uint32_t least_;
  std::size_t size_ = 0;
  std::vector<std::uint32_t> indices_;
  std::vector<float> values_;
  std::vector<std::uint32_t> magnitudes_;
};

// A magnitude that somewhat more than k of the values probably reach; 0 where sampling does not pay.
std::uint32_t guess_bound(std::span<const float> values, std::size_t k) {
  constexpr std::size_t kRun = 16;      // neighbours that are taken together: a cache line
  constexpr std::size_t kRuns = 4096;   // how many of these
  constexpr std::size_t kWorthIt = 16;  // how many times more values than samples
  if (values.size() < kWorthIt * kRun * kRuns || k > values.size() / 4) return 0;
  std::vector<std::uint32_t> sample;
  sample.reserve(kRun * kRuns);
  const std::size_t stride = values.size() / kRuns;
  for (std::size_t run = 0; run < kRuns; ++run) {
    for (std::size_t i = 0; i < kRun; ++i) sample.push_back(magnitude_bits(values[run * stride + i]));
  }
  // Four standard deviations of the number of samples that belong to the k largest, were they drawn one by one.
  const double expected =
      static_cast<double>(k) / static_cast<double>(values.size()) * static_cast<double>(sample.size());
  const auto rank = static_cast<std::size_t>(expected + 4 * std::sqrt(expected) + 4);
  const auto bound = sample.begin() + static_cast<std::ptrdiff_t>(std::min(rank, sample.size() - 1));
  std::nth_element(sample.begin(), bound, sample.end(), std::greater<>());
  return *bound;
}

Candidates collect(std::span<const float> values, std::size_t k, std::uint32_t bound) {
  Candidates candidates(k, bound);
  for (std::size_t begin = 0; begin < values.size(); begin += Candidates::kChunk) {
    candidates.add(values.subspan(begin, std::min(Candidates::kChunk, values.size() - begin)), begin);
  }
  candidates.keep_largest();
  return candidates;
}

class TopKCodec final : public Codec {
 public:
  explicit TopKCodec(const TopKOptions& options) : ratio_(options.ratio) {}
  std::string name() const override { return concat("top_k:ratio=", exact(ratio_)); }
  std::size_t max_encoded_size(std::size_t count) const noexcept override {
    return kPairSize * number_kept(ratio_, count);
  }
  bool is_fixed_size() const noexcept override { return true; }

  std::size_t encode(std::span<const float> values, const EncodeKey&, std::span<std::byte> bytes) const override {
    require_numbered(*this, values.size());
    require_room(*this, values.size(), bytes.size());
    encode_largest(values, number_kept(ratio_, values.size()), bytes.data());
    return max_encoded_size(values.size());
  }

  void decode(std::span<const std::byte> bytes, const EncodeKey&, std::span<float> values) const override {
    require_size(*this, values.size(), bytes.size());
    decode_pairs(*this, bytes, values);
  }

 private:
  double ratio_;
};

}  // namespace

void encode_largest(std::span<const float> values, std::size_t k, std::byte* bytes) {
  if (k == 0) return;
  const std::uint32_t bound = guess_bound(values, k);
  Candidates candidates = collect(values, k, bound);
  if (candidates.size() < k) candidates = collect(values, k, 0);
  for (std::size_t i = 0; i < k; ++i) write_pair(bytes, i, candidates.index(i), candidates.value(i));
}

std::unique_ptr<Codec> make_top_k_codec(const TopKOptions& options) {
  if (!(options.ratio > 0 && options.ratio <= 1)) {
    throw InvalidArgument(concat("top_k: ratio=", options.ratio, " must be above 0 and at most 1"));
  }
  return std::make_unique<TopKCodec>(options);
}

}  // namespace gradwire::compress
