// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the rendezvous of every backend has in common: waiting for a key while the group may have failed already.
#pragma once

#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/store/store.h"

namespace gradwire::rendezvous {

// Says to all ranks that wait in await_key() on this store that the rendezvous failed, and why. Never throws.
void announce_failure(Store& store, const std::string& reason) noexcept;

// Throws MismatchError with the reason if a failure was announced.
void throw_if_failed(Store& store);

// Waits for `key`, which `who` is to set. Throws TimeoutError that names `who`, MismatchError when a failure was
// announced.
std::string await_key(Store& store, const std::string& key, const std::string& who, Deadline deadline);

}  // namespace gradwire::rendezvous
