// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/optim/full_precision_internal.h"
#include "gradwire/optim/zero_overlap_internal.h"

namespace gradwire::internal {

// What PyTorch's hook waits for: the buckets are final from the second forward on (its static graphs: the third), and
// one iteration more shows them all.
ZeroOverlap::ZeroOverlap(const char* maker, std::shared_ptr<ZeroRedundancyOptimizer> zero, const DdpCore& ddp)
    : zero_(std::move(zero)), first_update_(ddp.options().static_graph ? 3 : 2) {
  if (zero_ == nullptr) throw InvalidArgument(concat(maker, "() needs an optimizer; got null."));
  if (!zero_->options().overlap_with_ddp)
    throw InvalidArgument(concat(maker, "() needs a ", kZeroName, " that was made with overlap_with_ddp."));
  if (zero_->process_group() != ddp.process_group()) {
    throw InvalidArgument(concat(maker, "(): the optimizer's group is '", zero_->process_group()->group_name(),
                                 "' and DistributedDataParallel's is '", ddp.process_group()->group_name(),
                                 "'; give both the same one."));
  }
  require_full_precision(concat(maker, "()"), ddp);
  ZeroParts& p = parts();
  MutexLock lock(p.mutex);
  if (p.has_hook) throw InvalidArgument(concat(maker, "(): this ", kZeroName, " has a hook already; one is enough."));
  p.has_hook = true;
}

ZeroParts& ZeroOverlap::parts() const noexcept { return *zero_->parts_; }
const ParamGroups& ZeroOverlap::groups() const noexcept { return zero_->param_groups_; }

void ZeroOverlap::require_loaded_by_all_or_none(const GradBucket& bucket) {
  ZeroParts& p = parts();
  bool has_loaded = false;
  {
    MutexLock lock(p.mutex);
    if (p.placed) return;
    has_loaded = p.loaded != nullptr;
  }
  const auto by_rank = gather_integers(bucket.group(), {has_loaded ? 1 : 0});
  std::vector<int> with;
  std::vector<int> without;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    (by_rank[rank][0] == 1 ? with : without).push_back(static_cast<int>(rank));
  }
  if (with.empty() || without.empty()) return;
  throw MismatchError(concat(kZeroName, " with overlap_with_ddp: ranks ", join(with), " have loaded a state and ranks ",
                             join(without),
                             " have not, so they would step in other iterations; load the state of the same checkpoint "
                             "on all ranks before the first backward pass, or on none."));
}

ZeroOverlap::Phase ZeroOverlap::phase_of(const GradBucket& bucket) {
  require_loaded_by_all_or_none(bucket);
  ZeroParts& p = parts();
  MutexLock lock(p.mutex);
  if (p.placed) return Phase::step;
  const bool steps = p.loaded != nullptr && bucket.layout().is_final;
  if (p.loaded != nullptr && !steps && !std::exchange(p.told_of_learning, true)) {
    log::warn(concat(kZeroName, " with overlap_with_ddp: iteration ", bucket.iteration(),
                     " takes no step, because the order of DistributedDataParallel's buckets was not loaded with the "
                     "optimizer's state. The run differs from one that was not interrupted; restore() of a checkpoint "
                     "loads both, and set_bucket_order() loads the order alone."));
  }
  if (steps || bucket.iteration() + 1 >= first_update_) {
    p.learned_in = bucket.iteration();
    p.buckets[bucket.index()].parameters = bucket.parameters();
  }
  return steps ? Phase::learn_then_step : Phase::learn;
}

bool ZeroOverlap::has_learned() {
  ZeroParts& p = parts();
  MutexLock lock(p.mutex);
  if (p.placed || p.learned_in < 0) return false;
  require_all_parameters();
  return true;
}

void ZeroOverlap::set_placed() {
  ZeroParts& p = parts();
  MutexLock lock(p.mutex);
  p.loaded.reset();
  p.placed = true;
}

const std::vector<ZeroPiece*>& ZeroOverlap::pieces_of(const GradBucket& bucket) {
  ZeroParts& p = parts();
  MutexLock lock(p.mutex);
  p.consolidated.reset();
  const auto seen = p.buckets.find(bucket.index());
  const auto same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  if (seen == p.buckets.end() || !std::equal(seen->second.parameters.begin(), seen->second.parameters.end(),
                                             bucket.parameters().begin(), bucket.parameters().end(), same)) {
    throw InvalidArgument(concat(kZeroName, ": bucket ", bucket.index(), " has other parameters than it had in ",
                                 "iteration ", p.learned_in, " on rank ", p.rank(),
                                 "; make one optimizer for each DistributedDataParallel."));
  }
  return seen->second.pieces;
}

void ZeroOverlap::require_all_parameters() const {
  const ZeroParts& p = parts();
  std::set<const c10::TensorImpl*> in_buckets;
  for (const auto& [index, bucket] : p.buckets) {
    for (const at::Tensor& parameter : bucket.parameters) in_buckets.insert(parameter.unsafeGetTensorImpl());
  }
  const auto both = static_cast<std::size_t>(
      std::count_if(in_buckets.begin(), in_buckets.end(), [&](const auto* one) { return p.owners.contains(one); }));
  std::size_t wanted = 0;
  for (const at::Tensor& parameter : groups()[0].params()) {
    // One that was frozen after DistributedDataParallel was made is in a bucket.
    wanted += parameter.requires_grad() || in_buckets.contains(parameter.unsafeGetTensorImpl()) ? 1 : 0;
  }
  if (both == wanted && both == in_buckets.size()) return;
  throw InvalidArgument(concat(kZeroName, ": DistributedDataParallel has ", in_buckets.size(),
                               " parameters in its buckets and the optimizer ", wanted, " that need a gradient, ", both,
                               " of them the same, on rank ", p.rank(),
                               "; with overlap_with_ddp, make it from the parameters of that DistributedDataParallel, "
                               "all of them."));
}

}  // namespace gradwire::internal
