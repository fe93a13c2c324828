// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Texts in the flight recorder's memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "gradwire/observe/flight_format_internal.h"

namespace gradwire::observe {

// Keeps the beginning of `from`, with zeros behind.
template <std::size_t Bytes>
void set_text(format::Text<Bytes>& text, std::string_view from) noexcept {
  const std::size_t length = std::min(from.size(), Bytes - 1);
  std::copy_n(from.data(), length, text.data());
  std::fill(text.begin() + static_cast<std::ptrdiff_t>(length), text.end(), '\0');
}

// What comes before the first zero. Any bytes are fine.
template <std::size_t Bytes>
std::string get_text(const format::Text<Bytes>& text) {
  return std::string(text.begin(), std::find(text.begin(), text.end(), '\0'));
}

}  // namespace gradwire::observe
