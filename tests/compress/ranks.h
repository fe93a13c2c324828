// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Common parts of the tests of compressors between ranks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gradwire/compress/channel_transport.h"
#include "gradwire/compress/exchange.h"
#include "gradwire/compress/registry.h"
#include "tests/conformance/world.h"

namespace gradwire::testing {

using Floats = std::vector<float>;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One codec of each kind, with options that give several blocks and choices at small sizes.
inline const std::vector<std::string>& all_codecs() {
  static const std::vector<std::string> codecs{"fp16",
                                               "bf16",
                                               "fp8_e4m3:block=64",
                                               "fp8_e5m2",
                                               "int8",
                                               "int4:block=64",
                                               "int4:rounding=stochastic",
                                               "int2",
                                               "one_bit:block=64",
                                               "sign",
                                               "top_k:ratio=0.05",
                                               "dgc:ratio=0.01,ramp=3",
                                               "threshold:threshold=1.2",
                                               "random_k:ratio=0.1",
                                               "random_k:ratio=0.1,unbiased=1"};
  return codecs;
}

// Passes every call on, and counts the bytes that this rank sends to other ranks.
class CountingTransport final : public compress::Transport {
 public:
  explicit CountingTransport(compress::Transport& below) : below_(below) {}
  int rank() const noexcept override { return below_.rank(); }
  int size() const noexcept override { return below_.size(); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    sent_ += mine.size() * others();
    below_.all_gather(mine, all);
  }
  void all_to_all(std::span<const std::byte> to_each, std::span<std::byte> from_each) override {
    sent_ += to_each.size() / (others() + 1) * others();
    below_.all_to_all(to_each, from_each);
  }
  std::size_t sent() const noexcept { return sent_; }

 private:
  std::size_t others() const noexcept { return static_cast<std::size_t>(size() - 1); }
  compress::Transport& below_;
  std::size_t sent_ = 0;
};

// Moves no data before a caller waits for it. So a result that is read too early is missing, and an input that is
// overwritten too early is sent wrong.
class LateTransport final : public compress::Transport {
 public:
  explicit LateTransport(compress::Transport& below) : below_(below) {}
  int rank() const noexcept override { return below_.rank(); }
  int size() const noexcept override { return below_.size(); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override { below_.all_gather(mine, all); }
  void all_to_all(std::span<const std::byte> to_each, std::span<std::byte> from_each) override {
    below_.all_to_all(to_each, from_each);
  }
  std::unique_ptr<compress::Transfer> start_all_gather(std::span<const std::byte> mine,
                                                       std::span<std::byte> all) override {
    return start([=, this] { below_.all_gather(mine, all); });
  }
  std::unique_ptr<compress::Transfer> start_all_to_all(std::span<const std::byte> to_each,
                                                       std::span<std::byte> from_each) override {
    return start([=, this] { below_.all_to_all(to_each, from_each); });
  }
  // The largest number of transfers that were in progress at the same time.
  int most_under_way() const noexcept { return most_; }

 private:
  class Late final : public compress::Transfer {
   public:
    Late(std::function<void()> move, int& under_way) : move_(std::move(move)), under_way_(under_way) {}
    void wait() override {
      move_();
      --under_way_;
    }

   private:
    std::function<void()> move_;
    int& under_way_;
  };
  std::unique_ptr<compress::Transfer> start(std::function<void()> move) {
    most_ = std::max(most_, ++under_way_);
    return std::make_unique<Late>(std::move(move), under_way_);
  }

  compress::Transport& below_;
  int under_way_ = 0;
  int most_ = 0;
};

// Ends that lie in memory. `mean` may be the memory of `values` when `delivered` is empty, which means that nobody
// wants to know what was delivered.
class SpanEnds final : public compress::ExchangeEnds {
 public:
  SpanEnds(std::span<const float> values, std::span<float> mean, std::span<float> delivered)
      : values_(values), mean_(mean), delivered_(delivered) {}
  std::span<float> mean() noexcept override { return mean_; }
  std::span<const float> values(std::size_t first, std::span<float> room) override {
    return values_.subspan(first, room.size());
  }
  bool keeps_values() const noexcept override { return values_.data() != mean_.data(); }
  bool takes_delivered() const noexcept override { return !delivered_.empty(); }
  void deliver(std::size_t first, std::span<const float>, std::span<const float> delivered) override {
    std::copy(delivered.begin(), delivered.end(), delivered_.begin() + static_cast<std::ptrdiff_t>(first));
  }

 private:
  std::span<const float> values_;
  std::span<float> mean_;
  std::span<float> delivered_;
};

inline compress::ChannelTransport transport_of(const RankContext& context) {
  return compress::ChannelTransport(context.channel(), {.timeout = kGuard, .tag = {}});
}

// Normally distributed values with a few large ones among them, like gradients.
inline Floats gradient_like(std::size_t count, std::uint64_t seed) {
  std::mt19937 random(static_cast<std::uint32_t>(seed * 7919 + 17));
  std::normal_distribution<float> normal(0, 1);
  Floats values(count);
  for (float& value : values) value = normal(random);
  for (std::size_t i = 0; i < count; i += 37) values[i] *= 10;
  return values;
}

// The values of all ranks, on all ranks.
inline std::vector<Floats> collect(compress::Transport& transport, std::span<const float> mine) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  Floats all(ranks * mine.size());
  transport.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
  std::vector<Floats> parts(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(r * mine.size());
    parts[r].assign(begin, begin + static_cast<std::ptrdiff_t>(mine.size()));
  }
  return parts;
}

inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

inline bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace gradwire::testing
