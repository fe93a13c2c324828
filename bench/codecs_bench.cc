// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How fast the codecs run on one core, on 25 MiB of normal values that are not in the cache, beside memcpy of the same
// values.
//
//   codecs_bench [--benchmark_filter=REGEX] [--benchmark_min_time=SECONDS]
//
// The counter "memcpys" is the time in multiples of memcpy's median time, measured first. Pin it (taskset -c 0) for
// steady figures.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/compress/registry.h"

namespace {

using gradwire::compress::Codec;

constexpr std::size_t kCount = 25 * 1024 * 1024 / 4;

struct Buffers {
  std::vector<float> values = std::vector<float>(kCount);
  std::vector<float> decoded = std::vector<float>(kCount);
  std::vector<std::byte> bytes = std::vector<std::byte>(8 * kCount);
  std::vector<char> flusher = std::vector<char>(128 * 1024 * 1024);

  Buffers() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 1);
    for (float& value : values) value = normal(random);
  }
  // Pushes everything else out of the cache.
  void flush() {
    for (std::size_t i = 0; i < flusher.size(); i += 64) ++flusher[i];
    benchmark::ClobberMemory();
  }
};

Buffers& buffers() {
  static Buffers all;
  return all;
}

// The processor time of this thread in seconds: the codecs use no other, and other programs on the machine count less.
double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Runs `work` on cold buffers and returns its seconds.
template <class Work>
double time_cold(const Work& work) {
  buffers().flush();
  const double start = now();
  work();
  benchmark::ClobberMemory();
  return now() - start;
}

double copy_values() {
  return time_cold([] { std::memcpy(buffers().decoded.data(), buffers().values.data(), 4 * kCount); });
}

double median_copy() {
  std::vector<double> times(21);
  for (double& time : times) time = copy_values();
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  return times[10];
}

template <class Work>
void measure(benchmark::State& state, double copy, const Work& work) {
  std::vector<double> times;
  for (auto _ : state) {
    times.push_back(time_cold(work));
    state.SetIterationTime(times.back());
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  state.counters["memcpys"] = *middle / copy;
  state.SetBytesProcessed(static_cast<std::int64_t>(times.size() * 4 * kCount));
}

void register_codec(const std::string& description, double copy) {
  const std::shared_ptr<const Codec> codec = gradwire::compress::make_codec(description);
  auto* encode = benchmark::RegisterBenchmark(
      gradwire::concat("encode/", description).c_str(), [codec, copy](benchmark::State& state) {
        measure(state, copy, [&] { codec->encode(buffers().values, {}, buffers().bytes); });
      });
  auto* decode = benchmark::RegisterBenchmark(
      gradwire::concat("decode/", description).c_str(), [codec, copy](benchmark::State& state) {
        const std::size_t size = codec->encode(buffers().values, {}, buffers().bytes);
        measure(state, copy, [&] { codec->decode(std::span(buffers().bytes).first(size), {}, buffers().decoded); });
      });
  for (auto* bench : {encode, decode}) bench->UseManualTime()->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const double copy = median_copy();
  benchmark::AddCustomContext("memcpy_us", gradwire::concat(copy * 1e6));
  for (const char* description :
       {"fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "int2", "int8:rounding=stochastic",
        "int4:rounding=stochastic", "one_bit", "sign", "top_k:ratio=0.01", "top_k:ratio=0.001",
        "threshold:threshold=2.5", "random_k:ratio=0.01"}) {
    register_codec(description, copy);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
