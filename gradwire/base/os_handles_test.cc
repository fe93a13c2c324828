// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/os_handles.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <limits>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::os_handles_test {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFdTest, ClosesAtTheEndUnlessReleased) {
  int fd = -1;
  {
    const UniqueFd owner(::memfd_create("test", MFD_CLOEXEC));
    fd = owner.get();
    ASSERT_TRUE(owner);
    EXPECT_TRUE(is_open(fd));
  }
  EXPECT_FALSE(is_open(fd));
  {
    UniqueFd owner(::memfd_create("test", MFD_CLOEXEC));
    fd = owner.release();
    EXPECT_FALSE(owner);
  }
  EXPECT_TRUE(is_open(fd));
  ::close(fd);
}

TEST(UniqueFdTest, MovingKeepsOneOwner) {
  UniqueFd first(::memfd_create("test", MFD_CLOEXEC));
  const int fd = first.get();
  UniqueFd second(std::move(first));
  UniqueFd third;
  third = std::move(second);
  EXPECT_EQ(third.get(), fd);
  EXPECT_TRUE(is_open(fd));
  third.reset();
  EXPECT_FALSE(third);
  EXPECT_FALSE(is_open(fd));
}

TEST(MappingTest, TwoMappingsOfAFileShareItsMemory) {
  const UniqueFd file(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), 8192), 0);
  const Mapping one = Mapping::of_file(file.get(), 8192);
  Mapping two = Mapping::of_file(file.get(), 8192);
  one.data()[5000] = std::byte{42};
  const Mapping moved = std::move(two);
  EXPECT_EQ(moved.data()[5000], std::byte{42});
  EXPECT_EQ(moved.bytes(), 8192U);
}

TEST(MappingTest, AnonymousMemoryIsZero) {
  const Mapping memory = Mapping::anonymous(10'000);
  for (std::size_t i = 0; i < memory.bytes(); ++i) ASSERT_EQ(memory.data()[i], std::byte{0});
}

TEST(MappingTest, WhatTheKernelRefusesIsAResourceError) {
  EXPECT_THROW(Mapping::of_file(-1, 4096), ResourceError);
  EXPECT_THROW(Mapping::anonymous(std::numeric_limits<std::size_t>::max() / 2), ResourceError);
}

}  // namespace
}  // namespace gradwire::os_handles_test
