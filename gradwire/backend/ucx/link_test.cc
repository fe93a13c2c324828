// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests the wait for an interface, in a network of its own whose loopback interface is down at first.
#include "gradwire/backend/ucx/link_internal.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <future>

#include "gradwire/base/os_handles.h"

namespace gradwire::ucx {
namespace {

// Moves this thread, and the threads that it starts, to a network of their own.
class Link : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
      GTEST_SKIP() << "no network namespaces may be made here: " << std::strerror(errno);
    }
  }
};

void bring_up(const char* interface) {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, interface, sizeof(request.ifr_name) - 1);
  ASSERT_EQ(::ioctl(socket.get(), SIOCGIFFLAGS, &request), 0) << std::strerror(errno);
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  ASSERT_EQ(::ioctl(socket.get(), SIOCSIFFLAGS, &request), 0) << std::strerror(errno);
}

TEST_F(Link, IsAwaitedUntilItIsUp) {
  auto waits = std::async(std::launch::async, [] { return await_link("lo", Deadline::after(Milliseconds(60'000))); });
  EXPECT_EQ(waits.wait_for(Milliseconds(200)), std::future_status::timeout) << "it waits while the interface is down";
  bring_up("lo");
  EXPECT_EQ(waits.wait_for(Milliseconds(30'000)), std::future_status::ready) << "the kernel's word wakes it";
  EXPECT_TRUE(waits.get());
  EXPECT_TRUE(await_link("lo", Deadline::after(Milliseconds(0)))) << "one that is up already is not waited for";
}

TEST_F(Link, IsGivenUpAtTheDeadline) {
  EXPECT_FALSE(await_link("lo", Deadline::after(Milliseconds(50))));
  EXPECT_FALSE(await_link("no such interface at all", Deadline::after(Milliseconds(50))));
}

}  // namespace
}  // namespace gradwire::ucx
