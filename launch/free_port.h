// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// TCP ports for servers that start later.
#pragma once

#include <cstdint>

namespace gradwire::launch {

enum class PortScope { loopback, all_interfaces };

// Returns a TCP port that is free at the time of the call, at the addresses of `scope`. The port is one that the kernel
// gives to no socket by itself, where the host has such ports from 10000 on (Linux: those below
// net.ipv4.ip_local_port_range), so only a program that asks for this very port can take the port before its user does.
// Throws LaunchError. Thread-safe.
std::uint16_t find_free_port(PortScope scope);

}  // namespace gradwire::launch
