// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/diloco_fragment_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/averaged_bucket_internal.h"

namespace gradwire::internal {
namespace {

at::Tensor flat_memory(const BucketLayout& layout, ProcessGroup& group) {
  if (layout.device.is_cpu()) return group.allocate(layout.numel, layout.dtype);
  return at::zeros({layout.numel}, at::TensorOptions(layout.dtype).device(layout.device));
}

}  // namespace

DilocoFragment::DilocoFragment(std::shared_ptr<const BucketLayout> layout, std::shared_ptr<ProcessGroup> group,
                               const OptimizerFactory& outer)
    : layout_(std::move(layout)), group_(std::move(group)), difference_(flat_memory(*layout_, *group_)) {
  const c10::NoGradGuard no_grad;
  const at::Tensor memory = at::zeros_like(difference_);
  outer_ = layout_->views(memory);
  for (std::size_t i = 0; i < outer_.size(); ++i) outer_[i].copy_(parameters()[i]);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(outer_);
  optimizer_ = outer(std::move(groups));
  if (optimizer_ == nullptr) throw InvalidArgument("DilocoAverager: the factory returned no outer optimizer.");
}

void DilocoFragment::begin(CommHook& hook, Lane* lane, std::uint32_t round) {
  GRADWIRE_CHECK(!under_way_);
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> differences = layout_->views(difference_);
  for (std::size_t i = 0; i < differences.size(); ++i) at::sub_out(differences[i], outer_[i], parameters()[i]);
  under_way_ = true;
  if (lane == nullptr) return exchange(hook, round);
  lane->submit(
      [this, &hook, lane, round] {
        const LaneScope scope(lane->routes(),
                              {.iteration = round, .bucket = static_cast<std::uint16_t>(layout_->index)});
        exchange(hook, round);
      },
      pending_);
}

void DilocoFragment::exchange(CommHook& hook, std::uint32_t round) noexcept {
  try {
    const c10::NoGradGuard no_grad;
    const GradBucket bucket(layout_, difference_, *group_, group_->size(), /*is_last=*/true, round);
    average_ = averaged_bucket(hook, bucket).buffer();
  } catch (...) {
    error_ = std::current_exception();
    // The others are on their way to the exchange, or in it.
    group_->abort(concat("DilocoAverager failed on rank ", group_->rank(), ": ", describe(error_)));
  }
}

void DilocoFragment::await() {
  pending_.wait_unless_interrupted();
  if (error_ != nullptr) std::rethrow_exception(error_);
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
  under_way_ = false;
}

void DilocoFragment::save(torch::serialize::OutputArchive& archive) {
  await();
  for (std::size_t i = 0; i < outer_.size(); ++i) archive.write(concat("outer", i), outer_[i], /*is_buffer=*/true);
  torch::serialize::OutputArchive optimizer(archive.compilation_unit());
  optimizer_->save(optimizer);
  archive.write("optimizer", optimizer);
  archive.write("under_way", c10::IValue(under_way_));
  if (under_way_) archive.write("average", average_, /*is_buffer=*/true);
}

void DilocoFragment::load(torch::serialize::InputArchive& archive) {
  await();
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < outer_.size(); ++i) {
    at::Tensor value;
    archive.read(concat("outer", i), value, /*is_buffer=*/true);
    if (value.sizes() != outer_[i].sizes() || value.scalar_type() != outer_[i].scalar_type()) {
      throw InvalidArgument(concat("DilocoAverager: the archive has ", value.scalar_type(), value.sizes(), " for '",
                                   layout_->names[i], "', which is ", outer_[i].scalar_type(), outer_[i].sizes(), "."));
    }
    outer_[i].copy_(value);
  }
  torch::serialize::InputArchive optimizer;
  archive.read("optimizer", optimizer);
  optimizer_->load(optimizer);
  c10::IValue under_way;
  archive.read("under_way", under_way);
  under_way_ = under_way.toBool();
  if (!under_way_) return;
  archive.read("average", average_, /*is_buffer=*/true);
  average_ = average_.to(layout_->device);
}

}  // namespace gradwire::internal
