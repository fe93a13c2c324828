// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The common parts of the two forms of PowerSGD: the state, random numbers, orthonormalization and approximation.
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

// The sequence of randint(1'000'000'000) of numpy.random.RandomState(seed).
class NumpyDraws {
 public:
  explicit NumpyDraws(std::uint32_t seed) : engine_(seed) {}
  std::uint32_t next();
  void skip(std::int64_t count);

 private:
  std::mt19937 engine_;
};

// Makes the `count` runs of `length` elements at `columns` orthonormal, in order, by Gram-Schmidt in double precision.
// The projections on the earlier runs are subtracted twice. A run that is zero, or negligible after the subtraction, is
// replaced by a unit vector that is orthogonal to the earlier runs; count <= length. With epsilon > 0 the projections
// are subtracted once, and epsilon is added to the norm, as in PyTorch. Plain scalar arithmetic in a fixed order gives
// the same bits on every processor. NaN in the input gives NaN in the output.
template <class T>
void orthonormalize(T* columns, std::size_t count, std::size_t length, double epsilon);

// One matrix of a bucket during compression.
struct LowRankMatrix {
  std::string key;                      // the key of its Q
  std::vector<std::string> parameters;  // the parameters whose gradients the matrix holds
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t rank = 0;
  at::Tensor values;    // rows x columns, contiguous, float32 or float64: gradient + error, then the approximation
  at::Tensor residual;  // like `values`, or undefined: gradient + error - approximation
  at::Tensor p = {};    // rank x rows: the columns of P, one after the other
  at::Tensor q = {};    // rank x columns: the columns of Q, one after the other
  bool finite = true;   // false: a rank had an Inf or NaN, or a product overflowed; there is no result then
};

// The dtype in which `bucket` is computed: float64 for a float64 bucket, else float32. Throws UnsupportedError, which
// names `hook`, for a bucket that is none of float16, bfloat16, float32 and float64.
at::ScalarType compute_type(const GradBucket& bucket, const char* hook);

// The group of the state, or the bucket's group when the state has none.
ProcessGroup& group_of(const PowerSGDState& state, GradBucket& bucket);

// Replaces the values of `matrices` (of one dtype) by the low-rank approximation of their averages over the ranks.
// Collective: two all-reduces, or none when there are no matrices. All ranks mark the same matrices as not finite.
// Changes no error and no Q of the state.
void approximate(const PowerSGDState& state, GradBucket& bucket, std::vector<LowRankMatrix>& matrices);

// The state of a PowerSGDState. Thread-safe. The returned tensors are shared, not copied: a parameter belongs to one
// bucket at a time, so no other bucket's hook uses them.
class PowerSGDMemory {
 public:
  PowerSGDMemory(const PowerSGDOptions& options) : options_(options), draws_(options.random_seed) {}

  // Called when the hook begins with `bucket`. Returns whether the bucket's iteration compresses. A new iteration
  // begins with another bucket.iteration(), or with a bucket that comes again. The buckets of an iteration may come in
  // any order.
  bool begin(const GradBucket& bucket);

  // The next iteration compresses. Call it between iterations.
  void end_warm_up();

  // The seed for a bucket's random numbers. The buckets of an iteration may ask in any order: the seeds are the same.
  std::uint32_t draw(std::size_t bucket_index);

  // Adds to the statistics.
  void count(std::int64_t before, std::int64_t after);

  // The error of `parameter`, and the Q under `key`; undefined when there is none.
  at::Tensor error(const std::string& parameter) const;
  at::Tensor factor(const std::string& key) const;
  void keep_error(const std::string& parameter, at::Tensor error);
  void keep_factor(const std::string& key, const std::vector<std::string>& parameters, at::Tensor factor);

  std::int64_t iterations() const;
  CompressionStats stats() const;
  HookState save() const;
  void load(const HookState& state);

  // Room for the next error of `parameter`, of the shape and dtype of its present `error`: the present error itself, or
  // other memory when keep() or hold() needs the present error.
  at::Tensor room_for_error(const std::string& parameter, const at::Tensor& error);
  // For a parameter whose average may turn out not to be applied: hold() holds the error and the Q of `parameter` alone
  // as they are, without a copy, and restore() brings them back. release() ends the holding of all parameters. A Q that
  // several parameters share is not held: it says nothing about what was delivered.
  void hold(const std::string& parameter);
  void restore(const std::string& parameter);
  void release();
  // As Revertible::keep_state() and revert_state(). Tensors that are in the kept state are not overwritten.
  void keep();
  void revert();

 private:
  struct Factor {
    std::vector<std::string> parameters;
    at::Tensor runs;
  };
  // What a step changes.
  struct Values {
    std::int64_t iterations = 0;  // the iterations that have begun
    std::int64_t drawn = 0;       // the number of draws
    CompressionStats stats;
    std::int64_t next_report = 0;
    std::map<std::string, at::Tensor> errors;
    std::map<std::string, Factor> factors;
  };
  struct Held {
    at::Tensor error;              // undefined: there was none
    std::optional<Factor> factor;  // not given: there was none
  };
  void report() GRADWIRE_REQUIRES(mutex_);
  void replace(Values values) GRADWIRE_REQUIRES(mutex_);

  const PowerSGDOptions options_;
  mutable Mutex mutex_;
  Values values_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<Values> kept_ GRADWIRE_GUARDED_BY(mutex_);  // its tensors may be those of values_
  std::map<std::string, Held> held_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<std::string, at::Tensor> spare_errors_ GRADWIRE_GUARDED_BY(mutex_);  // in neither of the two
  std::optional<std::uint32_t> current_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<bool> came_ GRADWIRE_GUARDED_BY(mutex_);  // the buckets that came in the current iteration
  NumpyDraws draws_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> current_draws_
      GRADWIRE_GUARDED_BY(mutex_);  // the draws of the current iteration, by bucket
};

}  // namespace gradwire::internal
