// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/options.h"

#include <algorithm>
#include <limits>

#include "gradwire/base/error.h"
#include "gradwire/base/nearest.h"
#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

std::string_view trim(std::string_view text) noexcept {
  const auto first = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(first);
  const auto last = text.find_last_not_of(" \t");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

// "ratio", "ramp" of "ratio=0.001,ramp=1000".
std::vector<std::string> names_in(std::string_view options) {
  std::vector<std::string> names;
  while (!options.empty()) {
    const std::string_view option = options.substr(0, options.find(','));
    names.emplace_back(option.substr(0, option.find('=')));
    options.remove_prefix(std::min(option.size() + 1, options.size()));
  }
  return names;
}

}  // namespace

NamedOptions split_name(std::string_view description) noexcept {
  const std::size_t colon = std::min(description.find(':'), description.size());
  return {trim(description.substr(0, colon)), trim(description.substr(std::min(colon + 1, description.size())))};
}

Options::Options(std::string owner, std::string_view text) : owner_(std::move(owner)) {
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view option = trim(text.substr(0, comma));
    const std::size_t equals = option.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      throw InvalidArgument(concat(owner_, ": '", option, "' is no OPTION=VALUE"));
    }
    const std::string_view name = trim(option.substr(0, equals));
    if (!values_.emplace(name, trim(option.substr(equals + 1))).second) {
      throw InvalidArgument(concat(owner_, ": option ", name, " is given twice"));
    }
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
}

std::size_t Options::byte_size(std::string_view name, std::size_t fallback) {
  std::string text;
  if (!take(name, text)) return fallback;
  static constexpr struct {
    std::string_view suffix;
    int shift;
  } kUnits[] = {{"Ki", 10}, {"Mi", 20}, {"Gi", 30}, {"", 0}};
  for (const auto& unit : kUnits) {
    const std::string_view all = text;
    if (!all.ends_with(unit.suffix)) continue;
    const std::string_view digits = all.substr(0, all.size() - unit.suffix.size());
    std::size_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool fits = value <= std::numeric_limits<std::size_t>::max() >> unit.shift;
    if (error == std::errc() && end == digits.data() + digits.size() && fits) return value << unit.shift;
    break;
  }
  refuse(name, text, "is no number of bytes, such as 4096 or 64Ki");
}

std::size_t Options::choice(std::string_view name, const std::vector<std::string>& words) {
  std::string text;
  if (!take(name, text)) return 0;
  const auto word = std::find(words.begin(), words.end(), text);
  if (word == words.end()) refuse(name, text, concat("must be one of ", join(words, ", ")));
  return static_cast<std::size_t>(word - words.begin());
}

std::string Options::text(std::string_view name, std::string_view fallback) {
  std::string text;
  if (!take(name, text)) return std::string(fallback);
  if (text.empty()) refuse(name, text, "must not be empty");
  return text;
}

bool Options::flag(std::string_view name, bool fallback) {
  std::string text;
  if (!take(name, text)) return fallback;
  if (text == "1" || text == "true") return true;
  if (text == "0" || text == "false") return false;
  refuse(name, text, "must be 0 or 1");
}

void Options::require_all_taken(std::string_view known) const {
  if (values_.empty()) return;
  const std::string& wrong = values_.begin()->first;
  const std::vector<std::string> names = names_in(known);
  if (std::find(names.begin(), names.end(), wrong) != names.end()) {
    throw InvalidArgument(concat(owner_, ": the option '", wrong,
                                 "' has no effect with the other options as they are; ", "its options are ", known));
  }
  throw InvalidArgument(concat(owner_, " has no option '", wrong, "'", did_you_mean(wrong, names), "; ",
                               known.empty() ? std::string("it has none") : concat("its options are ", known)));
}

bool Options::take(std::string_view name, std::string& text) {
  const auto option = values_.find(name);
  if (option == values_.end()) return false;
  text = std::move(option->second);
  values_.erase(option);
  return true;
}

void Options::refuse(std::string_view name, std::string_view text, std::string_view why) const {
  throw InvalidArgument(concat(owner_, ": option ", name, "=", text, " ", why));
}

}  // namespace gradwire
