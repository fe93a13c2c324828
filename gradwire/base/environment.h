// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reading environment variables.
#pragma once

#include <optional>
#include <string>

namespace gradwire {

// Returns the value of an environment variable; nothing when the variable is unset or empty.
std::optional<std::string> environment(const char* name);

// Returns the value as an integer. Throws InvalidArgument, which names the variable and the value, when the value is
// not an integer from `low` to `high`.
std::optional<long> environment_integer(const char* name, long low, long high);

}  // namespace gradwire
