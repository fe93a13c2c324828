// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A job's store whose server may go away for a while and come back.
#pragma once

#include <functional>
#include <memory>

#include "gradwire/store/forwarding_store.h"

namespace gradwire::membership {

// Calls another store. A call that fails because the store is gone is made again until the store is back, for
// `patience` at most; then the call throws the store's StoreError. A call that the store refuses while it answers
// others is not made again. While a call waits, it ends with an AbortedError when the thread is interrupted
// (base/interrupt.h).
//
// For stores whose handles connect again by themselves, as TcpStore's do. The store that is back may be another one
// than before, so only those who can live with that should be patient (Member can). Thread-safe where the other store
// is.
class PatientStore final : public ForwardingStore {
 public:
  // Shares the ownership of `store`. Throws InvalidArgument for a null store and a negative patience.
  PatientStore(std::shared_ptr<Store> store, Milliseconds patience);

  std::shared_ptr<Store> clone() override;

 private:
  void forward(const std::function<void(Store& store)>& call) override;
  bool answers() const noexcept;

  const Milliseconds patience_;
};

// The store below a PatientStore; another store itself. For calls whose caller tries again, or must not wait for long.
std::shared_ptr<Store> without_patience(const std::shared_ptr<Store>& store);

}  // namespace gradwire::membership
