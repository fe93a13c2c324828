// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The kernels of the codecs write the bytes of the codecs, and read them. Without a GPU the same arithmetic runs on the
// host (host_launches_test_support.h); a build with nvcc also runs the kernels, where there is a GPU. No torch, so that
// compute-sanitizer is quick.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/compress/random.h"
#include "gradwire/compress/registry.h"
#include "gradwire/hooks/device/cuda/device_memory_test_support.h"
#include "gradwire/hooks/device/cuda/host_launches_test_support.h"

namespace gradwire::cuda {
namespace {

using compress::EncodeKey;
using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

constexpr EncodeKey kKey{7, 11, 3, 2};

struct Where {
  const char* name;
  const Launches* launches;
};

// Values of every magnitude: ties, zeros of both signs, rows that are zero, tiny or huge, numbers halfway between two
// codes; with `odd` also infinities and NaN.
Floats test_values(std::size_t count, bool odd) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::normal_distribution<float> normal;
  Floats values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = normal(random);
    if (i % 5 == 1) values[i] = i % 2 == 0 ? 0.25f : -0.25f;
    if (i % 11 == 3) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
    if (i % 13 == 4) values[i] = static_cast<float>(i % 64) / 64.0f;
    if (i / 64 % 9 == 2) values[i] *= 1e-37f;
    if (i / 64 % 9 == 3) values[i] *= 1e37f;
    if (i / 64 % 9 == 4) values[i] *= 1e-41f;
    if (i / 64 % 9 == 5) values[i] = 0.0f;
    if (i / 64 % 9 == 7) values[i] = values[i] > 0 ? std::numeric_limits<float>::max() : -1.0f;
    if (odd && i % 97 == 5) values[i] = i % 2 == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
  }
  return values;
}

Bytes bytes_of(const compress::Codec& codec, const Floats& values, const EncodeKey& key) {
  Bytes bytes(codec.encoded_size(values.size(), key.step));
  codec.encode(values, key, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

Floats values_of(const compress::Codec& codec, const Bytes& bytes, std::size_t count, const EncodeKey& key) {
  Floats values(count);
  codec.decode(std::as_bytes(std::span(bytes)), key, values);
  return values;
}

// NaN equals NaN, whatever its payload; zeros have signs.
bool same_value(float one, float other) {
  return (std::isnan(one) && std::isnan(other)) ||
         std::bit_cast<std::uint32_t>(one) == std::bit_cast<std::uint32_t>(other);
}
std::string difference(const Floats& actual, const Floats& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!same_value(actual[i], expected[i]))
      return concat("value ", i, " of ", expected.size(), " is ", actual[i], ", not ", expected[i]);
  }
  return "";
}
std::string difference(const Bytes& actual, const Bytes& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] != expected[i])
      return concat("byte ", i, " of ", expected.size(), " is ", int{actual[i]}, ", not ", int{expected[i]});
  }
  return "";
}

// A codec by its description, and the launches that stand for it.
struct Case {
  const char* description;
  int (*encode)(const Launches&, const compress::Codec&, const float*, std::size_t, void* workspace, std::uint8_t*,
                std::size_t size);
  int (*decode)(const Launches&, const compress::Codec&, const std::uint8_t*, std::size_t size, const float* sum,
                float*, std::size_t);
};

template <Half Type>
constexpr Case cast_case(const char* name) {
  return {name,
          [](const Launches& on, const compress::Codec&, const float* values, std::size_t count, void*,
             std::uint8_t* bytes, std::size_t) { return on.encode_cast(Type, values, count, bytes, nullptr); },
          [](const Launches& on, const compress::Codec&, const std::uint8_t* bytes, std::size_t, const float* sum,
             float* values, std::size_t count) { return on.decode_cast(Type, bytes, count, sum, values, nullptr); }};
}

template <int Bits, bool Stochastic>
constexpr Case integer_case(const char* name) {
  return {name,
          [](const Launches& on, const compress::Codec& codec, const float* values, std::size_t count, void*,
             std::uint8_t* bytes, std::size_t) {
            const compress::RandomSequence random(kKey, compress::kIntegerRounding);
            return on.encode_integer({Bits, Stochastic, random.key()}, {count, codec.block()}, values, bytes, nullptr);
          },
          [](const Launches& on, const compress::Codec& codec, const std::uint8_t* bytes, std::size_t, const float* sum,
             float* values, std::size_t count) {
            return on.decode_integer({Bits, Stochastic, {}}, {count, codec.block()}, bytes, sum, values, nullptr);
          }};
}

template <const kernels::Fp8Kind& Kind>
constexpr Case fp8_case(const char* name) {
  return {name,
          [](const Launches& on, const compress::Codec& codec, const float* values, std::size_t count, void*,
             std::uint8_t* bytes, std::size_t) {
            return on.encode_fp8({Kind}, {count, codec.block()}, values, bytes, nullptr);
          },
          [](const Launches& on, const compress::Codec& codec, const std::uint8_t* bytes, std::size_t, const float* sum,
             float* values, std::size_t count) {
            return on.decode_fp8({Kind}, {count, codec.block()}, bytes, sum, values, nullptr);
          }};
}

constexpr Case one_bit_case(const char* name) {
  return {name,
          [](const Launches& on, const compress::Codec& codec, const float* values, std::size_t count, void*,
             std::uint8_t* bytes, std::size_t) {
            return on.encode_one_bit({count, codec.block()}, values, bytes, nullptr);
          },
          [](const Launches& on, const compress::Codec& codec, const std::uint8_t* bytes, std::size_t, const float* sum,
             float* values, std::size_t count) {
            return on.decode_one_bit({count, codec.block()}, bytes, sum, values, nullptr);
          }};
}

constexpr Case kSign{
    "sign",
    [](const Launches& on, const compress::Codec&, const float* values, std::size_t count, void*, std::uint8_t* bytes,
       std::size_t) { return on.encode_sign(values, count, bytes, nullptr); },
    [](const Launches& on, const compress::Codec&, const std::uint8_t* bytes, std::size_t, const float* sum,
       float* values, std::size_t count) { return on.decode_sign(bytes, count, sum, values, nullptr); }};

constexpr Case top_k_case(const char* name) {
  return {
      name,
      [](const Launches& on, const compress::Codec&, const float* values, std::size_t count, void* workspace,
         std::uint8_t* bytes,
         std::size_t size) { return on.encode_top_k(values, count, size / 8, workspace, bytes, nullptr); },
      [](const Launches& on, const compress::Codec&, const std::uint8_t* bytes, std::size_t size, const float* sum,
         float* values, std::size_t count) { return on.decode_pairs(bytes, size / 8, count, sum, values, nullptr); }};
}

constexpr Case kCases[] = {cast_case<Half::f16>("fp16"),
                           cast_case<Half::bf16>("bf16"),
                           fp8_case<kernels::kFp8E4m3>("fp8_e4m3:block=64"),
                           fp8_case<kernels::kFp8E4m3>("fp8_e4m3:block=37"),
                           fp8_case<kernels::kFp8E4m3>("fp8_e4m3"),
                           fp8_case<kernels::kFp8E5m2>("fp8_e5m2:block=64"),
                           fp8_case<kernels::kFp8E5m2>("fp8_e5m2:block=20000"),
                           integer_case<8, false>("int8:block=64"),
                           integer_case<8, false>("int8:block=512"),
                           integer_case<8, false>("int8:block=16384"),
                           integer_case<4, false>("int4:block=64"),
                           integer_case<4, false>("int4:block=4096"),
                           integer_case<2, false>("int2:block=8"),
                           integer_case<8, true>("int8:block=64,rounding=stochastic"),
                           integer_case<4, true>("int4:block=72,rounding=stochastic"),
                           integer_case<2, true>("int2:block=256,rounding=stochastic"),
                           one_bit_case("one_bit:block=64"),
                           one_bit_case("one_bit"),
                           kSign,
                           top_k_case("top_k:ratio=0.1"),
                           top_k_case("top_k:ratio=0.7"),
                           top_k_case("top_k:ratio=1"),
                           top_k_case("dgc:ratio=0.01,ramp=8")};

// Encodings begin at a multiple of 16, as the allocator's memory does; values and what is decoded are moved by `shift`.
class CodecKernels : public ::testing::TestWithParam<Where> {
 protected:
  void SetUp() override {
    if (on_device() && !has_device()) GTEST_SKIP() << "there is no GPU";
  }
  static bool on_device() { return std::string(GetParam().name) == "cuda"; }

  Bytes encode(const Case& each, const compress::Codec& codec, const Floats& values, std::size_t size,
               std::size_t shift) {
    const Launches& on = *GetParam().launches;
    const TestMemory from(on_device(), 4 * (values.size() + shift)), to(on_device(), size);
    const TestMemory workspace(on_device(), on.top_k_workspace(values.size()));
    from.write(4 * shift, values.data(), 4 * values.size());
    EXPECT_EQ(each.encode(on, codec, from.at<float>(shift), values.size(), workspace.at<void>(0),
                          to.at<std::uint8_t>(0), size),
              0);
    Bytes bytes(size);
    to.read(0, bytes.data(), size);
    return bytes;
  }
  Floats decode(const Case& each, const compress::Codec& codec, const Bytes& bytes, const Floats* sum,
                std::size_t count, std::size_t shift) {
    const TestMemory from(on_device(), bytes.size() + shift), before(on_device(), 4 * count),
        to(on_device(), 4 * count);
    from.write(shift, bytes.data(), bytes.size());
    if (sum != nullptr) before.write(0, sum->data(), 4 * count);
    EXPECT_EQ(each.decode(*GetParam().launches, codec, from.at<std::uint8_t>(shift), bytes.size(),
                          sum != nullptr ? before.at<float>(0) : nullptr, to.at<float>(0), count),
              0);
    Floats values(count);
    to.read(0, values.data(), 4 * count);
    return values;
  }
};

TEST_P(CodecKernels, WriteTheBytesOfTheCodecs) {
  for (const Case& each : kCases) {
    const auto codec = compress::make_codec(each.description);
    for (const std::size_t count : {1, 7, 8, 63, 64, 65, 129, 700, 2049, 70001}) {
      for (const std::size_t shift : {0, 1}) {
        SCOPED_TRACE(concat(each.description, ", ", count, " values, moved by ", shift));
        const Floats values = test_values(count, false);
        const Bytes expected = bytes_of(*codec, values, kKey);
        EXPECT_EQ(difference(encode(each, *codec, values, expected.size(), shift), expected), "");
      }
    }
  }
}

TEST_P(CodecKernels, ReadTheBytesOfTheCodecsAtAnyAlignment) {
  for (const Case& each : kCases) {
    const auto codec = compress::make_codec(each.description);
    for (const std::size_t count : {1, 7, 8, 65, 700, 20003}) {
      for (const std::size_t shift : {0, 1, 4}) {
        SCOPED_TRACE(concat(each.description, ", ", count, " values, moved by ", shift));
        const Bytes bytes = bytes_of(*codec, test_values(count, false), kKey);
        const Floats expected = values_of(*codec, bytes, count, kKey);
        EXPECT_EQ(difference(decode(each, *codec, bytes, nullptr, count, shift), expected), "");
        Floats sum = test_values(count, false), sums(count);
        for (std::size_t i = 0; i < count; ++i) sums[i] = sum[i] + expected[i];
        EXPECT_EQ(difference(decode(each, *codec, bytes, &sum, count, shift), sums), "");
      }
    }
  }
}

// A finite gradient never comes out of one that was not.
TEST_P(CodecKernels, KeepInfinityAndNan) {
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.description);
    const auto codec = compress::make_codec(each.description);
    const Floats values = test_values(5000, true);
    const Bytes expected = bytes_of(*codec, values, kKey);
    const Bytes bytes = encode(each, *codec, values, expected.size(), 0);
    EXPECT_EQ(difference(decode(each, *codec, bytes, nullptr, values.size(), 0),
                         values_of(*codec, expected, values.size(), kKey)),
              "");
  }
}

// Bytes of another rank lead to no access beyond the values; compute-sanitizer, and the sanitizers of the host, look.
TEST_P(CodecKernels, TakeBytesThatAreNoEncoding) {
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.description);
    const auto codec = compress::make_codec(each.description);
    for (const std::uint8_t byte : {0x00, 0x7f, 0xff})
      EXPECT_EQ(decode(each, *codec, Bytes(codec->encoded_size(100, 3), byte), nullptr, 100, 0).size(), 100u);
  }
}

std::vector<Where> places() {
  std::vector<Where> all{{"host", &on_host::kLaunches}};
  if (cuda_launches() != nullptr) all.push_back({"cuda", cuda_launches()});
  return all;
}
INSTANTIATE_TEST_SUITE_P(On, CodecKernels, ::testing::ValuesIn(places()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gradwire::cuda
