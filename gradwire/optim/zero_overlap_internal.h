// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the hooks share that run the steps of a ZeroRedundancyOptimizer in DDP's backward pass.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/optim/zero_internal.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"

namespace gradwire::internal {

// The tie between such a hook and its optimizer: the optimizer learns DDP's buckets from the hook.
class ZeroOverlap {
 public:
  // Ties `zero` to one hook of `ddp`. `maker`: the function that the user called, for errors. Throws InvalidArgument
  // and UnsupportedError as make_zero_hook() says.
  ZeroOverlap(const char* maker, std::shared_ptr<ZeroRedundancyOptimizer> zero, const DdpCore& ddp);

  // What the hook does with a bucket.
  enum class Phase {
    learn,            // average the bucket, and step nothing: DDP's buckets may change still
    learn_then_step,  // keep the bucket, and step it at the end of the iteration, when all buckets are known
    step,             // step the bucket
  };
  // The phase of this bucket's iteration. The optimizer steps from the third iteration on (with static_graph: the
  // fourth), as PyTorch's does, and remembers the buckets of the iteration before. With a state that was loaded it
  // steps from the first iteration whose buckets are final (BucketLayout::is_final). Any lane may call it.
  // Throws MismatchError on all ranks where a state was loaded on some of them only. Until the parameters are placed
  // the call is collective in the bucket's group.
  Phase phase_of(const GradBucket& bucket);
  // Returns true once, at the end of the iteration in which all buckets were seen: the hook then places the parameters.
  // Throws InvalidArgument when the buckets do not hold the optimizer's parameters, all of them and no others.
  bool has_learned();
  // The hook has placed the parameters: the next iteration steps.
  void set_placed();

  // The pieces of a bucket. Throws InvalidArgument when the bucket has other parameters than before. Makes a state that
  // was consolidated stale. Any lane may call it.
  const std::vector<ZeroPiece*>& pieces_of(const GradBucket& bucket);

  ZeroParts& parts() const noexcept;
  const ParamGroups& groups() const noexcept;  // the optimizer's one group, with its options

 private:
  void require_all_parameters() const;
  void require_loaded_by_all_or_none(const GradBucket& bucket);

  const std::shared_ptr<ZeroRedundancyOptimizer> zero_;
  const std::int64_t first_update_;  // the iteration that steps without a loaded state
};

}  // namespace gradwire::internal
