// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/address.h"

#include "gradwire/base/strings.h"

namespace gradwire {

std::string host_and_port(const std::string& host, std::uint16_t port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return concat(is_ipv6 ? "[" : "", host, is_ipv6 ? "]:" : ":", port);
}

}  // namespace gradwire
