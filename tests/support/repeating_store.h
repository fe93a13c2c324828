// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A store that does each call twice.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "gradwire/store/forwarding_store.h"

namespace gradwire::test_support {

// Makes each call twice on the other store and returns what the second one does, as a store that tries again does when
// the reply to the first try was lost. Thread-safe where the other store is.
class RepeatingStore final : public ForwardingStore {
 public:
  explicit RepeatingStore(std::shared_ptr<Store> store) : ForwardingStore(std::move(store)) {}
  std::shared_ptr<Store> clone() override { return std::make_shared<RepeatingStore>(underlying()->clone()); }

 private:
  void forward(const std::function<void(Store& store)>& call) override {
    call(*underlying());
    call(*underlying());
  }
};

}  // namespace gradwire::test_support
