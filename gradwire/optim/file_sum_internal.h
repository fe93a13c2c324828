// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A hash at the end of a file, by which a reader sees that a byte has changed. Readers of zip archives, as which
// libtorch writes its archives, skip what follows the archive.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gradwire/base/stable_hash.h"

namespace gradwire::internal {

// The hash of bytes that come in pieces; where one piece ends and the next begins makes no difference. Not against an
// adversary.
class FileSum final {
 public:
  void add(std::string_view bytes) noexcept;
  std::uint64_t value() const noexcept;

 private:
  std::uint64_t hash_ = kFnvBasis;
  std::uint64_t size_ = 0;
  std::array<char, sizeof(std::uint64_t)> word_ = {};  // the first size_ % 8 bytes of it are not in the hash yet
};

// What a file ends with whose other bytes have this hash.
std::string sum_line(const FileSum& sum);

// The file without its sum_line(); the whole file where it has none. Nothing when the bytes have another hash.
std::optional<std::string_view> without_sum(std::string_view file);

}  // namespace gradwire::internal
