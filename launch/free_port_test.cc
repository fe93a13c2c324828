// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/free_port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "gradwire/base/os_handles.h"

namespace gradwire::launch {
namespace {

TEST(FreePort, IsNoneThatTheKernelGivesAway) {
  int first = 0, last = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first >> last;
  ASSERT_GT(last, 0);
  std::set<int> found;
  for (int call = 0; call < 50; ++call) {
    for (const auto scope : {PortScope::loopback, PortScope::all_interfaces}) {
      const int port = find_free_port(scope);
      EXPECT_GE(port, 1024);
      if (first > 10000) {
        EXPECT_LT(port, first);
      }
      found.insert(port);
    }
  }
  EXPECT_GT(found.size(), 50U) << "two callers at once would get one port";
}

TEST(FreePort, IsFree) {
  const UniqueFd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(find_free_port(PortScope::loopback));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << std::strerror(errno);
}

}  // namespace
}  // namespace gradwire::launch
