// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/zero_hook.h"

#include <c10/core/GradMode.h>

#include <map>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/averaged_bucket_internal.h"
#include "gradwire/hooks/split_optimizer_internal.h"
#include "gradwire/hooks/unstepped_internal.h"
#include "gradwire/hooks/wrapper_internal.h"
#include "gradwire/optim/zero_overlap_internal.h"

namespace gradwire {
namespace {

using internal::copy_options;
using internal::LentGradient;
using internal::move_state;
using internal::ParamGroups;
using internal::with_options_of;
using internal::ZeroOverlap;
using internal::ZeroParts;
using internal::ZeroPiece;

class ZeroHook final : public internal::HookWrapper {
 public:
  ZeroHook(const std::shared_ptr<CommHook>& inner, std::unique_ptr<ZeroOverlap> overlap, ZeroHookOptions options)
      : HookWrapper(traits_of(inner, options), inner), overlap_(std::move(overlap)), options_(options) {}

  Future run(GradBucket& bucket) override {
    const ZeroOverlap::Phase phase = overlap_->phase_of(bucket);
    if (phase == ZeroOverlap::Phase::learn) {
      unstepped_.add_absent_of(bucket);
      return inner().run(bucket);
    }
    unstepped_.add_frozen_of(bucket);
    GradBucket averaged = internal::averaged_bucket(inner(), bucket);
    if (phase == ZeroOverlap::Phase::learn_then_step) {
      hold(averaged);
      return completed_future(averaged.buffer());
    }
    if (options_.interleaved) {
      update(averaged);
      return completed_future(averaged.buffer());
    }
    hold(averaged);
    if (bucket.is_last()) update_held();
    return completed_future(averaged.buffer());
  }

  void revert_unused(const std::vector<std::string>& names) override { unstepped_.revert_unused(inner(), names); }

  void end_iteration() override {
    unstepped_.end_iteration();
    HookWrapper::end_iteration();
    if (!overlap_->has_learned()) return;
    place(overlap_->parts());
    overlap_->set_placed();
    update_held();
  }

 private:
  static HookTraits traits_of(const std::shared_ptr<CommHook>& inner, const ZeroHookOptions& options) {
    HookTraits traits =
        internal::traits_around("zero", inner, /*keeps_single_collective=*/false,
                                concat("interleaved=", options.interleaved, ",shard_buckets=", options.shard_buckets));
    traits.parallel_safe = traits.parallel_safe && options.interleaved;
    return traits;
  }

  void place(ZeroParts& p) {
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
          group.push_back(with_options_of(overlap_->groups()[0], part));
          piece->optimizer = p.make(std::move(group));
          if (p.loaded != nullptr) {
            move_state(*p.loaded, *piece->optimizer, part);
            internal::move_to_parameters(*piece->optimizer);
          }
        }
        piece->shared.add(part);
        piece->groups.emplace_back(std::move(part));
        piece->slots = std::move(places);
        bucket.pieces.push_back(piece.get());
        p.pieces.push_back(std::move(piece));
      }
    }
  }

  void hold(const GradBucket& averaged) {
    MutexLock lock(mutex_);
    held_.emplace(averaged.index(), averaged);
  }

  void update_held() {
    std::map<std::size_t, GradBucket> held;
    {
      MutexLock lock(mutex_);
      held.swap(held_);
    }
    for (const auto& [index, averaged] : held) update(averaged);
  }

  void update(const GradBucket& averaged) {
    const c10::NoGradGuard no_grad;
    const std::vector<ZeroPiece*>& pieces = overlap_->pieces_of(averaged);
    const std::vector<at::Tensor> gradients = averaged.gradients();
    for (ZeroPiece* piece : pieces) {
      if (piece->optimizer == nullptr) continue;
      const std::vector<at::Tensor>& parameters = piece->groups[0].params();
      copy_options(overlap_->groups(), piece->optimizer->param_groups());
      std::vector<LentGradient> lent;
      lent.reserve(parameters.size());
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        // An optimizer does not step a parameter without a gradient.
        const bool steps = parameters[i].requires_grad();
        lent.emplace_back(parameters[i], steps ? gradients[piece->slots[i]] : at::Tensor());
      }
      piece->optimizer->step();
    }
    for (ZeroPiece* piece : pieces) piece->shared.share(averaged.group(), piece->owner);
  }

  const std::unique_ptr<ZeroOverlap> overlap_;
  const ZeroHookOptions options_;
  internal::UnsteppedParameters unstepped_;
  Mutex mutex_;
  std::map<std::size_t, GradBucket> held_ GRADWIRE_GUARDED_BY(mutex_);  // by index: averaged, and not stepped yet
};

}  // namespace

std::shared_ptr<CommHook> make_zero_hook(std::shared_ptr<CommHook> inner, std::shared_ptr<ZeroRedundancyOptimizer> zero,
                                         const DdpCore& ddp, ZeroHookOptions options) {
  if (inner == nullptr) throw InvalidArgument("make_zero_hook() needs a hook; got null.");
  auto overlap = std::make_unique<ZeroOverlap>("make_zero_hook", std::move(zero), ddp);
  return std::make_shared<ZeroHook>(inner, std::move(overlap), options);
}

}  // namespace gradwire
