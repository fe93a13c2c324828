// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/environment.h"

#include <cerrno>
#include <cstdlib>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<long> environment_integer(const char* name, long low, long high) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  errno = 0;
  char* end = nullptr;
  const long value = std::strtol(text->c_str(), &end, 10);
  if (errno != 0 || *end != '\0' || value < low || value > high) {
    throw InvalidArgument(
        concat("the environment variable ", name, " is '", *text, "'; it must be an integer from ", low, " to ", high));
  }
  return value;
}

}  // namespace gradwire
