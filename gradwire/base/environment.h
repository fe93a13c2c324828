// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reads environment variables with one voice.
#pragma once

#include <optional>
#include <string>

namespace gradwire {

// The value of an environment variable; nothing when it is unset or empty.
std::optional<std::string> environment(const char* name);

// The value as an integer. Throws InvalidArgument that names the variable and its value when it is no integer in [low,
// high].
std::optional<long> environment_integer(const char* name, long low, long high);

}  // namespace gradwire
