// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Unix sockets over which the ranks of a host pass descriptors to each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/os_handles.h"

namespace gradwire::shm {

// Listens on an abstract address (no file; it goes with the socket). `name` is filled in. Throws ResourceError.
UniqueFd listen_on_abstract_address(std::string& name);

// Connects. Throws InvalidArgument when nobody listens there (another host, another network namespace).
UniqueFd connect_to_abstract_address(const std::string& name);

// The next connection of a process of this user; strangers are turned away. Nothing when none came within `wait`.
std::optional<UniqueFd> accept_own_user(int listener, Milliseconds wait);

struct Packet {
  std::string bytes;
  std::vector<UniqueFd> fds;
};

// Sends one packet with descriptors. False when the other side is gone.
bool send_packet(int socket, std::string_view bytes, std::span<const int> fds);

enum class Received { packet, nothing, closed };
// Waits up to `wait` for one packet.
Received receive_packet(int socket, Packet& packet, Milliseconds wait);

}  // namespace gradwire::shm
