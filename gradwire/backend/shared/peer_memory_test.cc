// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves that ranks read each other's memory where they may, and only that of the right process.
#include "gradwire/backend/shared/peer_memory_internal.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/backend/shared/fixed_world_test_support.h"

namespace gradwire::shared::peer_memory_test {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLarge = std::size_t{1} << 20;

class PeerMemoryTest : public ::testing::Test {
 protected:
  PeerMemoryTest() { std::iota(memory_.begin(), memory_.end(), 1); }
  ~PeerMemoryTest() override { ::unsetenv("GRADWIRE_READ_PEERS"); }

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(memory_)); }
  // Whether rank 1 of this world reads what rank 0 lent.
  bool reads(const World& world, std::uint64_t from) {
    PeerMemory reader(world, marks_.data(), kPage);
    std::vector<std::byte> to(bytes().size());
    return reader.read(0, from, to) && std::equal(to.begin(), to.end(), bytes().begin());
  }

  std::vector<unsigned> memory_ = std::vector<unsigned>(kLarge / sizeof(unsigned));
  alignas(kPage) std::array<std::byte, 2 * kPage> marks_{};
};

TEST_F(PeerMemoryTest, LargeMemoryIsLentAndReadInOneProcess) {
  const FixedWorld lender_world(0, {::getpid(), ::getpid()});
  const PeerMemory lender(lender_world, marks_.data(), kPage);
  EXPECT_EQ(lender.lend(bytes().first(100)), 0U) << "a frame is quicker";
  const std::uint64_t from = lender.lend(bytes());
  ASSERT_NE(from, 0U);
  EXPECT_TRUE(reads(FixedWorld(1, {::getpid(), ::getpid()}), from));
}

TEST_F(PeerMemoryTest, AChildReadsItsParentOrIsRefused) {
  const FixedWorld lender_world(0, {::getpid(), 0});
  const PeerMemory lender(lender_world, marks_.data(), kPage);
  const std::uint64_t from = lender.lend(bytes());
  const int parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    // Its own copy differs, so what it reads is its parent's.
    std::fill(memory_.begin(), memory_.end(), 0U);
    const FixedWorld world(1, {parent, ::getpid()});
    PeerMemory reader(world, marks_.data(), kPage);
    std::vector<std::byte> to(kLarge);
    const iovec here{to.data(), 1};
    const iovec there{reinterpret_cast<void*>(from), 1};
    const bool may = ::process_vm_readv(parent, &here, 1, &there, 1, 0) == 1;
    const auto* values = reinterpret_cast<const unsigned*>(to.data());
    const bool came = reader.read(0, from, to) && values[0] == 1 && values[1000] == 1001;
    ::_exit(came == may ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// The number of a process may be another's here: of another namespace, or used again.
TEST_F(PeerMemoryTest, AProcessWithoutTheMarkIsNotRead) {
  const FixedWorld lender_world(0, {::getpid(), ::getpid()});
  const PeerMemory lender(lender_world, marks_.data(), kPage);
  const std::uint64_t from = lender.lend(bytes());
  reinterpret_cast<MemoryMark*>(marks_.data())->value.fetch_add(2);
  EXPECT_FALSE(reads(FixedWorld(1, {::getpid(), ::getpid()}), from));
  EXPECT_FALSE(reads(FixedWorld(1, {0x3fffffff, ::getpid()}), from)) << "no such process";
}

TEST_F(PeerMemoryTest, WhatIsNotThereIsNotRead) {
  const FixedWorld world(0, {::getpid(), ::getpid()});
  PeerMemory memory(world, marks_.data(), kPage);
  void* const gone = ::mmap(nullptr, kLarge, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  ::munmap(static_cast<std::byte*>(gone) + kLarge / 2, kLarge / 2);
  std::vector<std::byte> to(kLarge);
  EXPECT_FALSE(memory.read(0, reinterpret_cast<std::uintptr_t>(gone), to));
  ::munmap(gone, kLarge / 2);
  EXPECT_TRUE(memory.read(0, memory.lend(bytes()), to)) << "it asks again next time";
}

TEST_F(PeerMemoryTest, NobodyLendsOrReadsWhereTheUserSaysSo) {
  const FixedWorld world(0, {::getpid(), ::getpid()});
  const PeerMemory before(world, marks_.data(), kPage);
  const std::uint64_t from = before.lend(bytes());
  ::setenv("GRADWIRE_READ_PEERS", "0", 1);
  EXPECT_FALSE(reads(FixedWorld(1, {::getpid(), ::getpid()}), from));
  EXPECT_EQ(PeerMemory(world, marks_.data(), kPage).lend(bytes()), 0U);
}

TEST_F(PeerMemoryTest, AWrongWordOfTheUserIsTold) {
  ::setenv("GRADWIRE_READ_PEERS", "no", 1);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(read_peers(), ReadPeers::where_quicker);
  EXPECT_EQ(read_peers(), ReadPeers::where_quicker);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("GRADWIRE_READ_PEERS is 'no'"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

}  // namespace
}  // namespace gradwire::shared::peer_memory_test
