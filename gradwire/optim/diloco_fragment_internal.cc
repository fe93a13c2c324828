// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/diloco_fragment_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cstddef>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/hook_estimates_internal.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/hooks/averaged_bucket_internal.h"
#include "gradwire/hooks/replaced_state_internal.h"
#include "gradwire/hooks/split_optimizer_internal.h"

namespace gradwire::internal {
namespace {

at::Tensor flat_memory(const BucketLayout& layout, ProcessGroup& group) {
  if (layout.device.is_cpu()) return group.allocate(layout.numel, layout.dtype);
  return at::zeros({layout.numel}, at::TensorOptions(layout.dtype).device(layout.device));
}

}  // namespace

DilocoFragment::DilocoFragment(std::shared_ptr<const BucketLayout> layout, std::shared_ptr<ProcessGroup> group,
                               const OptimizerFactory& outer, std::shared_ptr<CommHook> hook)
    : layout_(std::move(layout)),
      group_(std::move(group)),
      hook_(std::move(hook)),
      difference_(flat_memory(*layout_, *group_)) {
  const c10::NoGradGuard no_grad;
  memory_ = at::zeros_like(difference_);
  outer_ = layout_->views(memory_);
  for (std::size_t i = 0; i < outer_.size(); ++i) outer_[i].copy_(parameters()[i]);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(outer_);
  optimizer_ = outer(std::move(groups));
  if (optimizer_ == nullptr) throw InvalidArgument("DilocoAverager: the factory returned no outer optimizer.");
}

void DilocoFragment::begin(Lane* lane, std::int64_t count) {
  GRADWIRE_CHECK(!is_under_way());
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> differences = layout_->views(difference_);
  for (std::size_t i = 0; i < differences.size(); ++i) at::sub_out(differences[i], outer_[i], parameters()[i]);
  if (keeps_) {
    if (!kept_difference_.defined()) kept_difference_ = at::empty_like(difference_);
    kept_difference_.copy_(difference_);
    kept_hook_.keep(*hook_);
  }
  standing_.phase = DilocoPhase::begun;
  standing_.begun_at = count;
  standing_.contributes = true;
  start(lane);
}

void DilocoFragment::start(Lane* lane) {
  const auto round = static_cast<std::uint32_t>(standing_.exchanges);
  const double share = shared_at_ == standing_.begun_at ? share_ : 1;
  // Ranks whose tags differ are told so: they have loaded states of other steps.
  const CallTag tag{.iteration = round, .bucket = static_cast<std::uint16_t>(layout_->index)};
  if (lane == nullptr) {
    const std::vector<LaneScope::Route> itself{{group_, group_}};
    const LaneScope scope(itself, tag);
    return exchange(round, share);
  }
  written_ = StreamFence();
  written_.add_current(layout_->device);
  written_.record();
  lane->submit(
      [this, lane, tag, round, share] {
        const LaneScope scope(lane->routes(), tag);
        run_on_lane(*lane, round, share);
      },
      pending_);
}

void DilocoFragment::run_on_lane(Lane& lane, std::uint32_t round, double share) noexcept {
  try {
    c10::OptionalStreamGuard on_stream;
    if (!layout_->device.is_cpu()) on_stream.reset_stream(lane.stream(layout_->device));
    written_.wait();
    keep_for_current_stream(difference_);
    exchange(round, share);
    // After an error too: queued work of the stream may still read the differences.
    ended_ = StreamFence();
    ended_.add_current(layout_->device);
    ended_.record();
  } catch (...) {
    fail(std::current_exception());
  }
}

void DilocoFragment::exchange(std::uint32_t round, double share) noexcept {
  try {
    const c10::NoGradGuard no_grad;
    const GradBucket bucket(layout_, difference_, *group_, group_->size(), /*is_last=*/true, round);
    at::Tensor average = averaged_bucket(*hook_, bucket).buffer();
    if (share != 1) average.mul_(share);
    average_ = std::move(average);
    if (!keeps_) return;
    BarrierOptions confirmed;
    confirmed.async = false;
    group_->barrier(confirmed)->wait();
  } catch (...) {
    fail(std::current_exception());
  }
}

void DilocoFragment::fail(std::exception_ptr error) {
  error_ = std::move(error);
  // The others are on their way to the exchange, or in it.
  group_->abort(concat("DilocoAverager failed on rank ", group_->rank(), ": ", describe(error_)));
}

void DilocoFragment::await() {
  pending_.wait_unless_interrupted();
  follow_lane();
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (standing_.phase == DilocoPhase::begun && average_.defined()) standing_.phase = DilocoPhase::arrived;
}

void DilocoFragment::finish(double mixing) {
  await();
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> averages = layout_->views(average_);
  {
    std::vector<LentGradient> lent;
    lent.reserve(outer_.size());
    for (std::size_t i = 0; i < outer_.size(); ++i) lent.emplace_back(outer_[i], averages[i]);
    optimizer_->step();
  }
  for (std::size_t i = 0; i < outer_.size(); ++i) {
    const at::Tensor& parameter = parameters()[i];
    if (mixing == 0) {
      parameter.copy_(outer_[i]);
    } else {
      parameter.mul_(mixing).add_(outer_[i], 1 - mixing);
    }
  }
  average_.reset();
  standing_.phase = DilocoPhase::idle;
  ++standing_.exchanges;
}

void DilocoFragment::follow_lane() {
  ended_.wait();
  keep_for_current_stream(average_);
}

void DilocoFragment::leave_group() {
  pending_.wait();
  follow_lane();
  error_ = nullptr;
  // Confirmed or not: the next meeting decides whether the exchange counts.
  if (standing_.phase == DilocoPhase::begun && average_.defined()) standing_.phase = DilocoPhase::arrived;
}

FragmentStanding DilocoFragment::standing() const {
  FragmentStanding standing = standing_;
  const at::Tensor values = memory_.cpu();
  standing.hash = static_cast<std::int64_t>(
      stable_hash_of_bits({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}));
  return standing;
}

void DilocoFragment::take_back() {
  GRADWIRE_CHECK(is_under_way() && kept_difference_.defined());
  const c10::NoGradGuard no_grad;
  standing_.phase = DilocoPhase::begun;
  average_.reset();
  keep_for_current_stream(kept_difference_);
  difference_.copy_(kept_difference_);
  kept_hook_.revert(*hook_);
}

void DilocoFragment::change_ranks(double share, std::int64_t begun_at) {
  share_ = share;
  shared_at_ = begun_at;
  const HookState state = hook_->state_dict();
  const HookState shared = shared_part(state);
  HookState local = local_part(state);
  if (drop_estimates(shared, local)) hook_->load_state_dict(join_parts(shared, local));
  // What take_back() brings back next time is without them too.
  if (standing_.phase == DilocoPhase::begun) kept_hook_.keep(*hook_);
}

void DilocoFragment::begin_again(Lane* lane) {
  if (standing_.phase == DilocoPhase::begun) start(lane);
}

void DilocoFragment::save(torch::serialize::OutputArchive& archive, Scope scope) {
  await();
  if (scope == Scope::rank && standing_.phase == DilocoPhase::begun)
    throw InvalidArgument("DilocoAverager: an exchange was broken off, and cannot be saved.");
  // Between ranks in one piece: over slow links, the names and headers of many small tensors count.
  if (scope == Scope::shared) archive.write("outer", memory_.cpu(), /*is_buffer=*/true);
  for (std::size_t i = 0; scope == Scope::rank && i < outer_.size(); ++i)
    archive.write(concat("outer", i), outer_[i].cpu(), /*is_buffer=*/true);
  torch::serialize::OutputArchive optimizer(archive.compilation_unit());
  save_on_cpu(*optimizer_, optimizer);
  archive.write("optimizer", optimizer);
  torch::serialize::OutputArchive hook(archive.compilation_unit());
  const HookState state = hook_->state_dict();
  save_hook_state(scope == Scope::rank ? state : shared_part(state), hook);
  archive.write("hook", hook);
  archive.write("exchanges", c10::IValue(standing_.exchanges));
  archive.write("begun_at", c10::IValue(standing_.begun_at));
  archive.write("phase", c10::IValue(static_cast<std::int64_t>(standing_.phase)));
  if (average_.defined()) archive.write("average", average_.cpu(), /*is_buffer=*/true);
}

void DilocoFragment::load_outer(torch::serialize::InputArchive& archive, Scope scope) {
  if (scope == Scope::shared) {
    at::Tensor all;
    archive.read("outer", all, /*is_buffer=*/true);
    memory_.copy_(all);
    return;
  }
  for (std::size_t i = 0; i < outer_.size(); ++i) {
    at::Tensor value;
    archive.read(concat("outer", i), value, /*is_buffer=*/true);
    if (value.sizes() != outer_[i].sizes() || value.scalar_type() != outer_[i].scalar_type()) {
      throw InvalidArgument(concat("DilocoAverager: the archive has ", value.scalar_type(), value.sizes(), " for '",
                                   layout_->names[i], "', which is ", outer_[i].scalar_type(), outer_[i].sizes(), "."));
    }
    outer_[i].copy_(value);
  }
}

void DilocoFragment::load(torch::serialize::InputArchive& archive, Scope scope) {
  pending_.wait_unless_interrupted();
  follow_lane();
  const c10::NoGradGuard no_grad;
  load_outer(archive, scope);
  torch::serialize::InputArchive optimizer;
  archive.read("optimizer", optimizer);
  replace_state(*optimizer_, [&] {
    optimizer_->load(optimizer);
    move_to_parameters(*optimizer_);
  });
  torch::serialize::InputArchive hook;
  archive.read("hook", hook);
  const HookState state = load_hook_state(hook);
  if (scope == Scope::rank || !state.empty()) hook_->load_state_dict(state);
  const auto number = [&](const char* name) {
    c10::IValue value;
    archive.read(name, value);
    return value.toInt();
  };
  standing_.exchanges = number("exchanges");
  standing_.begun_at = number("begun_at");
  standing_.phase = static_cast<DilocoPhase>(number("phase"));
  average_.reset();
  if (standing_.phase == DilocoPhase::arrived) {
    archive.read("average", average_, /*is_buffer=*/true);
    average_ = average_.to(layout_->device);
  }
  if (scope == Scope::rank) return;
  standing_.contributes = false;
  difference_.zero_();
  kept_difference_ = at::zeros_like(difference_);
  for (std::size_t i = 0; i < outer_.size(); ++i) parameters()[i].copy_(outer_[i]);
}

}  // namespace gradwire::internal
