// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/nn/layer_group.h"

#include <utility>

#include "gradwire/process_group/changing_ranks.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/live_groups_internal.h"

namespace gradwire {
namespace {

std::shared_ptr<ProcessGroup> shared_duplicate(const std::shared_ptr<ProcessGroup>& group) {
  if (auto kept = internal::kept_for_layers(*group)) return kept;
  std::shared_ptr<ProcessGroup> duplicate = group->dup();
  if (duplicate == nullptr || duplicate == group) return group;
  internal::keep_for_layers(*group, duplicate);
  return duplicate;
}

}  // namespace

LayerGroup::LayerGroup(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {
  if (dynamic_cast<const ChangingRanks*>(group_.get()) != nullptr) duplicate_of(group_);
}

std::shared_ptr<ProcessGroup> LayerGroup::duplicate() {
  std::shared_ptr<ProcessGroup> group = group_;
  if (group == nullptr && is_initialized()) group = default_group();
  if (group == nullptr || group->size() < 2) return nullptr;
  if (duplicate_ == nullptr || duplicated_.lock() != group) duplicate_of(group);
  return duplicate_;
}

void LayerGroup::duplicate_of(const std::shared_ptr<ProcessGroup>& group) {
  duplicate_.reset();
  duplicate_ = shared_duplicate(group);
  duplicated_ = group;
}

}  // namespace gradwire
