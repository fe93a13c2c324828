// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/stored_number.h"

#include <charconv>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {

std::int64_t stored_number(const std::string& key, const std::string& text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || rest != end) {
    throw StoreError(concat("the store holds '", text.substr(0, 100), "' under the key '", key,
                            "', where a number must be; does another program use this store?"));
  }
  return value;
}

}  // namespace gradwire
