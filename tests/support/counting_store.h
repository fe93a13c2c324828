// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A store that counts what reaches another one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "gradwire/store/forwarding_store.h"

namespace gradwire::test_support {

// Counts the calls, and makes them on the other store. Thread-safe where the other store is.
class CountingStore : public ForwardingStore {
 public:
  explicit CountingStore(std::shared_ptr<Store> store) : ForwardingStore(std::move(store)) {}
  int calls() const { return calls_; }
  std::shared_ptr<Store> clone() override { return std::make_shared<CountingStore>(underlying()->clone()); }

 private:
  void forward(const std::function<void(Store& store)>& call) override {
    ++calls_;
    call(*underlying());
  }

  std::atomic<int> calls_{0};
};

}  // namespace gradwire::test_support
