// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// copy_bytes() copies what it is asked for and no more, at every distance between the addresses, overlapping ones too.
#include "gradwire/base/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace gradwire {
namespace {

constexpr std::ptrdiff_t kPage = 4096;

std::vector<unsigned char> numbered(std::size_t size) {
  std::vector<unsigned char> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 251);
  return bytes;
}

// Copies within a buffer, and compares with a copy that goes through other memory.
void expect_copied(std::ptrdiff_t from, std::ptrdiff_t to, std::ptrdiff_t bytes) {
  std::vector<unsigned char> buffer = numbered(40'000);
  std::vector<unsigned char> expected = buffer;
  const std::vector<unsigned char> moved(buffer.begin() + from, buffer.begin() + from + bytes);
  std::copy(moved.begin(), moved.end(), expected.begin() + to);
  copy_bytes(buffer.data() + to, buffer.data() + from, static_cast<std::size_t>(bytes));
  ASSERT_EQ(buffer, expected) << bytes << " bytes from " << from << " to " << to;
}

TEST(CopyBytes, CopiesAtEveryDistance) {
  for (const std::ptrdiff_t bytes : {0, 1, 2047, 2048, 2049, 4096, 4097, 9000}) {
    for (const std::ptrdiff_t ahead : {0, 1, 16, 31, 32, 33, 64, 4095}) {
      expect_copied(100, 100 + 4 * kPage + ahead, bytes);
      expect_copied(100 + 4 * kPage, 100 + ahead, bytes);
    }
  }
}

TEST(CopyBytes, CopiesWhereTheTwoOverlap) {
  for (const std::ptrdiff_t bytes : {1, 2049, 9000, 12'000}) {
    for (const std::ptrdiff_t distance : {0, 1, 16, 31, 2048, 4096, 4096 + 16, 8999}) {
      expect_copied(5000, 5000 + distance, bytes);
      expect_copied(5000 + distance, 5000, bytes);
    }
  }
}

TEST(CopyBytes, NothingMayComeWithNoAddress) { copy_bytes(nullptr, nullptr, 0); }

}  // namespace
}  // namespace gradwire
