// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The text, its vocabulary, and its split into a training part and a held-out part. A character is a byte.
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

// Loads one file. Throws UserError when the file is missing, unreadable or empty.
Text load_file(const std::string& file);

// Loads all regular files of a folder, in the order of their names, without symbolic links. When the folder is missing
// or has no files, throws a UserError that asks for --text.
Text load_folder(const std::string& folder);

// Maps each byte that a text contains to a token, a number from 0 on in the order of the bytes, and tokens to bytes.
class Vocabulary {
 public:
  explicit Vocabulary(std::string_view text);

  int size() const noexcept { return static_cast<int>(bytes_.size()); }
  // The bytes in order; they determine the vocabulary.
  const std::string& bytes() const noexcept { return bytes_; }
  // Throws std::out_of_range for a byte that the text did not contain.
  std::uint8_t encode(char byte) const;
  char decode(std::int64_t token) const { return bytes_.at(static_cast<std::size_t>(token)); }

 private:
  std::string bytes_;
  std::array<int, 256> token_of_;
};

// A text as tokens: the training part, and the last tenth, which is held out.
class Corpus {
 public:
  // Throws the errors of require_length().
  Corpus(const Text& text, int context);

  // Throws UserError when either part of `text` is too short for one sample: `context` characters and the next one.
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
