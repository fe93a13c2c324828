// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Options as programs and launch scripts give them: "NAME" or "NAME:OPTION=VALUE,OPTION=VALUE".
#pragma once

#include <charconv>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

// "int4:block=64" in its two parts. Spaces around either are dropped; both point into the text they came from.
struct NamedOptions {
  std::string_view name;
  std::string_view options;  // what follows the first colon
};
NamedOptions split_name(std::string_view description) noexcept;

// The options of one thing. Each is taken once, by the function that says what it has to be; what is left at the end is
// unknown. All throw InvalidArgument for a text that is not what they take. A value, not thread-safe.
class Options {
 public:
  // `text` is "OPTION=VALUE,OPTION=VALUE"; spaces around words do not matter. `owner` is what messages call the thing:
  // "codec int4". Throws for a part without '=' and for an option that is given twice.
  Options(std::string owner, std::string_view text);

  const std::string& owner() const noexcept { return owner_; }
  bool has(std::string_view name) const noexcept { return values_.find(name) != values_.end(); }

  // A number of `fallback`'s type, which is what an option that is not given has.
  template <class T>
  T number(std::string_view name, T fallback) {
    std::string text;
    if (!take(name, text)) return fallback;
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) refuse(name, text, "is no number that fits");
    return value;
  }

  // A number of bytes: digits, then nothing, Ki, Mi or Gi.
  std::size_t byte_size(std::string_view name, std::size_t fallback);

  // One of `words`: its index; 0, the default, when it is not given.
  std::size_t choice(std::string_view name, const std::vector<std::string>& words);

  // Any text that is not empty.
  std::string text(std::string_view name, std::string_view fallback);

  // 0 or 1, also false or true.
  bool flag(std::string_view name, bool fallback);

  // Throws when an option is left, with `known`, the list of the right ones ("" where there are none).
  void require_all_taken(std::string_view known) const;

 private:
  bool take(std::string_view name, std::string& text);
  [[noreturn]] void refuse(std::string_view name, std::string_view text, std::string_view why) const;

  std::string owner_;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace gradwire
