// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How long the kernels of the codecs take, beside a copy of the same values on the device. Prints one line of JSON for
// each codec: seconds of a copy, of encode, of decode and of decode with a sum. Needs a GPU; no torch.
//
//   codec_speed [VALUES]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gradwire/compress/registry.h"
#include "gradwire/hooks/device/cuda/device_memory_test_support.h"

namespace {

using namespace gradwire;
using cuda::require;

struct Timed {
  const char* codec;
  std::function<int(const float* values, std::uint8_t* bytes, void* workspace)> encode;
  std::function<int(const std::uint8_t* bytes, const float* sum, float* values)> decode;
};

std::vector<Timed> timed(std::size_t count, const std::function<std::size_t(const char*)>& size_of) {
  std::vector<Timed> all;
  for (const auto& [name, half] : {std::pair("fp16", cuda::Half::f16), std::pair("bf16", cuda::Half::bf16)})
    all.push_back(
        {name, [=](const float* v, std::uint8_t* b, void*) { return cuda::encode_cast(half, v, count, b, nullptr); },
         [=](const std::uint8_t* b, const float* s, float* v) {
           return cuda::decode_cast(half, b, count, s, v, nullptr);
         }});
  const cuda::Rows rows{count, 256}, long_rows{count, 1024}, longest_rows{count, 4096};
  for (const auto& [name, bits, stochastic] :
       {std::tuple("int8", 8, false), std::tuple("int4", 4, false), std::tuple("int2", 2, false),
        std::tuple("int8:rounding=stochastic", 8, true)}) {
    const cuda::IntegerFormat format{bits, stochastic, {1, 2}};
    all.push_back(
        {name,
         [=](const float* v, std::uint8_t* b, void*) { return cuda::encode_integer(format, rows, v, b, nullptr); },
         [=](const std::uint8_t* b, const float* s, float* v) {
           return cuda::decode_integer(format, rows, b, s, v, nullptr);
         }});
  }
  for (const auto& [name, kind] :
       {std::pair("fp8_e4m3", kernels::kFp8E4m3), std::pair("fp8_e5m2", kernels::kFp8E5m2)}) {
    const cuda::Fp8Format format{kind};
    all.push_back(
        {name,
         [=](const float* v, std::uint8_t* b, void*) { return cuda::encode_fp8(format, long_rows, v, b, nullptr); },
         [=](const std::uint8_t* b, const float* s, float* v) {
           return cuda::decode_fp8(format, long_rows, b, s, v, nullptr);
         }});
  }
  all.push_back(
      {"one_bit",
       [=](const float* v, std::uint8_t* b, void*) { return cuda::encode_one_bit(longest_rows, v, b, nullptr); },
       [=](const std::uint8_t* b, const float* s, float* v) {
         return cuda::decode_one_bit(longest_rows, b, s, v, nullptr);
       }});
  all.push_back(
      {"sign", [=](const float* v, std::uint8_t* b, void*) { return cuda::encode_sign(v, count, b, nullptr); },
       [=](const std::uint8_t* b, const float* s, float* v) { return cuda::decode_sign(b, count, s, v, nullptr); }});
  const std::size_t pairs = size_of("top_k") / 8;
  all.push_back(
      {"top_k",
       [=](const float* v, std::uint8_t* b, void* w) { return cuda::encode_top_k(v, count, pairs, w, b, nullptr); },
       [=](const std::uint8_t* b, const float* s, float* v) {
         return cuda::decode_pairs(b, pairs, count, s, v, nullptr);
       }});
  return all;
}

// The best of some runs, by events of the device.
double seconds_of(const std::function<int()>& queue) {
  constexpr int kRuns = 10;
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  float best = 1e9f;
  for (int run = 0; run < kRuns; ++run) {
    require(cudaEventRecord(begin));
    require(queue());
    require(cudaEventRecord(end));
    require(cudaEventSynchronize(end));
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, begin, end));
    best = std::min(best, milliseconds);
  }
  require(cudaEventDestroy(begin));
  require(cudaEventDestroy(end));
  return best / 1e3;
}

void measure(std::size_t count) {
  const cuda::TestMemory values(true, 4 * count), decoded(true, 4 * count), sum(true, 4 * count);
  std::vector<float> numbers(count);
  std::uint32_t state = 1;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  }
  values.write(0, numbers.data(), 4 * count);
  sum.write(0, numbers.data(), 4 * count);
  const auto size_of = [&](const char* codec) { return compress::make_codec(codec)->max_encoded_size(count); };
  const cuda::TestMemory workspace(true, cuda::top_k_workspace(count));
  const double copy = seconds_of([&] {
    return cudaMemcpyAsync(decoded.at<void>(0), values.at<void>(0), 4 * count, cudaMemcpyDeviceToDevice, nullptr);
  });
  for (const Timed& each : timed(count, size_of)) {
    const cuda::TestMemory bytes(true, size_of(each.codec));
    auto* const b = bytes.at<std::uint8_t>(0);
    const double encode = seconds_of([&] { return each.encode(values.at<float>(0), b, workspace.at<void>(0)); });
    const double decode = seconds_of([&] { return each.decode(b, nullptr, decoded.at<float>(0)); });
    const double add = seconds_of([&] { return each.decode(b, sum.at<float>(0), decoded.at<float>(0)); });
    std::printf(
        "{\"codec\": \"%s\", \"values\": %zu, \"copy_s\": %.9f, \"encode_s\": %.9f, \"decode_s\": %.9f, "
        "\"add_s\": %.9f}\n",
        each.codec, count, copy, encode, decode, add);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (!cuda::has_device()) {
    std::fputs("codec_speed: there is no GPU that these kernels run on\n", stderr);
    return 1;
  }
  measure(count > 1 ? std::stoull(arguments[1]) : std::size_t{64} << 20);
  return 0;
}
