// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/rendezvous_internal.h"

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::rendezvous {
namespace {

const std::string kFailed = "failed";
constexpr Milliseconds kLook{200};

}  // namespace

void announce_failure(Store& store, const std::string& reason) noexcept {
  try {
    store.compare_set(kFailed, "", reason);
  } catch (...) {  // the store is gone too; the others have their deadlines
  }
}

void throw_if_failed(Store& store) {
  if (store.check({&kFailed, 1})) throw MismatchError(concat("rendezvous failed: ", store.get(kFailed)));
}

std::string await_key(Store& store, const std::string& key, const std::string& who, Deadline deadline) {
  for (;;) {
    try {
      store.wait({&key, 1}, std::min(kLook, deadline.remaining()));
      return store.get(key);
    } catch (const TimeoutError&) {
      throw_if_failed(store);
      throw_if_interrupted("rendezvous");
      if (deadline.expired()) {
        throw TimeoutError(concat("rendezvous: the deadline passed while waiting for ", who, " (key '", key, "')"));
      }
    }
  }
}

}  // namespace gradwire::rendezvous
