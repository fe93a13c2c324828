// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace gradwire {

// Returns the decimal number that `text`, the value of `key` in a store, holds. Throws StoreError when `text` is no
// number, or one that does not fit.
std::int64_t stored_number(const std::string& key, const std::string& text);

}  // namespace gradwire
