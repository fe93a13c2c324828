// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Questions to the store of an elastic job of which the answer may be that it holds nothing.
#pragma once

#include <optional>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/store/store.h"

namespace gradwire::membership {

// Both throw what the store throws.

// Whether the store holds `key`.
bool is_there(Store& store, const std::string& key);

// The value of `key`, or nothing when it does not come within `wait`. With a `wait` of 0 the answer is the store's: a
// store that does not answer is an error (the TimeoutError of Store::check()). With a longer one, nothing may also mean
// that the store did not answer.
std::optional<std::string> value_of(Store& store, const std::string& key, Milliseconds wait = Milliseconds(0));

}  // namespace gradwire::membership
