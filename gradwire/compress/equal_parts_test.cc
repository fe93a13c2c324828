// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Parts of equal length, with sizes and without.
#include "gradwire/compress/equal_parts_internal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/compress/registry.h"

namespace gradwire::compress::equal_parts_test {
namespace {

using Bytes = std::vector<std::byte>;

void put(const EqualParts& parts, Bytes& buffer, int r, std::size_t size, int content) {
  const auto room = parts.room(buffer, r);
  ASSERT_LE(size, room.size());
  std::fill_n(room.begin(), size, static_cast<std::byte>(content));
  parts.write_size(buffer, r, size);
}

Bytes got(const EqualParts& parts, const Bytes& buffer, int r, std::size_t count) {
  const auto encoding = parts.encoding(buffer, r, count);
  return {encoding.begin(), encoding.end()};
}

TEST(EqualParts, OfAFixedSizeHoldTheEncodingsAlone) {
  const auto codec = make_codec("fp16");
  const EqualParts parts(*codec, 0, 10, 3);
  EXPECT_FALSE(parts.hold_sizes());
  EXPECT_EQ(parts.bytes_of_one(), 20U);
  EXPECT_EQ(parts.bytes(), 60U);
  EXPECT_EQ(parts.largest_encoding(), 20U);
  Bytes buffer(parts.bytes());
  put(parts, buffer, 1, 20, 1);
  put(parts, buffer, 2, 14, 2);
  EXPECT_EQ(got(parts, buffer, 1, 10), Bytes(20, std::byte{1}));
  EXPECT_EQ(got(parts, buffer, 2, 7), Bytes(14, std::byte{2})) << "a shorter chunk";
  EXPECT_EQ(buffer[19], std::byte{0});
  EXPECT_EQ(buffer[20], std::byte{1});
}

TEST(EqualParts, OfVariableSizeBeginWithTheSize) {
  const auto codec = make_codec("threshold");
  const EqualParts parts(*codec, 0, 10, 2);
  EXPECT_TRUE(parts.hold_sizes());
  EXPECT_EQ(parts.largest_encoding(), codec->max_encoded_size(10));
  EXPECT_EQ(parts.bytes(), 2 * (8 + codec->max_encoded_size(10)));
  Bytes buffer(parts.bytes());
  put(parts, buffer, 0, 5, 1);
  put(parts, buffer, 1, parts.largest_encoding(), 2);
  EXPECT_EQ(got(parts, buffer, 0, 10), Bytes(5, std::byte{1}));
  EXPECT_EQ(got(parts, buffer, 1, 10), Bytes(parts.largest_encoding(), std::byte{2}));
}

TEST(EqualParts, RefuseASizeForWhichThereIsNoRoom) {
  const auto codec = make_codec("threshold");
  const EqualParts parts(*codec, 0, 10, 2);
  Bytes buffer(parts.bytes());
  parts.write_size(buffer, 1, parts.largest_encoding() + 1);
  EXPECT_THROW(got(parts, buffer, 1, 10), MismatchError);
  EXPECT_NO_THROW(got(parts, buffer, 0, 10));
}

TEST(EqualParts, KeepTheirContentsWhenTheyGetShorter) {
  const auto codec = make_codec("threshold");
  EqualParts parts(*codec, 0, 100, 4);
  Bytes buffer(parts.bytes());
  for (const int r : {0, 2, 3}) put(parts, buffer, r, 10 + static_cast<std::size_t>(r), r + 1);
  parts.shorten(buffer, 13, /*unused=*/1);
  EXPECT_EQ(parts.bytes_of_one(), 8U + 13U);
  EXPECT_EQ(parts.largest_encoding(), 13U);
  for (const int r : {0, 2, 3}) {
    EXPECT_EQ(got(parts, buffer, r, 100), Bytes(10 + static_cast<std::size_t>(r), static_cast<std::byte>(r + 1))) << r;
  }
}

}  // namespace
}  // namespace gradwire::compress::equal_parts_test
