// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/peer_memory_internal.h"

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>

#include "gradwire/base/environment.h"
#include "gradwire/base/notice.h"
#include "gradwire/base/strings.h"

namespace gradwire::shared {
namespace {

// The kernel reads less than 2 GiB in one call.
constexpr std::size_t kMostRead = std::size_t{1} << 30;
// A call of the kernel takes as long as copying so much twice.
constexpr std::size_t kLeastLent = std::size_t{32} << 10;

std::unique_ptr<const std::uint64_t> random_value() {
  if (read_peers() == ReadPeers::never) return nullptr;
  std::random_device device;
  const std::uint64_t value = (std::uint64_t{device()} << 32) | device() | 1;
  return std::make_unique<const std::uint64_t>(value);
}

std::uint64_t address_of(const void* memory) noexcept { return reinterpret_cast<std::uintptr_t>(memory); }

}  // namespace

ReadPeers read_peers() {
  const std::string said = environment("GRADWIRE_READ_PEERS").value_or("");
  if (said == "0") return ReadPeers::never;
  if (said == "always") return ReadPeers::always;
  static std::atomic_flag told;
  if (!said.empty() && !told.test_and_set())
    log::notice(concat("GRADWIRE_READ_PEERS is '", said, "', which means nothing: 0 or always; it is not heeded"));
  return ReadPeers::where_quicker;
}

PeerMemory::PeerMemory(const World& world, std::byte* marks, std::size_t stride)
    : world_(world),
      marks_(marks),
      stride_(stride),
      value_(random_value()),
      access_(static_cast<std::size_t>(world.size()), value_ == nullptr ? Access::refused : Access::unknown) {
  if (value_ == nullptr) return;
  MemoryMark& own = mark(world.rank());
  own.address.store(address_of(value_.get()), std::memory_order_relaxed);
  own.value.store(*value_, std::memory_order_release);
}

MemoryMark& PeerMemory::mark(int rank) const noexcept {
  return *reinterpret_cast<MemoryMark*>(marks_ + static_cast<std::size_t>(rank) * stride_);
}

std::uint64_t PeerMemory::lend(std::span<const std::byte> memory) const noexcept {
  return value_ != nullptr && memory.size() >= kLeastLent ? address_of(memory.data()) : 0;
}

bool PeerMemory::read(int peer, std::uint64_t from, std::span<std::byte> to) noexcept {
  Access& access = access_[static_cast<std::size_t>(peer)];
  if (access == Access::unknown) access = is_marked(peer) ? Access::granted : Access::refused;
  bool whole = access == Access::granted;
  for (std::size_t begin = 0; whole && begin < to.size(); begin += kMostRead)
    whole = copy(peer, from + begin, to.data() + begin, std::min(kMostRead, to.size() - begin));
  return whole;
}

bool PeerMemory::is_marked(int peer) const noexcept {
  const std::uint64_t expected = mark(peer).value.load(std::memory_order_acquire);
  std::uint64_t found = 0;
  return expected != 0 && copy(peer, mark(peer).address.load(std::memory_order_relaxed), &found, sizeof(found)) &&
         found == expected;
}

bool PeerMemory::copy(int peer, std::uint64_t from, void* to, std::size_t bytes) const noexcept {
  const iovec here{to, bytes};
  const iovec there{reinterpret_cast<void*>(static_cast<std::uintptr_t>(from)), bytes};
  return ::process_vm_readv(world_.process_of(peer), &here, 1, &there, 1, 0) == static_cast<ssize_t>(bytes);
}

}  // namespace gradwire::shared
