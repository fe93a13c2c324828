// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/elastic_group.h"

#include <ATen/Functions.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/elastic/call_tap_internal.h"
#include "gradwire/elastic/mirror_group_internal.h"
#include "gradwire/process_group/device_engine_internal.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/network_payload.h"
#include "gradwire/store/hash_store.h"

namespace gradwire {
namespace {

std::shared_ptr<ProcessGroup> alone() { return make_process_group("threads", std::make_shared<HashStore>(), 0, 1); }

}  // namespace

ElasticGroup::ElasticGroup() : ElasticGroup(alone()) {}

ElasticGroup::ElasticGroup(std::shared_ptr<ProcessGroup> group) : CallGroup(0, 1), current_(std::move(group)) {}

std::shared_ptr<ProcessGroup> ElasticGroup::current() const {
  const MutexLock lock(mutex_);
  return current_;
}

std::vector<std::shared_ptr<ElasticGroup>> ElasticGroup::duplicates() {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<ElasticGroup>> held;
  std::erase_if(duplicates_, [&](const auto& weak) {
    auto duplicate = weak.lock();
    if (duplicate == nullptr) return true;
    held.push_back(std::move(duplicate));
    return false;
  });
  return held;
}

std::string ElasticGroup::shape() {
  std::string text = "(";
  for (const auto& duplicate : duplicates()) text += duplicate->shape();
  return text + ")";
}

void ElasticGroup::move_to(std::shared_ptr<ProcessGroup> group) {
  if (group == nullptr) throw InvalidArgument("ElasticGroup::move_to(): the group is null");
  const std::string mine = shape();
  const auto all = internal::gather_integers(*group, {static_cast<std::int64_t>(stable_hash(mine))});
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    throw MismatchError(concat("ElasticGroup: rank ", rank,
                               " holds other duplicates of the group than rank 0 (this is "
                               "rank ",
                               group->rank(), ", which holds ", mine,
                               "); all members must call dup() for the same objects in the same order, before the "
                               "first epoch"));
  }
  adopt(std::move(group));
}

void ElasticGroup::adopt(std::shared_ptr<ProcessGroup> group) {
  for (const auto& duplicate : duplicates()) {
    std::shared_ptr<ProcessGroup> made = group->dup();
    if (made == nullptr) {
      throw UnsupportedError(concat("ElasticGroup: the group '", group->name(),
                                    "' cannot be duplicated, and a duplicate of the group before is in use"));
    }
    duplicate->adopt(std::move(made));
  }
  group->set_group_name(group_name());
  replace_current(std::move(group));
}

void ElasticGroup::replace_current(std::shared_ptr<ProcessGroup> group) {
  MutexLock lock(mutex_);
  sent_before_ += network_payload_bytes(*current_);
  current_.swap(group);
  lock.unlock();  // the group before may take its time to go
}

void ElasticGroup::move_out() { replace_current(alone()); }

bool ElasticGroup::has_hosts() const {
  const std::shared_ptr<ProcessGroup> group = current();
  const auto* const mirror = dynamic_cast<const internal::MirrorGroup*>(group.get());
  if (mirror != nullptr) return mirror->has_hosts();
  const auto* const hosts = dynamic_cast<const HybridGroup*>(group.get());
  return hosts != nullptr && hosts->hosts() < hosts->size();
}

bool ElasticGroup::has_stand_ins() const {
  return dynamic_cast<const internal::MirrorGroup*>(current().get()) != nullptr;
}

std::uint64_t ElasticGroup::sent_over_networks() const noexcept {
  const MutexLock lock(mutex_);
  return sent_before_ + network_payload_bytes(*current_);
}

ElasticGroup::~ElasticGroup() {
  const MutexLock lock(mutex_);
  leave_tap();
}

void ElasticGroup::leave_tap() {
  if (tap_ != nullptr) tap_->give_back_number(number_in_tap_);
  tap_ = nullptr;
}

void ElasticGroup::set_tap(std::shared_ptr<internal::CallTap> tap) {
  MutexLock lock(mutex_);
  leave_tap();
  tap_ = tap;
  number_in_tap_ = tap == nullptr ? 0 : tap->take_number();
  lock.unlock();
  for (const auto& duplicate : duplicates()) duplicate->set_tap(tap);
}

void ElasticGroup::before_next_call(const Tensors& inputs, std::function<void()> copy) {
  gradwire::before_next_call(*current(), inputs, std::move(copy));
}

std::shared_ptr<Work> ElasticGroup::do_call(GroupCall& call) {
  const std::shared_ptr<ProcessGroup> group = current();
  return call_by(call, [&] { return call_on(*group, call, timeout()); });
}

std::shared_ptr<Work> ElasticGroup::call_by(GroupCall& call, const std::function<std::shared_ptr<Work>()>& make) {
  MutexLock lock(mutex_);
  const std::shared_ptr<internal::CallTap> tap = tap_;
  const int number = number_in_tap_;
  lock.unlock();
  return tap == nullptr ? make() : tap->call(number, call, make);
}

void ElasticGroup::require_well() { internal::require_well(*current()); }

std::shared_ptr<ProcessGroup> ElasticGroup::do_dup() {
  std::shared_ptr<ProcessGroup> made = current()->dup();
  if (made == nullptr) return nullptr;
  std::shared_ptr<ElasticGroup> duplicate(new ElasticGroup(std::move(made)));
  duplicate->set_timeout(timeout());
  const MutexLock lock(mutex_);
  std::erase_if(duplicates_, [](const auto& weak) { return weak.expired(); });  // each Join in a step made one
  duplicates_.push_back(duplicate);
  if (tap_ != nullptr) duplicate->set_tap(tap_);
  return duplicate;
}

}  // namespace gradwire
