// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which values the sparse codecs send: top-k, threshold, random-k.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "gradwire/base/error.h"
#include "gradwire/compress/codec_test_support.h"
#include "gradwire/compress/random_k_codec.h"
#include "gradwire/compress/registry.h"
#include "gradwire/compress/threshold_codec.h"
#include "gradwire/compress/top_k_codec.h"

namespace gradwire::compress::sparse_codec_test {
namespace {

using codec_test_support::encode;
using codec_test_support::normal_values;
using codec_test_support::round_trip;

// Bits, so that NaN equals itself.
std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * 4);
  return bits;
}

// What top-k leaves, by sorting everything.
std::vector<float> expect_top_k(const std::vector<float>& values, double ratio) {
  const auto k = static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(values.size())));
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto magnitude = [&](std::size_t i) { return std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return magnitude(a) > magnitude(b); });
  std::vector<float> kept(values.size());
  for (std::size_t i = 0; i < k; ++i) kept[order[i]] = values[order[i]];
  return kept;
}

void expect_exact_top_k(const std::vector<float>& values, double ratio, const char* what) {
  const auto codec = make_top_k_codec({ratio});
  EXPECT_EQ(bits_of(round_trip(*codec, values)), bits_of(expect_top_k(values, ratio))) << what << ", ratio " << ratio;
}

TEST(TopKCodec, IsExactForSmallTensors) {
  for (const std::size_t count : {1, 2, 10, 99, 100, 101, 1000, 4096}) {
    for (const double ratio : {1e-9, 0.01, 0.1, 0.5, 1.0}) expect_exact_top_k(normal_values(count, 1), ratio, "normal");
  }
}

TEST(TopKCodec, EarlierOnesOfEqualMagnitudeAreSent) {
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0 ? -1.0f : i % 3 == 1 ? 1.0f : 0.5f;
  for (const double ratio : {0.01, 0.3, 0.66, 0.9}) expect_exact_top_k(values, ratio, "ties");
}

// Large enough to be sampled, in orders that make the sample useless as well as in ones that do not.
TEST(TopKCodec, IsExactWhateverTheSampleSays) {
  const std::size_t count = (std::size_t{1} << 20) + 12345;
  auto values = normal_values(count, 2);
  for (const double ratio : {1e-6, 0.001, 0.01, 0.2, 0.3}) expect_exact_top_k(values, ratio, "normal");
  std::sort(values.begin(), values.end());
  for (const double ratio : {0.001, 0.01}) expect_exact_top_k(values, ratio, "ascending");
  const auto by_magnitude = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
  std::sort(values.begin(), values.end(), by_magnitude);
  expect_exact_top_k(values, 0.01, "ascending magnitudes");
  std::reverse(values.begin(), values.end());
  expect_exact_top_k(values, 0.01, "descending magnitudes");
  expect_exact_top_k(std::vector<float>(count, 1.0f), 0.01, "constant");
  expect_exact_top_k(std::vector<float>(count, 0.0f), 0.01, "zero");
  std::vector<float> few(count, 0.0f);
  for (std::size_t i = 0; i < 100; ++i) few[i * 10007 + 5] = 1.0f + static_cast<float>(i);
  expect_exact_top_k(few, 0.01, "fewer than k not zero");
  // Large values exactly where the sample looks, fewer than k of them: the bound is too high and the second pass is
  // needed.
  std::vector<float> misleading(count, 0.001f);
  for (std::size_t run = 0; run < 4096; ++run) misleading[run * (count / 4096)] = 5.0f;
  expect_exact_top_k(misleading, 0.01, "misleading");
}

TEST(TopKCodec, NaNAndInfinityComeFirst) {
  auto values = normal_values(1000, 3);
  values[500] = std::numeric_limits<float>::quiet_NaN();
  values[700] = -std::numeric_limits<float>::infinity();
  const auto back = round_trip(*make_top_k_codec({0.002}), values);
  EXPECT_TRUE(std::isnan(back[500]));
  EXPECT_EQ(back[700], -std::numeric_limits<float>::infinity());
}

TEST(SparseCodecs, RefuseIndicesThatAreTooLargeOrDoNotAscend) {
  const auto pairs = [](std::vector<std::uint32_t> indices) {
    std::vector<std::byte> bytes(8 * indices.size());
    for (std::size_t i = 0; i < indices.size(); ++i) std::memcpy(bytes.data() + 8 * i, &indices[i], 4);
    return bytes;
  };
  for (const char* name : {"top_k:ratio=0.02", "threshold"}) {
    const auto codec = make_codec(name);
    std::vector<float> values(100);
    EXPECT_NO_THROW(codec->decode(pairs({3, 99}), {}, values)) << name;
    EXPECT_THROW(codec->decode(pairs({3, 100}), {}, values), MismatchError) << name;
    EXPECT_THROW(codec->decode(pairs({3, 0xffffffffu}), {}, values), MismatchError) << name;
    EXPECT_THROW(codec->decode(pairs({3, 3}), {}, values), MismatchError) << name;
    EXPECT_THROW(codec->decode(pairs({4, 3}), {}, values), MismatchError) << name;
  }
}

TEST(DgcCodec, SendsLessInStagesAndThenWhatTopKSends) {
  const auto codec = make_codec("dgc:ratio=0.001,ramp=400");
  const auto values = normal_values(100000, 8);
  const std::map<std::uint64_t, std::size_t> expected{{0, 25000},  {99, 25000}, {100, 6250}, {199, 6250}, {200, 1563},
                                                      {299, 1563}, {300, 391},  {399, 391},  {400, 100},  {9999, 100}};
  for (const auto& [step, k] : expected) {
    const EncodeKey key{0, 0, step, 0};
    EXPECT_EQ(codec->encoded_size(values.size(), step), 8 * k) << step;
    std::vector<std::byte> bytes(8 * k);
    EXPECT_EQ(codec->encode(values, key, bytes), 8 * k) << step;
    std::vector<float> back(values.size());
    codec->decode(bytes, key, back);
    EXPECT_EQ(static_cast<std::size_t>(std::count_if(back.begin(), back.end(), [](float x) { return x != 0; })), k);
    EXPECT_THROW(codec->encode(values, key, std::span(bytes).first(8 * k - 1)), InvalidArgument);
  }
  std::vector<std::byte> bytes(800);
  codec->encode(values, {0, 0, 400, 0}, bytes);
  EXPECT_EQ(bytes, encode(*make_codec("top_k:ratio=0.001"), values));
  EXPECT_EQ(make_codec("dgc:ratio=0.5")->encoded_size(100, 0), 400u);
  EXPECT_EQ(make_codec("dgc:ratio=0.01,ramp=0")->encoded_size(1000, 0), 80u);
}

TEST(ThresholdCodec, SendsWhatReachesTheBound) {
  const auto codec = make_threshold_codec({0.5f});
  auto values = normal_values(20000, 4);
  values[0] = 0.5f;
  values[1] = -0.5f;
  values[2] = std::nextafter(0.5f, 0.0f);
  const auto bytes = encode(*codec, values);
  const auto sent = std::count_if(values.begin(), values.end(), [](float value) { return std::fabs(value) >= 0.5f; });
  EXPECT_EQ(bytes.size(), 8 * static_cast<std::size_t>(sent));
  const auto back = round_trip(*codec, values);
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(back[i], std::fabs(values[i]) >= 0.5f ? values[i] : 0.0f);
}

TEST(RandomKCodec, RanksAgreeOnThePlacesWithoutSendingThem) {
  const auto codec = make_random_k_codec({0.1, false});
  const auto values = normal_values(1234, 5);
  const EncodeKey key{1, 2, 3, 0};
  const EncodeKey other_rank{1, 2, 3, 7};
  const auto bytes = encode(*codec, values, key);
  EXPECT_EQ(encode(*codec, values, other_rank), bytes);
  EXPECT_NE(encode(*codec, values, {1, 2, 3, 0, 7}), bytes);
  std::vector<float> back(values.size());
  codec->decode(bytes, other_rank, back);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (back[i] == 0) continue;
    ASSERT_EQ(back[i], values[i]);
    ++kept;
  }
  EXPECT_EQ(kept, 124u);
}

TEST(RandomKCodec, EncodingsCanBeAdded) {
  const auto codec = make_random_k_codec({0.25, true});
  const std::size_t count = 100;
  const auto a = normal_values(count, 6);
  const auto b = normal_values(count, 7);
  const auto bytes_a = encode(*codec, a);
  const auto bytes_b = encode(*codec, b);
  std::vector<float> sum(bytes_a.size() / 4);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    float x = 0;
    float y = 0;
    std::memcpy(&x, bytes_a.data() + 4 * i, 4);
    std::memcpy(&y, bytes_b.data() + 4 * i, 4);
    sum[i] = x + y;
  }
  std::vector<float> back(count);
  codec->decode(std::as_bytes(std::span(sum)), {}, back);
  const auto back_a = round_trip(*codec, a);
  const auto back_b = round_trip(*codec, b);
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(back[i], back_a[i] + back_b[i]);
}

// Each place comes up as often as any other of its stretch, so the unbiased form's mean is the tensor: within five
// standard deviations.
TEST(RandomKCodec, EveryPlaceComesUpEquallyOften) {
  const auto codec = make_random_k_codec({0.3, true});
  const std::vector<float> values(10, 1.0f);  // three stretches: of 4, 3 and 3
  const int draws = 6000;
  std::vector<double> sums(values.size());
  for (int step = 0; step < draws; ++step) {
    const auto back = round_trip(*codec, values, {1, 2, static_cast<std::uint64_t>(step), 0});
    for (std::size_t i = 0; i < values.size(); ++i) sums[i] += back[i];
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double length = i < 4 ? 4 : 3;
    EXPECT_NEAR(sums[i] / draws, 1.0, 5 * std::sqrt((length - 1) / draws)) << i;
  }
}

TEST(RandomKCodec, AnInfinityThatIsNotDrawnStillShows) {
  const auto codec = make_random_k_codec({0.01, false});
  std::vector<float> values(1000, 1.0f);
  values[123] = std::numeric_limits<float>::infinity();
  const auto back = round_trip(*codec, values);
  EXPECT_TRUE(std::all_of(back.begin(), back.end(), [](float value) { return std::isnan(value); }));
}

}  // namespace
}  // namespace gradwire::compress::sparse_codec_test
