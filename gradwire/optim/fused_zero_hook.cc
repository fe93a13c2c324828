// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/fused_zero_hook.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <map>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/strings.h"
#include "gradwire/optim/fused_bucket_internal.h"
#include "gradwire/optim/zero_overlap_internal.h"

namespace gradwire {
namespace {

using internal::FusedBucket;
using internal::ZeroOverlap;
using internal::ZeroParts;

template <class... Kinds>
bool is_one_of(const torch::optim::Optimizer& optimizer) {
  return ((dynamic_cast<const Kinds*>(&optimizer) != nullptr) || ...);
}

bool is_known_element_wise(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  return is_one_of<SGD, Adam, AdamW, Adagrad, RMSprop>(optimizer);
}

class FusedZeroHook final : public CommHook {
 public:
  FusedZeroHook(std::unique_ptr<ZeroOverlap> overlap, FusedZeroOptions options)
      : CommHook(traits_of(options)), overlap_(std::move(overlap)), options_(options) {}

  Future run(GradBucket& bucket) override {
    const ZeroOverlap::Phase phase = overlap_->phase_of(bucket);
    if (phase == ZeroOverlap::Phase::step) {
      step(bucket);
      return completed_future(bucket.buffer());
    }
    {
      MutexLock lock(mutex_);
      learned_.insert_or_assign(bucket.index(), bucket);
      steps_learned_ = phase == ZeroOverlap::Phase::learn_then_step;
    }
    // A bucket that is stepped later keeps this rank's gradients until then.
    return phase == ZeroOverlap::Phase::learn ? internal::average_of(bucket) : completed_future(bucket.buffer());
  }

  void end_iteration() override {
    MutexLock lock(mutex_);
    bool has_learned = false;
    try {
      has_learned = overlap_->has_learned();
      if (has_learned) place();
    } catch (const std::exception& error) {
      // The others may be on their way to the next bucket's memory. The user's own group is not ours to end.
      ZeroParts& p = overlap_->parts();
      if (p.channel != p.group)
        p.channel->abort(concat("The fused hook failed on rank ", p.rank(), ": ", describe(error)));
      throw;
    }
    if (has_learned) {
      overlap_->set_placed();
      if (steps_learned_) {
        for (const auto& [index, bucket] : learned_) step(bucket);
      }
    }
    learned_.clear();
  }

 private:
  static HookTraits traits_of(const FusedZeroOptions& options) {
    HookTraits traits;
    traits.name = "fused_zero";
    traits.identity = concat("fused_zero:chunk_numel=", options.chunk_numel);
    traits.parallel_safe = true;
    return traits;
  }

  void step(const GradBucket& bucket) {
    (void)overlap_->pieces_of(bucket);
    buckets_.at(bucket.index()).step(bucket, overlap_->groups());
  }

  void place() GRADWIRE_REQUIRES(mutex_) {
    ZeroParts& p = overlap_->parts();
    std::vector<internal::SteppedSegments> stepped;
    for (const auto& [index, bucket] : learned_) {
      FusedBucket& fused =
          buckets_.try_emplace(index, bucket, p, overlap_->groups()[0], options_.chunk_numel).first->second;
      p.buckets.at(index).pieces = fused.pieces();
      for (const internal::ZeroPiece* piece : fused.pieces()) {
        if (piece->optimizer != nullptr) stepped.push_back(segments_of(*piece, *piece->optimizer));
      }
    }
    if (p.loaded != nullptr) split_state(*p.loaded, stepped);
  }

  const std::unique_ptr<ZeroOverlap> overlap_;
  const FusedZeroOptions options_;
  Mutex mutex_;
  std::map<std::size_t, GradBucket> learned_ GRADWIRE_GUARDED_BY(mutex_);  // of this iteration, while learning
  bool steps_learned_ GRADWIRE_GUARDED_BY(mutex_) = false;                 // those, at the end of the iteration
  std::map<std::size_t, FusedBucket> buckets_;                             // by index; filled between iterations
};

}  // namespace

std::shared_ptr<CommHook> make_fused_zero_hook(std::shared_ptr<ZeroRedundancyOptimizer> zero, const DdpCore& ddp,
                                               FusedZeroOptions options) {
  if (options.chunk_numel < 1)
    throw InvalidArgument(concat("make_fused_zero_hook(): chunk_numel is ", options.chunk_numel, "; give at least 1."));
  auto overlap = std::make_unique<ZeroOverlap>("make_fused_zero_hook", std::move(zero), ddp);
  ZeroParts& parts = overlap->parts();
  if (!options.element_wise && !is_known_element_wise(*parts.defaults)) {
    parts.has_hook = false;
    throw InvalidArgument(
        "make_fused_zero_hook(): ranks step parts of parameters, so the optimizer must treat each element by itself, "
        "as "
        "SGD, Adam, AdamW, Adagrad and RMSprop do. If this one does too, say so with element_wise.");
  }
  parts.fused = true;
  return std::make_shared<FusedZeroHook>(std::move(overlap), options);
}

}  // namespace gradwire
