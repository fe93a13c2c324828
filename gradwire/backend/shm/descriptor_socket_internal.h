// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Unix sockets over which the ranks of a host pass descriptors to each other.
//
// The kernel counts the descriptors that a user has in flight between his processes, and refuses more than the sender's
// limit of open ones (ulimit -n). So senders keep few in flight, and wait where the user's other programs have filled
// that limit.
//
// Any thread may call these functions; one thread at a time receives from a socket. The caller owns what is returned.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/os_handles.h"

namespace gradwire::shm {

// Listens on an abstract address (no file; it goes with the socket). `name` is filled in. Throws ResourceError.
UniqueFd listen_on_abstract_address(std::string& name);

// What came of a try to connect.
struct Connection {
  UniqueFd socket;          // empty: nobody listens, or (where `busy`) the listener's queue is full
  bool busy = false;        // try again
  uid_t listener_user = 0;  // the user of whoever listens; nobody else may be told anything
};
// Tries to connect, for up to `wait`. Throws ResourceError.
Connection connect_to_abstract_address(const std::string& name, Milliseconds wait);

// The next connection of a process of this user; other users are turned away. Nothing when none came within `wait`.
// Throws ResourceError when there is no descriptor left for it.
std::optional<UniqueFd> accept_own_user(int listener, Milliseconds wait);

struct Packet {
  std::string bytes;
  std::vector<UniqueFd> fds;
  std::string lost;  // why there are no descriptors although some were sent: this process had no room for them
};

enum class Sent { sent, closed, late };
// Sends one packet with descriptors, all or nothing. `closed`: the other side is gone. `late`: the other side took
// nothing by the deadline. Throws ResourceError when the limit on descriptors in flight left no room by the deadline,
// or memory is short; and what `check` throws, which is called now and then while this waits.
Sent send_packet(int socket, std::string_view bytes, std::span<const int> fds, Deadline deadline,
                 const std::function<void()>& check = {});

enum class Received { packet, nothing, closed };
// Waits for one packet, which `packet` is filled with: for `wait`, for a second, or until a signal comes.
Received receive_packet(int socket, Packet& packet, Milliseconds wait);

}  // namespace gradwire::shm
