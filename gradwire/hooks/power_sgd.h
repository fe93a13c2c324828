// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// PowerSGD: gradients travel as products of two narrow matrices (Vogels, Karimireddy, Jaggi: PowerSGD, 2019,
// arXiv:1905.13727).
//
// A gradient of n rows (its first dimension) and m columns (all others) is compressed where
// (n + m) * r * min_compression_rate < n * m, with r = min(n, m, matrix_approximation_rank). With M = gradient + error:
//
//   Q: of the step before, or N(0, 1)    m x r    orthonormalized
//   P = sum over ranks of M Q            n x r    all-reduced, then orthonormalized
//   Q = sum over ranks of M^T P / N      m x r    all-reduced
//   gradient = P Q^T, the same bits on all ranks; error = M - P Q^T, each rank's own
//
// All other entries (vectors, small matrices) are averaged as they are and have no error.
//
// Bytes that a rank sends for a bucket, N ranks: 2 (N-1)/N * (sum over compressed gradients of (n + m) * r * w, and the
// uncompressed entries in the bucket's type); w is 4, for float64 buckets 8. In the batched form there is one matrix of
// s x s, s = ceil(sqrt(elements of the bucket)): 2 (N-1)/N * 2 * s * min(s, rank) * w. Before start_iteration: what
// allreduce_hook sends.
//
// Numbers. float16 and bfloat16 buckets are computed, and keep their error, in float32, which P and Q travel in; the
// result is rounded once, numbers beyond the type's largest to that, and what rounding changes goes into the error.
// Everything a rank computes for itself from common bits has a fixed order of operations and no fusing, so ranks agree
// bitwise also on different processors. Columns that are zero, or depend on earlier ones, are replaced by unit vectors
// orthogonal to those: a zero gradient gives zeros, never NaN, and does not make the memory forget its rank.
//
// Inf and NaN. If a rank has one in a compressed gradient, that gradient becomes NaN in full on all ranks, and its
// error and Q stay what they were before the step. So it does where M Q overflows, or Q reaches a 4 r-th of the largest
// number.
//
// State belongs to parameters, by name, so it outlives a rebuild of the buckets. In the batched form the error does; Q
// belongs to the bucket's list of parameters, and a bucket with another list starts with a random Q again. What the
// product puts where the square is filled up is forgotten; PyTorch, whose error belongs to the square, feeds it back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

namespace internal {
class PowerSGDMemory;
}

// Must be the same on all ranks.
struct PowerSGDOptions {
  // r above; at least 1. More is closer to the gradient and costs more.
  std::int64_t matrix_approximation_rank = 1;
  // Plain averaging in iterations before this one; they count from 0. At least 2 with error feedback or warm start.
  std::int64_t start_iteration = 1000;
  // What a gradient must at least shrink by to be compressed; not negative.
  double min_compression_rate = 2;
  // Add what compression lost to the next step's gradient. Costs memory of the size of the compressed gradients.
  bool use_error_feedback = true;
  // Start from the Q of the step before instead of a random one.
  bool warm_start = true;
  // Added to the norms that columns are divided by where the rank is at most 2 or the bucket float16 or bfloat16, as in
  // PyTorch; elsewhere not used. Not needed against zero columns. Not negative.
  double orthogonalization_epsilon = 0;
  // Of random Qs: draw k seeds a generator with the k-th randint(1'000'000'000) of numpy.random.RandomState(seed), and
  // gives the numbers that torch.manual_seed() and torch.randn() would. Each bucket takes one draw when it needs one,
  // in the order of buckets.
  std::uint32_t random_seed = 0;
  // Iterations between two lines with compression_stats() in the log (at info); less than 1 counts as 1.
  std::int64_t compression_stats_logging_frequency = 10000;
  // Gradients of one shape take their random Q in one piece, as in PyTorch. The products do not change.
  bool batch_tensors_with_same_shape = false;
};

// Elements of gradients that went through compressing iterations, and how many stood for them on the wire.
struct CompressionStats {
  double rate = 0;  // before / after; 0 before the first
  std::int64_t before = 0;
  std::int64_t after = 0;
};

// The options and the memory of one DDP's hook. One state serves one of the two forms. Thread-safe.
class PowerSGDState {
 public:
  // `group`: what collectives go through; null: bucket.group(). Throws InvalidArgument for options out of range.
  explicit PowerSGDState(PowerSGDOptions options = {}, std::shared_ptr<ProcessGroup> group = nullptr);
  ~PowerSGDState();
  PowerSGDState(const PowerSGDState&) = delete;
  PowerSGDState& operator=(const PowerSGDState&) = delete;

  const PowerSGDOptions& options() const noexcept { return options_; }
  const std::shared_ptr<ProcessGroup>& group() const noexcept { return group_; }

  // Iterations begun so far, plain ones included.
  std::int64_t iterations() const;
  CompressionStats compression_stats() const;
  // A copy of what compression has lost of a parameter's gradient on this rank; undefined where there is none.
  at::Tensor error(const std::string& parameter) const;

  // As CommHook's. Keys: "local/error/<parameter>" (1-D), "q/<parameter>" (r x m; batched: the names of the bucket,
  // joined by spaces), "iterations", "draws", "numel_before", "numel_after", "next_report" and the options that must
  // agree. P is computed anew in each step and not kept.
  HookState state_dict() const;
  void load_state_dict(const HookState& state);

  internal::PowerSGDMemory& memory() const noexcept { return *memory_; }

 private:
  const PowerSGDOptions options_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::unique_ptr<internal::PowerSGDMemory> memory_;
};

// The hook's body: averages `bucket` as above. Errors of collectives are thrown. CPU tensors of a floating-point type
// only: UnsupportedError otherwise. InvalidArgument where a loaded state has another shape than the parameter.
Future power_sgd_hook(const std::shared_ptr<PowerSGDState>& state, GradBucket& bucket);

// The same with the whole bucket, filled up with zeros, as one square matrix: faster, and less accurate, because rows
// and columns mean nothing. min_compression_rate and batch_tensors_with_same_shape do not apply.
Future batched_power_sgd_hook(const std::shared_ptr<PowerSGDState>& state, GradBucket& bucket);

// The same as hooks to register; they may run for several buckets at once. `state` must not be null.
std::shared_ptr<CommHook> make_power_sgd_hook(std::shared_ptr<PowerSGDState> state);
std::shared_ptr<CommHook> make_batched_power_sgd_hook(std::shared_ptr<PowerSGDState> state);
std::shared_ptr<CommHook> make_power_sgd_hook(PowerSGDOptions options, std::shared_ptr<ProcessGroup> group = nullptr);
std::shared_ptr<CommHook> make_batched_power_sgd_hook(PowerSGDOptions options,
                                                      std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire
