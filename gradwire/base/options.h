// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Options in a string, as on a command line: "NAME" or "NAME:OPTION=VALUE,OPTION=VALUE".
#pragma once

#include <charconv>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

// The two parts of a description such as "int4:block=64", without the spaces around them. Both point into the
// description, which must outlive them.
struct NamedOptions {
  std::string_view name;     // what comes before the colon
  std::string_view options;  // what follows the first colon
};
NamedOptions split_name(std::string_view description) noexcept;

// The options of one object. A function for each type takes an option by its name; an option that nobody took is
// unknown, and require_all_taken() throws for it. All functions throw InvalidArgument for a value of the wrong type.
// A value type; not thread-safe.
class Options {
 public:
  // `text` is "OPTION=VALUE,OPTION=VALUE"; spaces around words are ignored. `owner` is the object's name in messages,
  // such as "codec int4". Throws InvalidArgument for a part without '=' and for an option that is given twice.
  Options(std::string owner, std::string_view text);

  const std::string& owner() const noexcept { return owner_; }  // what the messages call the thing that has the options
  // Whether the text gave this option.
  bool has(std::string_view name) const noexcept { return values_.find(name) != values_.end(); }

  // Takes a number of the type of `fallback`. Returns `fallback` when the option is not given.
  template <class T>
  T number(std::string_view name, T fallback) {
    std::string text;
    if (!take(name, text)) return fallback;
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) refuse(name, text, "is no number that fits");
    return value;
  }

  // Takes a number of bytes: digits, optionally with Ki, Mi or Gi behind them.
  std::size_t byte_size(std::string_view name, std::size_t fallback);

  // Takes one of `words` and returns its index; 0 when the option is not given.
  std::size_t choice(std::string_view name, const std::vector<std::string>& words);

  // Takes any text that is not empty.
  std::string text(std::string_view name, std::string_view fallback);

  // Takes 0 or 1, also false or true.
  bool flag(std::string_view name, bool fallback);

  // Throws InvalidArgument when an option was not taken. The message holds `known`, the list of the known options (""
  // for none).
  void require_all_taken(std::string_view known) const;

 private:
  bool take(std::string_view name, std::string& text);
  [[noreturn]] void refuse(std::string_view name, std::string_view text, std::string_view why) const;

  std::string owner_;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace gradwire
