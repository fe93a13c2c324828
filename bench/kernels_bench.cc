// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Measures the speed of the kernels on one core: reductions and conversions of buffers that fit into the cache and of
// larger ones, and memcpy of the same bytes.
//
//   kernels_bench [--benchmark_filter=REGEX] [--benchmark_min_time=SECONDS]
//
// GRADWIRE_KERNELS forces a set of kernels. Names read reduce/DTYPE/SOURCES/DESTINATIONS/KiB/STORE with STORE 0 cached,
// 1 streamed; bytes per second count what is read and what is written once. Pin it (taskset -c 0) for steady figures.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/kernels/cast.h"
#include "gradwire/kernels/dispatch.h"
#include "gradwire/kernels/reduce.h"

namespace {

using gradwire::DType;
using gradwire::ReduceOp;
namespace kernels = gradwire::kernels;

// Page-aligned memory whose pages are there.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(new (std::align_val_t{4096}) unsigned char[bytes]) {
    std::memset(bytes_.get(), 0, bytes);
  }
  unsigned char* data() const { return bytes_.get(); }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { operator delete[](memory, std::align_val_t{4096}); }
  };
  std::unique_ptr<unsigned char, Free> bytes_;
};

std::vector<Memory> make_buffers(std::size_t number, std::size_t bytes) {
  std::vector<Memory> buffers;
  for (std::size_t i = 0; i < number; ++i) buffers.emplace_back(bytes);
  return buffers;
}

struct Shape {
  DType dtype;
  ReduceOp op;
  std::size_t sources;
  std::size_t destinations;
  bool in_place;  // destinations are the first sources
};

void reduce_bytes(benchmark::State& state, const Shape& shape) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) * 1024;
  const auto store = state.range(1) != 0 ? kernels::Store::streamed : kernels::Store::cached;
  const auto buffers = make_buffers(shape.sources + (shape.in_place ? 0 : shape.destinations), bytes);
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (std::size_t s = 0; s < shape.sources; ++s) sources.push_back(buffers[s].data());
  for (std::size_t d = 0; d < shape.destinations; ++d) {
    destinations.push_back(buffers[shape.in_place ? d : shape.sources + d].data());
  }
  const std::size_t count = bytes / size_of(shape.dtype);
  for (auto _ : state) {
    kernels::reduce(shape.dtype, shape.op, sources, destinations, count, store);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes * (shape.sources + shape.destinations)));
}

void cast_bytes(benchmark::State& state, DType from, DType to) {
  const auto count = static_cast<std::size_t>(state.range(0)) * 1024 / size_of(from);
  const auto buffers = make_buffers(2, count * 8);
  for (auto _ : state) {
    kernels::cast(from, buffers[0].data(), to, buffers[1].data(), count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(count * (size_of(from) + size_of(to))));
}

void copy_bytes(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) * 1024;
  const auto buffers = make_buffers(2, bytes);
  for (auto _ : state) {
    std::memcpy(buffers[1].data(), buffers[0].data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(2 * bytes));
}

const std::vector<std::int64_t> kKibibytes{4, 64, 1024, 4096, 25600, 102400};

void register_reductions() {
  using gradwire::concat;
  std::vector<Shape> shapes;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const bool in_place : {true, false}) {
      for (const std::size_t sources : {2, 4, 8}) {
        shapes.push_back({dtype, ReduceOp::sum(), sources, 1, in_place});
        shapes.push_back({dtype, ReduceOp::sum(), sources, sources, in_place});
      }
    }
    shapes.push_back({dtype, ReduceOp::avg(), 2, 2, true});
    shapes.push_back({dtype, ReduceOp::avg(), 3, 3, true});
    shapes.push_back({dtype, ReduceOp::max(), 2, 2, true});
  }
  shapes.push_back({DType::i64, ReduceOp::sum(), 2, 2, true});
  for (const std::size_t number : {16, 32, 64}) {
    shapes.push_back({DType::f32, ReduceOp::sum(), number, 1, true});
    shapes.push_back({DType::f32, ReduceOp::sum(), number, number, true});
  }
  for (const Shape& shape : shapes) {
    const auto name = concat("reduce/", name_of(shape.dtype), "/", name_of(shape.op.kind), "/", shape.sources, "/",
                             shape.destinations, shape.in_place ? "/in_place" : "/apart");
    benchmark::RegisterBenchmark(name.c_str(), [shape](benchmark::State& state) {
      reduce_bytes(state, shape);
    })->ArgsProduct({kKibibytes, {0, 1}});
  }
}

void register_casts() {
  const std::pair<DType, DType> pairs[] = {{DType::f32, DType::bf16}, {DType::bf16, DType::f32},
                                           {DType::f32, DType::f16},  {DType::f16, DType::f32},
                                           {DType::f64, DType::f32},  {DType::f64, DType::bf16}};
  for (const auto& [from, to] : pairs) {
    const auto name = gradwire::concat("cast/", name_of(from), "/", name_of(to));
    benchmark::RegisterBenchmark(name.c_str(), [from = from, to = to](benchmark::State& state) {
      cast_bytes(state, from, to);
    })->ArgsProduct({kKibibytes});
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::AddCustomContext("kernels", std::string(kernels::selected()));
  benchmark::RegisterBenchmark("memcpy", copy_bytes)->ArgsProduct({kKibibytes});
  register_reductions();
  register_casts();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
