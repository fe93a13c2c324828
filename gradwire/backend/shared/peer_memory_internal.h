// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Large messages in one copy: a rank reads its peer's memory through the kernel (process_vm_readv, Linux 3.2).
//
// Where the kernel refuses that (seccomp, Yama, ranks of different users), where the receiver has found the rings
// quicker, or where the environment says GRADWIRE_READ_PEERS=0, messages go through the rings.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gradwire/backend/shared/world_internal.h"

namespace gradwire::shared {

// Whether messages are read out of their senders' memory: what GRADWIRE_READ_PEERS says ("0", "always", or nothing;
// another value is told on stderr, once, and not heeded).
enum class ReadPeers { never, always, where_quicker };
ReadPeers read_peers();

// In shared memory, one a rank: where a number lies in the rank's own memory, and the number. Who reads it there reads
// the right process: the number of a process may mean another one in another namespace of processes.
struct MemoryMark {
  std::atomic<std::uint64_t> address;
  std::atomic<std::uint64_t> value;  // 0: nobody is to read this rank
};

// One rank's view of its peers' memory. Used by one thread at a time.
class PeerMemory {
 public:
  // `marks` lie `stride` bytes apart, zeroed, and outlive the object. `world` does, too.
  PeerMemory(const World& world, std::byte* marks, std::size_t stride);

  // The address that peers read `memory` from; 0 where frames are quicker.
  std::uint64_t lend(std::span<const std::byte> memory) const noexcept;
  // Reads memory of a peer. False when the kernel refuses that, or not all of it is there.
  bool read(int peer, std::uint64_t from, std::span<std::byte> to) noexcept;

 private:
  enum class Access : std::uint8_t { unknown, granted, refused };

  MemoryMark& mark(int rank) const noexcept;
  bool is_marked(int peer) const noexcept;
  bool copy(int peer, std::uint64_t from, void* to, std::size_t bytes) const noexcept;

  const World& world_;
  std::byte* const marks_;
  const std::size_t stride_;
  std::unique_ptr<const std::uint64_t> value_;  // null: nobody reads anybody
  std::vector<Access> access_;                  // by peer
};

}  // namespace gradwire::shared
