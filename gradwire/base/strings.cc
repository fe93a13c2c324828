// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/strings.h"

#include <charconv>
#include <cstdio>

namespace gradwire {
namespace {

template <class Number>
std::string shortest(Number number) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof(text), number);
  return {text, result.ptr};
}

template <class Items>
std::string join_items(const Items& items, std::string_view separator) {
  std::ostringstream out;
  bool first = true;
  for (const auto& item : items) {
    if (!first) out << separator;
    out << item;
    first = false;
  }
  return std::move(out).str();
}

}  // namespace

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return join_items(parts, separator);
}

std::string join(const std::vector<int>& numbers, std::string_view separator) { return join_items(numbers, separator); }

std::string exact(double number) { return shortest(number); }
std::string exact(float number) { return shortest(number); }

std::vector<int> leading_numbers(const std::string& text) {
  std::istringstream list(text);
  std::vector<int> numbers;
  for (int number = 0; list >> number;) {
    numbers.push_back(number);
    if (list.peek() != ',') break;
    list.ignore(1);
  }
  return numbers;
}

std::string measured_seconds(double seconds) {
  char text[32];
  // %.3g would write an exponent from here on.
  std::snprintf(text, sizeof(text), seconds < 999.5 ? "%.3g s" : "%.0f s", seconds);
  return text;
}

std::string name_ranks(const std::vector<int>& ranks) {
  return concat(ranks.size() == 1 ? "rank " : "ranks ", join(ranks));
}

}  // namespace gradwire
