// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Text, its characters and its two parts. A character is a byte.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace char_lm {

inline constexpr const char* kLicenceFolder = "/usr/share/common-licenses";

struct Text {
  std::string bytes;
  std::string source;  // for people: "FILE" or "17 files of FOLDER"
};

// One file. Throws UserError when it is missing, unreadable or empty.
Text load_file(const std::string& file);

// All regular files of a folder, in the order of their names; symbolic links are left out. Throws UserError when there
// is no such folder or nothing in it, and asks for --text.
Text load_folder(const std::string& folder);

// Maps each byte that a text contains to a number from 0, in the order of the bytes, and back.
class Vocabulary {
 public:
  explicit Vocabulary(std::string_view text);

  int size() const noexcept { return static_cast<int>(bytes_.size()); }
  // The bytes in order: the vocabulary's whole content.
  const std::string& bytes() const noexcept { return bytes_; }
  // Throws std::out_of_range for a byte that the text did not contain.
  std::uint8_t encode(char byte) const;
  char decode(std::int64_t token) const { return bytes_.at(static_cast<std::size_t>(token)); }

 private:
  std::string bytes_;
  std::array<int, 256> token_of_;
};

// A text in numbers: what is trained on, and the last tenth, which is held out.
class Corpus {
 public:
  // Throws what require_length() throws.
  Corpus(const Text& text, int context);

  // Throws UserError when either part of `text` would be too short for one sample: `context` characters and the one
  // after.
  static void require_length(const Text& text, int context);

  const Vocabulary& vocabulary() const noexcept { return vocabulary_; }
  std::span<const std::uint8_t> train() const noexcept { return std::span(tokens_).first(split_); }
  std::span<const std::uint8_t> held_out() const noexcept { return std::span(tokens_).subspan(split_); }

 private:
  Vocabulary vocabulary_;
  std::vector<std::uint8_t> tokens_;
  std::size_t split_;
};

}  // namespace char_lm
