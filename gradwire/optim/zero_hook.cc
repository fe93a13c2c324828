// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/zero_hook.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/averaged_bucket_internal.h"
#include "gradwire/hooks/wrapper_internal.h"
#include "gradwire/optim/full_precision_internal.h"
#include "gradwire/optim/zero_internal.h"

namespace gradwire {
namespace internal {

class ZeroHook final : public HookWrapper {
 public:
  ZeroHook(const std::shared_ptr<CommHook>& inner, std::shared_ptr<ZeroRedundancyOptimizer> zero,
           std::int64_t first_update, ZeroHookOptions options)
      : HookWrapper(traits_of(inner, options), inner),
        zero_(std::move(zero)),
        first_update_(first_update),
        options_(options) {}

  static ZeroParts& parts_of(ZeroRedundancyOptimizer& zero) { return *zero.parts_; }

  Future run(GradBucket& bucket) override {
    if (learns_from(bucket)) return inner().run(bucket);
    GradBucket averaged = averaged_bucket(inner(), bucket);
    if (options_.interleaved) {
      update(averaged, bucket.group());
      return completed_future(averaged.buffer());
    }
    held_.push_back(averaged);
    if (bucket.is_last()) {
      for (const GradBucket& held : std::exchange(held_, {})) update(held, bucket.group());
    }
    return completed_future(averaged.buffer());
  }

 private:
  static HookTraits traits_of(const std::shared_ptr<CommHook>& inner, const ZeroHookOptions& options) {
    HookTraits traits =
        traits_around("zero", inner, /*keeps_single_collective=*/false,
                      concat("interleaved=", options.interleaved, ",shard_buckets=", options.shard_buckets));
    traits.parallel_safe = traits.parallel_safe && options.interleaved;
    return traits;
  }

  bool learns_from(const GradBucket& bucket) {
    ZeroParts& p = *zero_->parts_;
    const std::int64_t iteration = bucket.iteration();
    if (iteration + 1 < first_update_) return true;
    MutexLock lock(p.mutex);
    if (p.learned_in < 0) p.learned_in = iteration;
    if (iteration == p.learned_in) {
      p.buckets[bucket.index()].parameters = bucket.parameters();
      return true;
    }
    if (!p.placed) place(p);
    return false;
  }

  void require_all_parameters(const ZeroParts& p) const {
    std::set<const c10::TensorImpl*> in_buckets;
    for (const auto& [index, bucket] : p.buckets) {
      for (const at::Tensor& parameter : bucket.parameters) in_buckets.insert(parameter.unsafeGetTensorImpl());
    }
    const auto both = static_cast<std::size_t>(
        std::count_if(in_buckets.begin(), in_buckets.end(), [&](const auto* one) { return p.owners.contains(one); }));
    std::size_t wanted = 0;
    for (const at::Tensor& parameter : zero_->param_groups_[0].params()) wanted += parameter.requires_grad() ? 1 : 0;
    if (both == wanted && both == in_buckets.size()) return;
    throw InvalidArgument(concat(
        kZeroName, ": DistributedDataParallel has ", in_buckets.size(), " parameters in its buckets and the optimizer ",
        wanted, " that need a gradient, ", both, " of them the same, on rank ", p.rank(),
        "; with overlap_with_ddp, make it from the parameters of that DistributedDataParallel, "
        "all of them."));
  }

  // The caller holds the lock; the buckets are known.
  void place(ZeroParts& p) {
    require_all_parameters(p);
    for (auto& [index, bucket] : p.buckets) {
      std::map<int, std::vector<std::size_t>> slots;
      for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
        int& owner = p.owners.at(bucket.parameters[slot].unsafeGetTensorImpl());
        if (!options_.shard_buckets) owner = static_cast<int>(index % static_cast<std::size_t>(p.group->size()));
        slots[owner].push_back(slot);
      }
      for (auto& [owner, places] : slots) {
        std::vector<at::Tensor> part;
        for (const std::size_t slot : places) part.push_back(bucket.parameters[slot]);
        auto piece = p.make_piece(owner);
        if (owner == p.rank()) {
          ParamGroups group;
          group.push_back(with_options_of(zero_->param_groups_[0], part));
          piece->optimizer = p.make(std::move(group));
          if (p.loaded != nullptr) move_state(*p.loaded, *piece->optimizer, part);
        }
        piece->groups.emplace_back(std::move(part));
        piece->slots = std::move(places);
        bucket.pieces.push_back(piece.get());
        p.pieces.push_back(std::move(piece));
      }
    }
    p.loaded.reset();
    p.placed = true;
  }

  std::vector<ZeroPiece*> pieces_of(ZeroParts& p, const GradBucket& bucket) const {
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

  void update(const GradBucket& averaged, ProcessGroup& group) {
    ZeroParts& p = *zero_->parts_;
    const c10::NoGradGuard no_grad;
    const std::vector<ZeroPiece*> pieces = pieces_of(p, averaged);
    const std::vector<at::Tensor> gradients = averaged.gradients();
    for (ZeroPiece* piece : pieces) {
      const std::vector<at::Tensor>& parameters = piece->groups[0].params();
      // Not before: the backward pass of this bucket's parameters is over, that of others may not be.
      if (piece->shared.empty()) piece->shared.add(parameters);
      if (piece->optimizer == nullptr) continue;
      copy_options(zero_->param_groups_, piece->optimizer->param_groups());
      std::vector<LentGradient> lent;
      lent.reserve(parameters.size());
      for (std::size_t i = 0; i < parameters.size(); ++i) lent.emplace_back(parameters[i], gradients[piece->slots[i]]);
      piece->optimizer->step();
    }
    for (ZeroPiece* piece : pieces) piece->shared.share(group, piece->owner);
  }

  const std::shared_ptr<ZeroRedundancyOptimizer> zero_;
  const std::int64_t first_update_;
  const ZeroHookOptions options_;
  std::vector<GradBucket> held_;  // not interleaved: averaged, and not stepped yet
};

}  // namespace internal

std::shared_ptr<CommHook> make_zero_hook(std::shared_ptr<CommHook> inner, std::shared_ptr<ZeroRedundancyOptimizer> zero,
                                         const DdpCore& ddp, ZeroHookOptions options) {
  if (inner == nullptr || zero == nullptr)
    throw InvalidArgument("make_zero_hook() needs a hook and an optimizer; got null.");
  if (!zero->options().overlap_with_ddp) {
    throw InvalidArgument(
        concat("make_zero_hook() needs a ", internal::kZeroName, " that was made with overlap_with_ddp."));
  }
  if (zero->process_group() != ddp.process_group()) {
    throw InvalidArgument(concat("make_zero_hook(): the optimizer's group is '", zero->process_group()->group_name(),
                                 "' and DistributedDataParallel's is '", ddp.process_group()->group_name(),
                                 "'; give both the same one."));
  }
  internal::require_full_precision("make_zero_hook()", ddp);
  internal::ZeroParts& parts = internal::ZeroHook::parts_of(*zero);
  MutexLock lock(parts.mutex);
  if (parts.has_hook) {
    throw InvalidArgument(
        concat("make_zero_hook(): this ", internal::kZeroName, " has a hook already; one is enough."));
  }
  parts.has_hook = true;
  // What PyTorch's hook waits for: the buckets are final from the second forward on (its static graphs: the third), and
  // one iteration more shows them all.
  const std::int64_t first_update = ddp.options().static_graph ? 3 : 2;
  return std::make_shared<internal::ZeroHook>(inner, std::move(zero), first_update, options);
}

}  // namespace gradwire
