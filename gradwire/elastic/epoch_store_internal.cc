// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/epoch_store_internal.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/deadline.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

constexpr Milliseconds kSlice{100};

}  // namespace

void EpochLoss::set(int rank, std::string reason) {
  const MutexLock lock(mutex_);
  if (!reason_.empty()) return;
  rank_ = rank;
  reason_ = std::move(reason);
}

void EpochLoss::throw_if_lost() const {
  const MutexLock lock(mutex_);
  if (reason_.empty()) return;
  if (rank_ < 0) throw AbortedError(reason_);
  throw PeerError(reason_, {rank_});
}

EpochStore::EpochStore(std::shared_ptr<Store> store, std::function<void()> throw_if_over)
    : ForwardingStore(std::move(store)), throw_if_over_(std::move(throw_if_over)) {}

void EpochStore::forward(const std::function<void(Store& store)>& call) {
  throw_if_over_();
  call(*underlying());
}

void EpochStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  wait_in_slices(keys, timeout);
  const MutexLock lock(mutex_);
  waited_for_ = {keys.begin(), keys.end()};
}

void EpochStore::wait_in_slices(std::span<const std::string> keys, Milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  for (;;) {
    const Milliseconds slice = std::min(kSlice, deadline.remaining());
    try {
      return ForwardingStore::wait(keys, slice);
    } catch (const TimeoutError& last) {
      // It tells of the last slice alone.
      if (deadline.expired())
        throw TimeoutError(concat("after ", timeout.count(), " ms in all, the last look: ", last.what()));
    }
  }
}

void EpochStore::wait_once(std::span<const std::string> keys) {
  MutexLock lock(mutex_);
  const bool all_are_there = std::all_of(keys.begin(), keys.end(), [this](const std::string& key) {
    return std::find(waited_for_.begin(), waited_for_.end(), key) != waited_for_.end();
  });
  // Once for each wait: a key may be deleted.
  std::erase_if(waited_for_,
                [&](const std::string& key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); });
  lock.unlock();
  if (!all_are_there) wait_in_slices(keys, timeout());
}

Store::Value EpochStore::get(const std::string& key) {
  wait_once(std::span(&key, 1));
  return ForwardingStore::get(key);
}

std::vector<Store::Value> EpochStore::multi_get(std::span<const std::string> keys) {
  wait_once(keys);
  return ForwardingStore::multi_get(keys);
}

std::shared_ptr<Store> EpochStore::clone() {
  return std::make_shared<EpochStore>(underlying()->clone(), throw_if_over_);
}

}  // namespace gradwire::internal
