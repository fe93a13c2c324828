// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The parameters of one bucket, which all ranks step together, each a shard of the bucket's elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gradwire/base/dtype.h"
#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/optim/zero_internal.h"

namespace gradwire::internal {

// Starts the average of the bucket, as DDP makes it without a hook.
Future average_of(const GradBucket& bucket);

// Rank r owns the r-th shard of the bucket's elements; shards are equally long, but for the last ones. A rank steps its
// shard in runs, each with an optimizer of its own, which steps the run's parts of parameters.
class FusedBucket {
 public:
  // Collective. Moves the bucket's parameters into flat memory, which ranks share where `parts.channel` can, and makes
  // the pieces of all ranks' runs, of at most `run_numel` elements. `options`: has the options of the optimizers.
  // `parts` outlives this object and owns the pieces.
  FusedBucket(const GradBucket& bucket, ZeroParts& parts, const torch::optim::OptimizerParamGroup& options,
              std::int64_t run_numel);

  // All runs' pieces, of all ranks in order.
  const std::vector<ZeroPiece*>& pieces() const noexcept { return pieces_; }

  // Collective: averages the bucket, steps it with the options of `groups`, and brings the new values to all ranks.
  void step(const GradBucket& bucket, const ParamGroups& groups);

 private:
  // A part of this rank's shard. Places in the bucket and in memory_, in elements.
  struct Run {
    ZeroPiece* piece = nullptr;
    std::int64_t begin = 0;
    std::int64_t numel = 0;
    std::int64_t memory_begin = 0;
    std::int64_t memory_numel = 0;
  };

  void add_run(const BucketLayout& layout, int owner, std::int64_t begin, std::int64_t numel, ZeroParts& parts,
               const torch::optim::OptimizerParamGroup& options);
  void pack(const BucketLayout& layout);
  bool agree_on_shared_memory(const GradBucket& bucket, ProcessGroup& channel);
  void step_run(const Run& run, const at::Tensor& gradients, const ParamGroups& groups);
  void give(const Run& run, DType dtype) const;
  void step_in_shared_memory(const GradBucket& bucket, const ParamGroups& groups);
  void step_by_collectives(const GradBucket& bucket, const ParamGroups& groups);
  at::Tensor shard_of_average(const GradBucket& bucket);

  const int rank_;
  const int size_;
  const std::int64_t shard_numel_;    // of all shards together at least as many as the bucket has elements
  at::Tensor memory_;                 // the parameters
  Tensors everywhere_;                // memory_ of every rank; empty where ranks do not share memory
  std::vector<std::int64_t> places_;  // where each of the bucket's parameters begins in memory_
  std::vector<Run> runs_;             // of this rank
  std::vector<ZeroPiece*> pieces_;
  bool group_scatters_ = true;
};

}  // namespace gradwire::internal
