// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/file_sum_internal.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <sstream>

namespace gradwire::internal {
namespace {

constexpr std::string_view kBegin = "\ngradwire sum ";
constexpr std::size_t kDigits = 16;

}  // namespace

void FileSum::add(std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const std::size_t held = size_ % word_.size();
    std::uint64_t word = 0;
    if (held == 0 && bytes.size() >= word_.size()) {
      std::memcpy(&word, bytes.data(), sizeof(word));
      hash_ = bits_step(hash_, word);
      size_ += sizeof(word);
      bytes.remove_prefix(sizeof(word));
      continue;
    }
    const std::size_t count = std::min(word_.size() - held, bytes.size());
    std::copy_n(bytes.data(), count, word_.data() + held);
    size_ += count;
    bytes.remove_prefix(count);
    if (held + count < word_.size()) return;
    std::memcpy(&word, word_.data(), sizeof(word));
    hash_ = bits_step(hash_, word);
  }
}

std::uint64_t FileSum::value() const noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, word_.data(), size_ % word_.size());
  return fold_high_bits(bits_step(bits_step(hash_, word), size_));
}

std::string sum_line(const FileSum& sum) {
  std::ostringstream line;
  line << kBegin << std::hex << std::setw(kDigits) << std::setfill('0') << sum.value() << "\n";
  return line.str();
}

std::optional<std::string_view> without_sum(std::string_view file) {
  const std::size_t length = kBegin.size() + kDigits + 1;
  if (file.size() < length || !file.substr(file.size() - length).starts_with(kBegin)) return file;
  const std::string_view bytes = file.substr(0, file.size() - length);
  FileSum sum;
  sum.add(bytes);
  if (file.substr(bytes.size()) != sum_line(sum)) return std::nullopt;
  return bytes;
}

}  // namespace gradwire::internal
