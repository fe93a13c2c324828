// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A store whose calls end when the epoch has ended that they serve.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/store/forwarding_store.h"

namespace gradwire::internal {

// Whether an epoch has lost a member, or the store of its ranks. Thread-safe.
class EpochLoss final {
 public:
  // `rank` of the epoch is gone, or no rank where it is -1, as `reason` says. The first call counts.
  void set(int rank, std::string reason) GRADWIRE_EXCLUDES(mutex_);
  // Throws PeerError after set(), AbortedError where no rank is gone.
  void throw_if_lost() const GRADWIRE_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  int rank_ GRADWIRE_GUARDED_BY(mutex_) = -1;
  std::string reason_ GRADWIRE_GUARDED_BY(mutex_);
};

// Passes every call on to another store. Calls `throw_if_over` before each call, and every tenth of a second in a call
// that waits (except queue_pop()), and throws what `throw_if_over` throws. So whatever rendezvous the ranks are in, and
// wherever in the store, it ends. get() and multi_get() first wait in this way, unless the wait() before was for their
// keys: links between hosts may be slow. Thread-safe where the other store and `throw_if_over` are.
class EpochStore final : public ForwardingStore {
 public:
  EpochStore(std::shared_ptr<Store> store, std::function<void()> throw_if_over);
  // Throws the error of `loss`.
  EpochStore(std::shared_ptr<Store> store, std::shared_ptr<const EpochLoss> loss)
      : EpochStore(std::move(store), [loss = std::move(loss)] { loss->throw_if_lost(); }) {}

  Value get(const std::string& key) override;
  using Store::wait;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  std::vector<Value> multi_get(std::span<const std::string> keys) override;
  std::shared_ptr<Store> clone() override;

 private:
  void forward(const std::function<void(Store& store)>& call) override;

  void wait_in_slices(std::span<const std::string> keys, Milliseconds timeout);
  // Waits for `keys`, unless the last wait() on this handle was for them.
  void wait_once(std::span<const std::string> keys);

  const std::function<void()> throw_if_over_;
  Mutex mutex_;
  std::vector<std::string> waited_for_ GRADWIRE_GUARDED_BY(mutex_);  // by the last wait(); nothing asked for it since
};

}  // namespace gradwire::internal
