// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "gradwire/store/store.h"

namespace gradwire::store_internal {

// While the object lives, a call on `store` waits for `most` at the longest, also for a server that stands still: for
// words that are worth little waiting. The store outlives the object.
class ShortTimeout final {
 public:
  ShortTimeout(Store& store, Milliseconds most) : store_(store), before_(store.timeout()) {
    store_.set_timeout(std::min(before_, most));
  }
  ~ShortTimeout() {
    try {
      store_.set_timeout(before_);
    } catch (...) {  // a user's class that refuses its own timeout
    }
  }
  ShortTimeout(const ShortTimeout&) = delete;
  ShortTimeout& operator=(const ShortTimeout&) = delete;

 private:
  Store& store_;
  const Milliseconds before_;
};

}  // namespace gradwire::store_internal
