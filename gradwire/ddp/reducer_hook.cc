// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which hook the Reducer runs, and the groups that it may use.
#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/hook_agreement_internal.h"
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {
namespace {

void require_named_groups(const CommHook& hook) {
  for (const auto& named : hook.traits().groups) {
    if (named == nullptr) throw InvalidArgument(concat("The hook '", hook.traits().name, "' names a null group."));
  }
}

bool routed(const std::vector<LaneScope::Route>& routes, const std::shared_ptr<ProcessGroup>& group) {
  return std::any_of(routes.begin(), routes.end(), [&](const auto& route) { return route.original == group; });
}

}  // namespace

int Reducer::usable_lanes() const noexcept {
  const int lanes = static_cast<int>(lanes_.size());
  return hook_ != nullptr && !hook_->traits().parallel_safe ? std::min(lanes, 1) : lanes;
}

void Reducer::set_hook(std::shared_ptr<CommHook> hook) {
  MutexLock lock(mutex_);
  if (hook == nullptr) throw InvalidArgument("register_comm_hook() got a null hook.");
  if (hook_ != nullptr) {
    throw InvalidArgument(concat("register_comm_hook(): this DistributedDataParallel has the hook '",
                                 hook_->traits().name,
                                 "' already; it takes one, once. replace_comm_hook() changes it."));
  }
  if (iteration_ > 0 || next_bucket_ > 0) {
    throw InvalidArgument(
        "register_comm_hook() was called after the first synchronized backward pass; register the hook before "
        "training.");
  }
  require_named_groups(*hook);
  hook_ = std::move(hook);
  hook_since_ = iteration_;
  if (control_ != nullptr) duplicate_hook_groups();
}

void Reducer::replace_hook(std::shared_ptr<CommHook> hook) {
  // Before the lock, which a hook's own thread may hold.
  if (reducing_) {
    throw InvalidArgument(
        concat("replace_comm_hook() was called within a backward pass on rank ", group_->rank(),
               ", or after one that did not reach all parameters; call it between iterations, before the forward."));
  }
  MutexLock lock(mutex_);
  if (hook != nullptr) require_named_groups(*hook);
  replacement_ = std::move(hook);
}

void Reducer::adopt_replacement() {
  if (!replacement_) return;
  hook_ = *std::exchange(replacement_, std::nullopt);
  ++hooks_before_;
  hook_since_ = iteration_;
  if (control_ != nullptr) duplicate_hook_groups();
}

CallTag Reducer::tag_of(std::size_t bucket) const noexcept {
  return {.iteration = iteration_, .bucket = static_cast<std::uint16_t>(bucket), .stage = 0, .hook = hooks_before_};
}

// Ranks that have not replaced their hook make another call in this place, which the tag tells apart.
void Reducer::compare_hooks(std::size_t bucket, ProcessGroup& group, std::uint32_t iteration) const {
  if (hook_since_ == iteration && bucket == store_.first_dense_bucket()) require_same_hooks(group, hook_.get());
}

void Reducer::duplicate_hook_groups() {
  if (hook_ == nullptr) return;
  for (const auto& named : hook_->traits().groups) {
    if (named == group_) continue;
    for (auto& lane : lanes_) {
      if (routed(lane->routes(), named)) continue;  // an earlier hook named it too
      std::shared_ptr<ProcessGroup> duplicate = duplicate_of(named);
      if (duplicate == nullptr) {
        throw UnsupportedError(
            concat("The hook '", hook_->traits().name, "' names the group '", named->group_name(), "' (", named->name(),
                   "), which cannot be duplicated; make DistributedDataParallel with lanes = 0 for it."));
      }
      auto routes = lane->routes();
      routes.push_back({named, duplicate});
      lane->set_routes(std::move(routes));
    }
    if (!routes_here_.empty() && !routed(routes_here_, named)) {
      const std::shared_ptr<ProcessGroup> duplicate = duplicate_of(named);
      // Without a duplicate its calls are ordered with the user's own, which are made on this thread too.
      routes_here_.push_back({named, duplicate != nullptr ? duplicate : named});
    }
  }
}

}  // namespace gradwire::internal
