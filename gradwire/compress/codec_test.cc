// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What every codec promises in codec.h, for all of them.
#include "gradwire/compress/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "gradwire/base/error.h"
#include "gradwire/compress/codec_test_support.h"
#include "gradwire/compress/registry.h"
#include "gradwire/kernels/dispatch.h"

namespace gradwire::compress::codec_test {
namespace {

using codec_test_support::decode;
using codec_test_support::encode;
using codec_test_support::normal_values;
using codec_test_support::round_trip;

const std::vector<std::string> kDescriptions{"fp16",
                                             "bf16",
                                             "fp8_e4m3",
                                             "fp8_e5m2:block=7",
                                             "int8",
                                             "int8:block=8",
                                             "int4:block=64",
                                             "int2",
                                             "int8:block=4096,rounding=stochastic",
                                             "int4:block=24,rounding=stochastic",
                                             "int2:block=256,rounding=stochastic",
                                             "one_bit",
                                             "one_bit:block=64",
                                             "sign",
                                             "top_k",
                                             "top_k:ratio=0.3",
                                             "top_k:ratio=1",
                                             "dgc",
                                             "dgc:ratio=0.02,ramp=3",
                                             "threshold",
                                             "threshold:threshold=1.5",
                                             "random_k",
                                             "random_k:ratio=0.123456789012,unbiased=1"};

// Around the edges of bytes, blocks and vectors.
const std::vector<std::size_t> kCounts{0,   1,   2,   3,   7,   8,    9,    15,   16,   17,   63,   64,  65,
                                       127, 128, 255, 256, 257, 1000, 1023, 1024, 1025, 4095, 4096, 4097};

class CodecTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Codec> codec_ = make_codec(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Codecs, CodecTest, testing::ValuesIn(kDescriptions), [](const auto& instance) {
  std::string name = instance.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

TEST_P(CodecTest, ItsNameMakesIt) {
  EXPECT_EQ(make_codec(codec_->name())->name(), codec_->name());
  EXPECT_TRUE(codec_->name().starts_with(GetParam())) << codec_->name();
}

TEST_P(CodecTest, EverySizeGoesThroughAndNothingBesideTheSpansChanges) {
  for (const std::size_t count : kCounts) {
    const auto values = normal_values(count, 1);
    const auto before = values;
    const std::size_t room = codec_->max_encoded_size(count);
    std::vector<std::byte> bytes(room + 16, std::byte{0xa5});
    const std::size_t size = codec_->encode(values, {}, std::span(bytes).first(room));
    ASSERT_LE(size, room);
    if (codec_->is_fixed_size()) {
      ASSERT_EQ(size, room) << count;
    }
    ASSERT_EQ(values, before);
    for (std::size_t i = room; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], std::byte{0xa5}) << count;
    std::vector<float> back(count + 4, 12345.0f);
    codec_->decode(std::span(bytes).first(size), {}, std::span(back).first(count));
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_NE(back[i], 12345.0f) << "value " << i << " of " << count << " was left";
    for (std::size_t i = count; i < back.size(); ++i) ASSERT_EQ(back[i], 12345.0f);
  }
}

TEST_P(CodecTest, BytesDoNotDependOnTheKernelsNorOnTheCall) {
  const auto values = normal_values(70001, 2);
  const EncodeKey key{1, 2, 3, 4};
  const auto expected = encode(*codec_, values, key);
  const auto decoded = decode(*codec_, expected, values.size(), key);
  for (const std::string& kernels : kernels::available()) {
    kernels::select(kernels);
    EXPECT_EQ(encode(*codec_, values, key), expected) << kernels;
    EXPECT_EQ(decode(*codec_, expected, values.size(), key), decoded) << kernels;
  }
  kernels::select("");
}

// In any order of the parts, with every length of the last block, and with nothing written beside a part's share.
TEST_P(CodecTest, PartsMakeUpTheWhole) {
  const EncodeKey key{1, 2, 3, 4};
  for (const std::size_t count : kCounts) {
    const auto values = normal_values(count, 5);
    const auto expected = encode(*codec_, values, key);
    const auto expected_values = decode(*codec_, expected, count, key);
    const std::size_t block = codec_->block();
    for (const std::size_t blocks : {1, 2, 5}) {
      const std::size_t each = block == 0 || count == 0 ? std::max<std::size_t>(count, 1) : blocks * block;
      const std::size_t parts = std::max<std::size_t>((count + each - 1) / each, 1);
      if (parts > 200 && blocks == 1) continue;  // blocks of one value: the longer parts do
      std::vector<std::byte> bytes(codec_->max_encoded_size(count));
      std::vector<float> back(count, 12345.0f);
      std::size_t size = 0;
      for (std::size_t part = parts; part-- > 0;) {
        const std::size_t length = std::min(each, count - part * each);
        size = codec_->encode_part(std::span(values).subspan(part * each, length), part * each, count, key, bytes);
      }
      bytes.resize(size);
      ASSERT_EQ(bytes, expected) << count << " values, parts of " << each;
      for (std::size_t part = parts; part-- > 0;) {
        const std::size_t length = std::min(each, count - part * each);
        codec_->decode_part(expected, part * each, count, key, std::span(back).subspan(part * each, length));
      }
      ASSERT_EQ(back, expected_values) << count << " values, parts of " << each;
    }
  }
}

TEST_P(CodecTest, UnalignedBytesAreFine) {
  const auto values = normal_values(1000, 3);
  const auto expected = encode(*codec_, values);
  for (std::size_t shift = 1; shift < 8; ++shift) {
    std::vector<std::byte> bytes(codec_->max_encoded_size(values.size()) + shift);
    const std::size_t size = codec_->encode(values, {}, std::span(bytes).subspan(shift));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), bytes.begin() + static_cast<std::ptrdiff_t>(shift)));
    std::vector<float> back(values.size());
    codec_->decode(std::span(bytes).subspan(shift, size), {}, back);
    EXPECT_EQ(back, decode(*codec_, expected, values.size()));
  }
}

TEST_P(CodecTest, TooLittleRoomIsRefused) {
  std::vector<std::byte> bytes(codec_->max_encoded_size(100) - 1);
  EXPECT_THROW(codec_->encode(normal_values(100, 4), {}, bytes), InvalidArgument);
}

TEST_P(CodecTest, AnotherNumberOfBytesIsRefused) {
  const auto bytes = encode(*codec_, normal_values(1000, 5));
  std::vector<float> values(1000);
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_THROW(codec_->decode(longer, {}, values), MismatchError);
  ASSERT_FALSE(bytes.empty());
  EXPECT_THROW(codec_->decode(std::span(bytes).first(bytes.size() - 1), {}, values), MismatchError);
}

// Decoding whatever comes: it either refuses, or fills the values. (Sanitizers watch the bounds.)
TEST_P(CodecTest, RandomBytesDoNoHarm) {
  std::mt19937 random(6);
  int refused = 0;
  for (int attempt = 0; attempt < 3000; ++attempt) {
    const std::size_t count = random() % 300;
    const bool right_size = random() % 2 == 0;
    std::vector<std::byte> bytes(right_size ? codec_->max_encoded_size(count) : random() % 700);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    std::vector<float> values(count);
    try {
      codec_->decode(bytes, {}, values);
    } catch (const MismatchError& error) {
      EXPECT_NE(std::string(error.what()).find(codec_->name()), std::string::npos);
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_P(CodecTest, ZerosStayZeros) {
  for (const std::size_t count : {1, 100, 5000}) {
    for (const float value : round_trip(*codec_, std::vector<float>(static_cast<std::size_t>(count)))) {
      ASSERT_EQ(value, 0.0f);
    }
  }
}

TEST_P(CodecTest, AnInfinityOrNaNAnywhereShows) {
  for (const float poison : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t count : {1, 50, 5001}) {
      for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        auto values = normal_values(count, 7);
        values[at] = poison;
        const auto back = round_trip(*codec_, values);
        EXPECT_TRUE(std::any_of(back.begin(), back.end(), [](float value) { return !std::isfinite(value); }))
            << poison << " at " << at << " of " << count;
      }
    }
  }
}

TEST_P(CodecTest, LargestAndDenormalValuesStayInRange) {
  const float largest = std::numeric_limits<float>::max();
  const float tiny = std::numeric_limits<float>::denorm_min();
  std::vector<float> values(500, tiny);
  if (GetParam() == "sign") return;  // its values are 1 and -1 whatever comes
  for (const float value : round_trip(*codec_, values)) {
    ASSERT_TRUE(std::isfinite(value));
    ASSERT_LE(std::fabs(value), 1e-30f);
  }
  if (GetParam().starts_with("fp") || GetParam() == "bf16") {
    // fp16, bf16 and fp8 round the largest up to infinity, as their headers say.
    EXPECT_TRUE(std::isinf(round_trip(*codec_, {largest}).front()));
    return;
  }
  values.assign(1000, 1.0f);
  values[0] = largest;
  values[999] = -largest;
  if (GetParam().starts_with("one_bit") || GetParam().ends_with("unbiased=1")) values[999] = 1;  // a sum may overflow
  if (GetParam().ends_with("unbiased=1")) values[0] = 1;
  for (const float value : round_trip(*codec_, values)) ASSERT_TRUE(std::isfinite(value)) << value;
}

TEST_P(CodecTest, EmptyTakesNoBytes) {
  EXPECT_EQ(codec_->max_encoded_size(0), 0u);
  EXPECT_TRUE(round_trip(*codec_, {}).empty());
}

// The documented formulas, written out for one size that leaves remainders everywhere.
TEST(CodecSizes, AreThoseOfTheDocumentation) {
  const std::size_t n = 10007;
  const std::map<std::string, std::size_t> expected{{"fp16", 20014},
                                                    {"bf16", 20014},
                                                    {"fp8_e4m3", 4 * 10 + 10007},
                                                    {"fp8_e5m2", 4 * 10 + 10007},
                                                    {"int8", 4 * 40 + 10007},
                                                    {"int4", 4 * 40 + 5004},
                                                    {"int2", 4 * 40 + 2502},
                                                    {"one_bit", 4 * 3 + 1251},
                                                    {"sign", 1 + 1251},
                                                    {"top_k", 8 * 101},
                                                    {"dgc", 8 * 2502},
                                                    {"threshold:threshold=0.01", 8 * 10007},
                                                    {"random_k", 4 * 101 + 4}};
  for (const auto& [description, size] : expected) {
    const auto codec = make_codec(description);
    EXPECT_EQ(codec->max_encoded_size(n), size) << description;
    EXPECT_EQ(encode(*codec, std::vector<float>(n, 1.0f)).size(), size) << description;
  }
  EXPECT_EQ(known_codecs().size(), expected.size());
}

TEST(CodecRegistry, RefusesWhatItDoesNotKnowAndListsWhatItDoes) {
  const auto message_of = [](const std::string& description) -> std::string {
    try {
      make_codec(description);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  for (const CodecInfo& info : known_codecs()) {
    EXPECT_NE(message_of("zip").find(info.name), std::string::npos) << info.name;
    EXPECT_EQ(make_codec(info.name)->name().substr(0, info.name.size()), info.name);
  }
  EXPECT_NE(message_of("int8:size=3").find("block=256"), std::string::npos);
  EXPECT_NE(message_of("fp16:block=3").find("it has none"), std::string::npos);
  EXPECT_NE(message_of("int8:rounding=up").find("nearest, stochastic"), std::string::npos);
  for (const char* wrong :
       {"int8:block", "int8:block=", "int8:block=7", "int8:block=-8", "int8:block=8x", "int8:=8", "one_bit:block=0",
        "top_k:ratio=0", "top_k:ratio=1.5", "top_k:ratio=nan", "threshold:threshold=0", "threshold:threshold=inf",
        "random_k:ratio=-1", "fp8_e4m3:block=0", ""}) {
    EXPECT_NE(message_of(wrong), "accepted") << wrong;
  }
}

}  // namespace
}  // namespace gradwire::compress::codec_test
