// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the two forms of PowerSGD share: their memory, random numbers and orthonormalization.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/hooks/power_sgd.h"

namespace gradwire::internal {

// randint(1'000'000'000) of numpy.random.RandomState(seed), one after the other.
class NumpyDraws {
 public:
  explicit NumpyDraws(std::uint32_t seed) : engine_(seed) {}
  std::uint32_t next();
  void skip(std::int64_t count);

 private:
  std::mt19937 engine_;
};

// Makes the `count` runs of `length` elements at `columns` orthonormal, in order, in double precision (Gram-Schmidt;
// each run is freed of the earlier ones twice). A run that is zero, or next to nothing without the earlier ones,
// becomes a unit vector freed of them; count <= length. With epsilon > 0 norms are enlarged by it and earlier runs are
// taken out once, as PyTorch does. Plain scalar arithmetic in a fixed order: the same bits on every processor. NaN in,
// NaN out.
template <class T>
void orthonormalize(T* columns, std::size_t count, std::size_t length, double epsilon);

// One matrix of a bucket on its way through compression.
struct LowRankMatrix {
  std::string key;                      // of its Q
  std::vector<std::string> parameters;  // whose gradients it holds
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t rank = 0;
  at::Tensor values;    // rows x columns, contiguous, float32 or float64: gradient + error, then its approximation
  at::Tensor residual;  // like `values`, or undefined: what the approximation lacks
  at::Tensor p = {};    // rank x rows: P's columns, one after the other
  at::Tensor q = {};    // rank x columns
  bool finite = true;   // false: a rank had Inf or NaN in it; `values` and `residual` are not the result then
};

// What `bucket` is computed in: float64 for float64, else float32. Throws UnsupportedError for buckets that are not of
// a floating-point type on the CPU.
at::ScalarType compute_type(const GradBucket& bucket, const char* hook);

ProcessGroup& group_of(const PowerSGDState& state, GradBucket& bucket);

// Replaces the values of `matrices` (of one dtype) by the low-rank approximation of their average over the ranks.
// Collective: two all-reduces, none for no matrices; every rank finds the same ones not finite. Remembers nothing.
void approximate(const PowerSGDState& state, GradBucket& bucket, std::vector<LowRankMatrix>& matrices);

// PowerSGDState's memory, guarded by a mutex. Parameters belong to one bucket at a time, so what is handed out for one
// is not touched by another's hook.
class PowerSGDMemory {
 public:
  PowerSGDMemory(const PowerSGDOptions& options) : options_(options), draws_(options.random_seed) {}

  // The hook's call for `bucket` begins. Returns whether its iteration compresses. Iterations are told apart by
  // bucket.iteration(), or by a bucket that comes again; which bucket of an iteration comes first does not matter.
  bool begin(const GradBucket& bucket);

  // The seed for a bucket's random numbers: the same whatever order buckets of an iteration ask in.
  std::uint32_t draw(std::size_t bucket_index);

  // Adds to the statistics.
  void count(std::int64_t before, std::int64_t after);

  // What is remembered under `key`; undefined where there is nothing.
  at::Tensor error(const std::string& parameter) const;
  at::Tensor factor(const std::string& key) const;
  void keep_error(const std::string& parameter, at::Tensor error);
  void keep_factor(const std::string& key, const std::vector<std::string>& parameters, at::Tensor factor);

  std::int64_t iterations() const;
  CompressionStats stats() const;
  HookState save() const;
  void load(const HookState& state);

 private:
  struct Factor {
    std::vector<std::string> parameters;
    at::Tensor runs;
  };
  void report() GRADWIRE_REQUIRES(mutex_);

  const PowerSGDOptions options_;
  mutable Mutex mutex_;
  std::int64_t iterations_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // begun
  std::optional<std::uint32_t> current_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<bool> came_ GRADWIRE_GUARDED_BY(mutex_);  // the buckets of the current iteration
  NumpyDraws draws_ GRADWIRE_GUARDED_BY(mutex_);
  std::int64_t drawn_ GRADWIRE_GUARDED_BY(mutex_) = 0;                    // in all
  std::vector<std::uint32_t> current_draws_ GRADWIRE_GUARDED_BY(mutex_);  // in the current iteration, by bucket
  CompressionStats stats_ GRADWIRE_GUARDED_BY(mutex_);
  std::int64_t next_report_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::map<std::string, at::Tensor> errors_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<std::string, Factor> factors_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal
