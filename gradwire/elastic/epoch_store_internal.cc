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
  if (!reason_.empty()) throw PeerError(reason_, {rank_});
}

EpochStore::EpochStore(std::shared_ptr<Store> store, std::shared_ptr<const EpochLoss> loss)
    : store_(std::move(store)), loss_(std::move(loss)) {}

Store& EpochStore::store() {
  loss_->throw_if_lost();
  return *store_;
}

void EpochStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  for (;;) {
    const Milliseconds slice = std::min(kSlice, deadline.remaining());
    try {
      return store().wait(keys, slice);
    } catch (const TimeoutError& last) {
      // It tells of the last slice alone.
      if (deadline.expired())
        throw TimeoutError(concat("after ", timeout.count(), " ms in all, the last look: ", last.what()));
    }
  }
}

Store::Value EpochStore::get(const std::string& key) {
  wait(std::span(&key, 1), timeout());
  return store().get(key);
}

std::vector<Store::Value> EpochStore::multi_get(std::span<const std::string> keys) {
  wait(keys, timeout());
  return store().multi_get(keys);
}

void EpochStore::set(const std::string& key, const Value& value) { store().set(key, value); }
std::int64_t EpochStore::add(const std::string& key, std::int64_t amount) { return store().add(key, amount); }
Store::Value EpochStore::compare_set(const std::string& key, const Value& expected, const Value& desired) {
  return store().compare_set(key, expected, desired);
}
bool EpochStore::check(std::span<const std::string> keys) { return store().check(keys); }
bool EpochStore::delete_key(const std::string& key) { return store().delete_key(key); }
std::int64_t EpochStore::num_keys() { return store().num_keys(); }
void EpochStore::append(const std::string& key, const Value& value) { store().append(key, value); }
void EpochStore::multi_set(std::span<const std::string> keys, std::span<const Value> values) {
  store().multi_set(keys, values);
}
void EpochStore::queue_push(const std::string& queue, const Value& value) { store().queue_push(queue, value); }
Store::Value EpochStore::queue_pop(const std::string& queue) { return store().queue_pop(queue); }
std::int64_t EpochStore::queue_length(const std::string& queue) { return store().queue_length(queue); }
std::shared_ptr<Store> EpochStore::clone() { return std::make_shared<EpochStore>(store_->clone(), loss_); }

}  // namespace gradwire::internal
