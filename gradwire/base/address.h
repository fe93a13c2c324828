// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How an address of a host is written.
#pragma once

#include <cstdint>
#include <string>

namespace gradwire {

// "HOST:PORT", with brackets around a numeric IPv6 address: "node0:29400", "[::1]:29400".
std::string host_and_port(const std::string& host, std::uint16_t port);

}  // namespace gradwire
