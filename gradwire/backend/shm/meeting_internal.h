// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The rendezvous of backend shm.
//
//   rank 0                                              others
//   listens on an abstract socket
//   store["shm/root"] = host, network, address      ->  read it; must be the same host and network namespace
//                                                   <-  connect: hello {rank, pid, processors} + pidfd
//   makes the memory
//   to each in turn: welcome {sizes, pids} + memory, pidfds
//                                                   ->  map the memory
//                                                   <-  ready
//   to all: go                                      ->  done
//
// One welcome is on its way at a time, so the descriptors in flight are those of one message and of the hellos. Instead
// of any packet a rank may send a failure (rendezvous::encode_failure); rank 0 passes the first on to all, and the
// store keeps it for those that have not connected. A socket that closes without a failure is a rank that died.
#pragma once

#include <sched.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gradwire/backend/registry.h"
#include "gradwire/backend/shared/max_ranks.h"
#include "gradwire/backend/shared/world_internal.h"
#include "gradwire/backend/shm/descriptor_socket_internal.h"
#include "gradwire/backend/shm/shm_world_internal.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/os_handles.h"

namespace gradwire::shm {

// Changes with these packets and with the layout of shared memory: "GRW2".
inline constexpr std::uint32_t kMagic = 0x32575247;
// How long a rank waits before it looks again whether the others live.
inline constexpr Milliseconds kSlice{50};

enum class PacketKind : std::uint32_t { hello, welcome, ready, go, failure };

// How every packet begins. A failure's text follows it.
struct Header {
  std::uint32_t magic = kMagic;
  PacketKind kind = PacketKind::failure;
};

struct Hello {
  Header header{kMagic, PacketKind::hello};
  std::int32_t rank = 0;
  std::int32_t pid = 0;
  cpu_set_t processors = {};
};

struct Welcome {
  Header header{kMagic, PacketKind::welcome};
  std::uint64_t stride = 0;
  std::uint32_t may_spin = 0;
  std::array<std::int32_t, kMaxRanksOfHost> pids = {};
};

struct Ready {
  Header header{kMagic, PacketKind::ready};
};

struct Go {
  Header header{kMagic, PacketKind::go};
};

template <class T>
std::string to_bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Whether `bytes` are a packet of the kind T, which is filled in then.
template <class T>
bool from_bytes(const std::string& bytes, T& value) {
  Header header;
  if (bytes.size() < sizeof(value)) return false;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic || header.kind != value.header.kind) return false;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return true;
}

// How many descriptors the rendezvous of `size` ranks opens in the process of `rank`, at the most.
std::size_t descriptors_needed(int rank, int size) noexcept;

std::string failure_packet(const std::string& record);
// Throws the failure that `bytes` tell of; does nothing for another packet.
void throw_if_failure(const std::string& bytes);

// Where rank 0 is to be found, as the store holds it.
struct RootAddress {
  std::string host;     // boot id; empty where /proc does not say, as is the next
  std::string network;  // network namespace
  std::string name;     // of the abstract socket, which is one of that namespace
};
// This process's own host and network; `name` is left empty.
RootAddress address_here();
std::string to_text(const RootAddress& address);
RootAddress address_from(const std::string& text);

UniqueFd open_own_pidfd();
Hello make_hello(int rank);

// What a rank has when all have met.
struct Members {
  std::vector<UniqueFd> sockets;  // as ShmWorld wants them
  std::vector<Peer> peers;
  bool may_spin = false;
  shared::Region region;
};

// The two sides. Both block until every rank has met or one has failed. The result is the caller's. Both throw
// PeerError that names the rank which died or failed, TimeoutError that names the missing ranks, ResourceError,
// MismatchError, AbortedError, StoreError; meet_root() also InvalidArgument, where this rank cannot share memory with
// rank 0.
Members meet_as_root(const BackendOptions& options, Deadline deadline);
Members meet_root(const BackendOptions& options, Deadline deadline);

}  // namespace gradwire::shm
