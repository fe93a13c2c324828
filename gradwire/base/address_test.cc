// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/address.h"

#include <gtest/gtest.h>

namespace gradwire::address_test {
namespace {

TEST(Address, HasBracketsAroundANumericAddressOfIpv6Alone) {
  EXPECT_EQ(host_and_port("node0", 29400), "node0:29400");
  EXPECT_EQ(host_and_port("10.0.0.1", 1), "10.0.0.1:1");
  EXPECT_EQ(host_and_port("::1", 65535), "[::1]:65535");
  EXPECT_EQ(host_and_port("fe80::1%eth0", 80), "[fe80::1%eth0]:80");
}

}  // namespace
}  // namespace gradwire::address_test
