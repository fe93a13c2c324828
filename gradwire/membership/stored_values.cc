// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/stored_values.h"

#include <span>

#include "gradwire/base/error.h"

namespace gradwire::membership {

bool is_there(Store& store, const std::string& key) { return store.check(std::span(&key, 1)); }

std::optional<std::string> value_of(Store& store, const std::string& key, Milliseconds wait) {
  if (wait.count() == 0) {
    // check() waits for an answer. A wait() that ends does not tell whether the key or the answer did not come, and
    // whoever takes a silent store for an empty one says everything again.
    if (!is_there(store, key)) return std::nullopt;
    return store.get(key);
  }
  try {
    store.wait(std::span(&key, 1), wait);
  } catch (const TimeoutError&) {
    return std::nullopt;
  }
  return store.get(key);
}

}  // namespace gradwire::membership
