// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// PowerSGD: a gradient is sent as the product of two narrow matrices (Vogels, Karimireddy, Jaggi: PowerSGD, 2019,
// arXiv:1905.13727).
//
// A gradient is taken as a matrix of n rows (the first dimension) and m columns (all other dimensions). Its rank of
// approximation is r = min(n, m, matrix_approximation_rank). The gradient is compressed when
// (n + m) * r * min_compression_rate < n * m. With the matrix M = gradient + error:
//
//   Q: of the step before, or N(0, 1)    m x r    orthonormalized
//   P = sum over ranks of M Q            n x r    all-reduced, then orthonormalized
//   Q = sum over ranks of M^T P / N      m x r    all-reduced
//   gradient = P Q^T, the same bits on all ranks; error = M - P Q^T, each rank's own
//
// Gradients that are not compressed (vectors, small matrices) are averaged by an all-reduce and have no error.
//
// Bytes that a rank sends for a bucket, with N ranks: 2 (N-1)/N * (the sum over the compressed gradients of
// (n + m) * r * w, plus the uncompressed gradients in the bucket's dtype). w is 4 bytes, and 8 for float64 buckets. The
// batched form has one matrix of s x s, s = ceil(sqrt(elements of the bucket)): 2 (N-1)/N * 2 * s * min(s, rank) * w.
// Before start_iteration a rank sends the bytes of allreduce_hook().
//
// Numbers. float16 and bfloat16 buckets are computed in float32: the error, P and Q are float32. The result is rounded
// once; a number beyond the largest one of the dtype becomes the largest one. The error takes up what rounding changes.
// A rank's own computations on bits that all ranks share have a fixed order of operations without fused operations. So
// ranks agree bitwise, also on different processors. A column that is zero, or depends linearly on earlier columns, is
// replaced by a unit vector that is orthogonal to the earlier columns. So a zero gradient gives zeros, never NaN, and Q
// keeps its matrix rank.
//
// Inf and NaN. When a compressed gradient holds an Inf or NaN on any rank, all elements of the result are NaN on all
// ranks, and the gradient's error and Q stay unchanged. The same happens when M Q overflows, and when an element of Q
// reaches 1 / (4 r) of the largest number of the dtype of the computation.
//
// A parameter that no rank used in an iteration: its error is as before the iteration, and so is its Q, unless the Q is
// of a whole bucket (CommHook::revert_unused(); power_sgd_hook() and batched_power_sgd_hook() in a hook of one's own do
// not do this). Costs memory of the size of the errors of the parameters in GradBucket::absent().
//
// State. The state (the errors and the Qs) belongs to parameters, by name, so it survives a rebuild of the buckets.
// Errors are row-major, whatever the strides of the parameters. In the batched form the error belongs to parameters,
// and Q to the bucket's list of parameters: a bucket with another list starts with a random Q. The batched form fills
// the square up with zeros, and drops the part of the product in the filled part. (In PyTorch the error belongs to the
// whole square, so this part is fed back.)
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

// The options must be the same on all ranks.
struct PowerSGDOptions {
  // The rank of the approximation, r above: at least 1. A higher rank is more accurate and costs more.
  std::int64_t matrix_approximation_rank = 1;
  // The first iteration that compresses; plain averaging before. Iterations count from 0. At least 2 with error
  // feedback or warm start.
  std::int64_t start_iteration = 1000;
  // A gradient is compressed when compression reduces its elements by more than this factor. Not negative.
  double min_compression_rate = 2;
  // True: the part of a gradient that compression loses (the error) is added to the gradient of the next step. Costs
  // memory of the size of the compressed gradients.
  bool use_error_feedback = true;
  // True: each step starts with the Q of the step before. False: each step starts with a random Q.
  bool warm_start = true;
  // This number is added to the norm by which a column is divided, as in PyTorch, when the rank is at most 2 or the
  // bucket is float16 or bfloat16; else unused. Zero columns do not need it. Not negative.
  double orthogonalization_epsilon = 0;
  // The seed of random Qs. Draw k seeds a generator with the k-th randint(1'000'000'000) of
  // numpy.random.RandomState(random_seed), and gives the same numbers as torch.manual_seed() and torch.randn(). A
  // bucket that needs random numbers takes one draw, in the order of the buckets.
  std::uint32_t random_seed = 0;
  // The number of iterations between two log lines (level info) with compression_stats(). Less than 1 counts as 1.
  std::int64_t compression_stats_logging_frequency = 10000;
  // True: gradients of the same shape take their random Qs from one draw of numbers, as in PyTorch. Changes nothing
  // else.
  bool batch_tensors_with_same_shape = false;
};

// The elements of all gradients in iterations that compress.
struct CompressionStats {
  double rate = 0;          // before / after; 0 before the first compressing iteration
  std::int64_t before = 0;  // the number of elements of the gradients
  std::int64_t after = 0;   // the number of elements that stood for them in all-reduces
};

// The options and the state of one DDP object's hook. A PowerSGDState serves one of the two forms, not both.
// Thread-safe, but call load_state_dict() between iterations only.
class PowerSGDState {
 public:
  // `group` carries the collectives; null: bucket.group(). Throws InvalidArgument for an option out of range.
  explicit PowerSGDState(PowerSGDOptions options = {}, std::shared_ptr<ProcessGroup> group = nullptr);
  ~PowerSGDState();
  PowerSGDState(const PowerSGDState&) = delete;
  PowerSGDState& operator=(const PowerSGDState&) = delete;

  const PowerSGDOptions& options() const noexcept { return options_; }
  const std::shared_ptr<ProcessGroup>& group() const noexcept { return group_; }  // null: the bucket's own

  // The number of iterations that have begun, with or without compression.
  std::int64_t iterations() const;
  CompressionStats compression_stats() const;
  // Returns a copy of this rank's error for `parameter` (1-D, row-major); undefined when there is none.
  at::Tensor error(const std::string& parameter) const;

  // As CommHook::state_dict() and CommHook::load_state_dict(). The keys are "local/error/<parameter>" (1-D),
  // "q/<parameter>" (r x m; in the batched form "q/" and the bucket's parameter names, joined by spaces), "iterations",
  // "draws", "numel_before", "numel_after", "next_report", and the options that must be the same in the loading hook. P
  // is not kept: each step computes P anew. load_state_dict() throws InvalidArgument for a state with other options.
  HookState state_dict() const;
  void load_state_dict(const HookState& state);
  // For the hooks themselves.
  internal::PowerSGDMemory& memory() const noexcept { return *memory_; }

 private:
  const PowerSGDOptions options_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::unique_ptr<internal::PowerSGDMemory> memory_;
};

// The body of the hook: replaces `bucket` by the average as above, and returns a future of bucket.buffer(). A bucket
// that is not floating point (complex, for example) is averaged exactly. Throws the errors of the collectives;
// UnsupportedError for a floating-point type other than float16, bfloat16, float32 and float64; and InvalidArgument
// when a loaded state does not fit the shape of a gradient.
Future power_sgd_hook(const std::shared_ptr<PowerSGDState>& state, GradBucket& bucket);

// The batched form: the same with the whole bucket, filled up with zeros, as one square matrix. Sends fewer bytes, and
// is less accurate, because the rows and columns of the square have no meaning. min_compression_rate and
// batch_tensors_with_same_shape do not apply.
Future batched_power_sgd_hook(const std::shared_ptr<PowerSGDState>& state, GradBucket& bucket);

// The same as hooks to register. They may run for several buckets at once. The hook shares the ownership of `state`.
// Throw InvalidArgument for a null state and for options out of range.
std::shared_ptr<CommHook> make_power_sgd_hook(std::shared_ptr<PowerSGDState> state);
std::shared_ptr<CommHook> make_batched_power_sgd_hook(std::shared_ptr<PowerSGDState> state);
std::shared_ptr<CommHook> make_power_sgd_hook(PowerSGDOptions options, std::shared_ptr<ProcessGroup> group = nullptr);
std::shared_ptr<CommHook> make_batched_power_sgd_hook(PowerSGDOptions options,
                                                      std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire
