// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a ZeroRedundancyOptimizer and its hook work on.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/optim/optimizer_factory.h"
#include "gradwire/optim/optimizer_state_copy_internal.h"
#include "gradwire/optim/param_groups_internal.h"
#include "gradwire/optim/partition_internal.h"
#include "gradwire/optim/segments_internal.h"
#include "gradwire/optim/shared_parameters_internal.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

inline constexpr const char* kZeroName = "ZeroRedundancyOptimizer";

// Parameters that one rank steps together. All ranks have the same pieces in the same order: one a rank, or, overlapped
// with DDP, one for each bucket and rank, or several of each with the fused hook.
struct ZeroPiece {
  int owner = 0;
  SharedParameters shared;
  ParamGroups groups = {};                                       // without options
  std::unique_ptr<torch::optim::Optimizer> optimizer = nullptr;  // on its owner
  std::vector<std::size_t> slots = {};                           // overlapped: the parameters' places in the bucket
  std::vector<Segment> segments = {};  // fused: what the tensors in `groups` are parts of; else empty
};

// The fused piece's segments, as `optimizer` steps them.
inline SteppedSegments segments_of(const ZeroPiece& piece, torch::optim::Optimizer& optimizer) {
  return {piece.segments, piece.groups[0].params(), &optimizer};
}

// Collective: throws MismatchError on all ranks when they pass other parameters, another number of groups, or other
// options.
void require_same_parameters(ProcessGroup& group, const std::vector<at::Tensor>& parameters, std::size_t groups,
                             const ZeroOptions& options);

// Throws InvalidArgument when the group was shut down. The optimizer's duplicate of the group would still work.
void require_open_group(const ProcessGroup& group);

// What the next step of an elastic job overwrites (zero_dealing.cc).
struct ZeroKept {
  bool keeps = false;                   // a step of an elastic job has begun
  bool holds = false;                   // the fields below are those from before the step
  bool stepped = false;                 // the optimizers have stepped since then
  bool undone = false;                  // undo_step() has brought the parameters back
  std::vector<at::Tensor> values = {};  // of all parameters
  std::vector<std::uint32_t> versions = {};
  std::map<void*, OptimizerEntry> entries = {};  // of the parameters of `own` and `copy`
};

// Whose parameters this rank steps.
struct ZeroPlace {
  int rank = 0;
  int size = 1;
  bool copies = false;
  // The rank whose parameters this rank steps too; -1: none.
  int copied_rank() const { return copies && size > 1 ? (rank + size - 1) % size : -1; }
};

struct ZeroParts {
  ZeroParts(ParamGroups given, OptimizerFactory make, ZeroOptions chosen);

  // An optimizer of the factory's; throws InvalidArgument for one that cannot be used here.
  std::unique_ptr<torch::optim::Optimizer> make(ParamGroups groups) const;
  // Owners and pieces for groups beyond those that are known; `all` begins with those. `shares`: makes local
  // optimizers.
  void place_groups(const ParamGroups& all);
  void require_usable(const ParamGroups& all) const;
  std::unique_ptr<ZeroPiece> make_piece(int owner) const {
    return std::make_unique<ZeroPiece>(
        ZeroPiece{.owner = owner, .shared = SharedParameters(options.parameters_as_bucket_view)});
  }
  void require_agreement(const ParamGroups& all) const {
    require_same_parameters(channel != nullptr ? *channel : *group, parameters_in(all), all.size(), options);
  }
  int rank() const { return place.rank; }
  // Throws InvalidArgument when the group has other ranks than those to which the parameters were dealt, or was shut
  // down.
  void require_dealt() const;
  // The optimizers of this rank that hold entries: its own and that of the copies.
  std::vector<torch::optim::Optimizer*> holders() const;
  // Forgets owners, pieces and their optimizers, and places all groups for `chosen`.
  void place_anew(const ZeroPlace& chosen, const ParamGroups& all);
  // Keeps what a step changes, in an elastic job.
  void keep(const ParamGroups& all);

  const OptimizerFactory factory;
  const ZeroOptions options;
  const std::shared_ptr<ProcessGroup> group;
  ParamGroups groups;                                 // as given; empty once the optimizer has them
  std::shared_ptr<ProcessGroup> channel;              // a duplicate of the group, or the group itself
  std::unique_ptr<torch::optim::Optimizer> defaults;  // without parameters: knows the defaults
  ZeroPlace place;
  GreedyPartition partition;
  std::map<const c10::TensorImpl*, int> owners;
  std::vector<std::size_t> known;  // parameters in each group that was placed
  std::vector<std::unique_ptr<ZeroPiece>> pieces;
  std::unique_ptr<torch::optim::Optimizer> copy;  // over the parameters of place.copied_rank()
  ZeroKept kept;
  std::unique_ptr<torch::optim::Optimizer> consolidated;  // over all parameters, where consolidate_state() brought it
  std::unique_ptr<torch::optim::Optimizer> loaded;        // overlapped: waits for the buckets
  bool told_of_learning = false;                          // that a loaded state waits for them

  // Of the hook, which may run for several buckets at once.
  struct SeenBucket {
    std::vector<at::Tensor> parameters;
    std::vector<ZeroPiece*> pieces = {};
  };
  Mutex mutex;
  bool has_hook = false;
  bool fused = false;            // the hook is the fused one
  std::int64_t learned_in = -1;  // the iteration in which the buckets were seen
  bool placed = false;           // pieces of the buckets are made
  std::map<std::size_t, SeenBucket> buckets;
};

}  // namespace gradwire::internal
