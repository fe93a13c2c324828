// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "examples/char_lm/errors.h"
#include "gradwire/base/strings.h"

namespace char_lm {
namespace {

using gradwire::concat;
namespace fs = std::filesystem;

constexpr std::size_t kHeldOutShare = 10;  // one in so many characters is held out

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw UserError(concat("the text ", path.string(), " cannot be read; does it exist, and may you read it?"));
  }
  std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) {
    throw UserError(concat("reading the text ", path.string(), " failed half-way"));
  }
  return bytes;
}

// Sorted, so that all ranks and all machines with the same files see one text.
std::vector<fs::path> regular_files(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->symlink_status().type() == fs::file_type::regular) {
      files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Text load_file(const std::string& file) {
  std::error_code ignored;
  const fs::file_status status = fs::status(file, ignored);
  if (!fs::exists(status)) {
    throw UserError(concat("the text ", file, " does not exist"));
  }
  if (fs::is_directory(status)) {
    throw UserError(concat("the text ", file, " is a folder; --text takes one file"));
  }
  Text text{read_all(file), file};
  if (text.bytes.empty()) {
    throw UserError(concat("the text ", file, " is empty"));
  }
  return text;
}

Text load_folder(const std::string& folder) {
  Text text;
  const std::vector<fs::path> files = regular_files(folder);
  for (const fs::path& path : files) {
    text.bytes += read_all(path);
  }
  if (text.bytes.empty()) {
    throw UserError(concat("there are no texts in ", folder, " to learn; name a file with --text FILE"));
  }
  text.source = concat(files.size(), " files of ", folder);
  return text;
}

Vocabulary::Vocabulary(std::string_view text) {
  token_of_.fill(-1);
  for (const char byte : text) {
    token_of_[static_cast<unsigned char>(byte)] = 0;
  }
  for (int value = 0; value < 256; ++value) {
    int& token = token_of_[static_cast<std::size_t>(value)];
    if (token == 0) {
      token = size();
      bytes_.push_back(static_cast<char>(value));
    }
  }
}

std::uint8_t Vocabulary::encode(char byte) const {
  const int token = token_of_[static_cast<unsigned char>(byte)];
  if (token < 0) {
    throw std::out_of_range(
        concat("byte ", static_cast<int>(static_cast<unsigned char>(byte)), " is not in the vocabulary"));
  }
  return static_cast<std::uint8_t>(token);
}

Corpus::Corpus(const Text& text, int context) : vocabulary_(text.bytes) {
  require_length(text, context);
  tokens_.reserve(text.bytes.size());
  for (const char byte : text.bytes) {
    tokens_.push_back(vocabulary_.encode(byte));
  }
  split_ = tokens_.size() - tokens_.size() / kHeldOutShare;
}

void Corpus::require_length(const Text& text, int context) {
  // Nine tenths hold a sample wherever one tenth does.
  const std::size_t needed = kHeldOutShare * (static_cast<std::size_t>(context) + 1);
  if (text.bytes.size() < needed) {
    throw UserError(concat("the text (", text.source, ") has ", text.bytes.size(), " characters, but --context ",
                           context, " needs at least ", needed));
  }
}

}  // namespace char_lm
