// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "gradwire/observe/readable_symbol_internal.h"

namespace gradwire::observe {
namespace {

std::string demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && plain != nullptr ? plain.get() : "";
}

void remove_all(std::string& text, std::string_view part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) text.erase(at, part.size());
}

// Whether `letter`, which comes behind `text`, is a part of the name of an operator: of operator<<, for example.
bool is_of_operator(const std::string& text, char letter) {
  if (letter == '<' && text.ends_with("operator<")) return true;
  if (letter == '>' && (text.ends_with("operator>") || text.ends_with("operator-"))) return true;
  if (letter == ')') return text.ends_with("operator(");
  return text.ends_with("operator");
}

// Leaves out what stands between `open` and `close`, and the two themselves, except in the name of an operator.
std::string without_brackets(const std::string& text, char open, char close) {
  std::string kept;
  int depth = 0;
  for (const char letter : text) {
    const bool is_bracket = letter == open || letter == close;
    if (is_bracket && depth == 0 && is_of_operator(kept, letter)) {
      kept += letter;
    } else if (letter == open) {
      ++depth;
    } else if (letter == close && depth > 0) {
      --depth;
    } else if (depth == 0) {
      kept += letter;
    }
  }
  return kept;
}

}  // namespace

std::string readable_symbol(const std::string& symbol) {
  std::string name = demangled(symbol);
  if (name.empty()) return symbol;
  remove_all(name, "(anonymous namespace)::");
  name = without_brackets(without_brackets(name, '<', '>'), '(', ')');
  remove_all(name, "[abi:cxx11]");
  for (const std::string_view behind : {" const", " &", " &&", " [clone"}) {
    if (const auto at = name.find(behind); at != std::string::npos) name.erase(at);
  }
  // The result of a function template.
  const auto last = name.find("operator") == std::string::npos ? name.rfind(' ') : std::string::npos;
  return last == std::string::npos ? name : name.substr(last + 1);
}

std::string keep_end(const std::string& name, std::size_t most) {
  constexpr std::string_view kDots = "...";
  return name.size() <= most ? name : std::string(kDots) + name.substr(name.size() - (most - kDots.size()));
}

}  // namespace gradwire::observe
