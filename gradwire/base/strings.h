// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Functions that build messages: concat("rank ", 3, " called ", name).
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

// Joins parts with a separator: join({"a", "b"}, ", ") is "a, b".
std::string join(const std::vector<std::string>& parts, std::string_view separator);

// "0, 2, 5"
std::string join(const std::vector<int>& numbers, std::string_view separator = ", ");

// The shortest text that std::from_chars() reads back as the same number.
std::string exact(double number);
std::string exact(float number);

// The numbers at the beginning of `text`, as join() writes them: those of "0, 2; others" are 0 and 2.
std::vector<int> leading_numbers(const std::string& text);

// A time that was measured: "0.0123 s", "4.12 s"; from 1000 s on without digits behind the point, "4120 s".
std::string measured_seconds(double seconds);

// "rank 3" or "ranks 0, 2"
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace gradwire
