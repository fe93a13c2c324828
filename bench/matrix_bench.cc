// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The three products of PowerSGD on a bucket of 24 MiB (six matrices of 1024 x 1024), one thread, beside PyTorch's
// operators for the same.
//
//   matrix_bench [--benchmark_filter=REGEX] [--benchmark_min_time=SECONDS]
//
// Names read WHOSE/PRODUCT/RANK; "all" is P = M Q, Q = M^T P and M = P Q^T one after the other, as a step does them.
// Pin it (taskset -c 0) for steady figures.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/kernels/dispatch.h"
#include "gradwire/kernels/matrix.h"

namespace {

namespace kernels = gradwire::kernels;

constexpr std::int64_t kMatrices = 6;
constexpr std::int64_t kSide = 1024;

struct Bucket {
  explicit Bucket(std::int64_t rank)
      : rank(rank),
        values(at::randn({kMatrices, kSide, kSide})),
        residuals(at::empty_like(values)),
        p(at::randn({kMatrices, kSide, rank})),
        q(at::randn({kMatrices, kSide, rank})) {}
  std::int64_t rank;
  at::Tensor values, residuals, p, q;
};

enum Product { kP = 1, kQ = 2, kExpand = 4, kAll = 7 };

void ours(const Bucket& bucket, int products) {
  constexpr auto kCount = static_cast<std::size_t>(kSide);
  const auto rank = static_cast<std::size_t>(bucket.rank);
  const auto each = [&](auto&& product) {
    for (std::int64_t i = 0; i < kMatrices; ++i) {
      product(bucket.values[i].mutable_data_ptr<float>(), bucket.p[i].mutable_data_ptr<float>(),
              bucket.q[i].mutable_data_ptr<float>());
    }
  };
  if (products & kP)
    each([&](float* m, float* p, float* q) { kernels::skinny_product(m, kCount, kCount, q, rank, p); });
  if (products & kQ)
    each([&](float* m, float* p, float* q) { kernels::skinny_product_transposed(m, kCount, kCount, p, rank, q); });
  if (products & kExpand)
    each([&](float* m, float* p, float* q) { kernels::expand(p, q, rank, kCount, kCount, m, nullptr); });
}

void pytorchs(Bucket& bucket, int products) {
  for (std::int64_t i = 0; i < kMatrices; ++i) {
    at::Tensor m = bucket.values.narrow(0, i, 1);
    at::Tensor p = bucket.p.narrow(0, i, 1);
    at::Tensor q = bucket.q.narrow(0, i, 1);
    if (products & kP) at::bmm_out(p, m, q);
  }
  for (std::int64_t i = 0; i < kMatrices; ++i) {
    at::Tensor q = bucket.q.narrow(0, i, 1);
    if (products & kQ) at::bmm_out(q, bucket.values.narrow(0, i, 1).transpose(1, 2), bucket.p.narrow(0, i, 1));
  }
  for (std::int64_t i = 0; i < kMatrices; ++i) {
    at::Tensor m = bucket.values.narrow(0, i, 1);
    if (products & kExpand) at::bmm_out(m, bucket.p.narrow(0, i, 1), bucket.q.narrow(0, i, 1).transpose(1, 2));
  }
}

template <class Run>
void measure(benchmark::State& state, std::int64_t rank, int products, Run&& run) {
  Bucket bucket(rank);
  for (auto _ : state) {
    // Numbers grow from step to step; they must not become infinite or denormal.
    state.PauseTiming();
    bucket.values.uniform_(-1, 1);
    bucket.p.uniform_(-1, 1);
    bucket.q.uniform_(-1, 1);
    state.ResumeTiming();
    run(bucket, products);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bucket.values.nbytes()));
}

void copy(benchmark::State& state) {
  Bucket bucket(1);
  for (auto _ : state) {
    std::memcpy(bucket.residuals.mutable_data_ptr(), bucket.values.const_data_ptr(), bucket.values.nbytes());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bucket.values.nbytes()));
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::RegisterBenchmark("memcpy", copy)->Unit(benchmark::kMillisecond);
  for (const std::int64_t rank : {1, 2, 4, 8}) {
    for (const auto& [product, name] :
         {std::pair(kP, "P"), std::pair(kQ, "Q"), std::pair(kExpand, "PQ^T"), std::pair(kAll, "all")}) {
      const auto mine = [rank, product = product](benchmark::State& state) { measure(state, rank, product, ours); };
      const auto theirs = [rank, product = product](benchmark::State& state) {
        measure(state, rank, product, pytorchs);
      };
      benchmark::RegisterBenchmark(gradwire::concat("gradwire/", name, "/", rank).c_str(), mine)
          ->Unit(benchmark::kMillisecond);
      benchmark::RegisterBenchmark(gradwire::concat("pytorch/", name, "/", rank).c_str(), theirs)
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("kernels", std::string(kernels::selected()));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
