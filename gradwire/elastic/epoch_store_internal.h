// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A store whose calls end when the epoch has ended that they serve.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// Whether an epoch has lost a member. Thread-safe.
class EpochLoss final {
 public:
  // `rank` of the epoch is gone, as `reason` says. The first call counts.
  void set(int rank, std::string reason) GRADWIRE_EXCLUDES(mutex_);
  // Throws PeerError after set().
  void throw_if_lost() const GRADWIRE_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  int rank_ GRADWIRE_GUARDED_BY(mutex_) = -1;
  std::string reason_ GRADWIRE_GUARDED_BY(mutex_);
};

// Passes every call on to another store. Throws the PeerError of `loss` in place of a call, and within a tenth of a
// second out of a call that waits (except queue_pop()). So whatever rendezvous the ranks are in, and wherever in the
// store, it ends. Thread-safe where the other store is.
class EpochStore final : public Store {
 public:
  EpochStore(std::shared_ptr<Store> store, std::shared_ptr<const EpochLoss> loss);

  void set(const std::string& key, const Value& value) override;
  Value get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  Value compare_set(const std::string& key, const Value& expected, const Value& desired) override;
  using Store::wait;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  bool check(std::span<const std::string> keys) override;
  bool delete_key(const std::string& key) override;
  std::int64_t num_keys() override;
  void append(const std::string& key, const Value& value) override;
  std::vector<Value> multi_get(std::span<const std::string> keys) override;
  void multi_set(std::span<const std::string> keys, std::span<const Value> values) override;
  void queue_push(const std::string& queue, const Value& value) override;
  Value queue_pop(const std::string& queue) override;
  std::int64_t queue_length(const std::string& queue) override;
  Milliseconds timeout() const override { return store_->timeout(); }
  void set_timeout(Milliseconds timeout) override { store_->set_timeout(timeout); }
  std::shared_ptr<Store> clone() override;

 private:
  Store& store();

  const std::shared_ptr<Store> store_;
  const std::shared_ptr<const EpochLoss> loss_;
};

}  // namespace gradwire::internal
