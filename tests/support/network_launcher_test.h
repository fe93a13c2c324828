// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// For tests that start programs on hosts made of network namespaces.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "bench/network_hosts.h"
#include "launch/launcher_fixture_internal.h"

namespace gradwire::launch {

// Skips each test, with the reason, where the machine gives no network namespaces.
class NetworkLauncherTest : public LauncherTest {
 protected:
  void SetUp() override {
    reason_ = bench::NetworkHosts::why_not();
    if (!reason_.empty()) GTEST_SKIP() << reason_;
    LauncherTest::SetUp();
  }
  void TearDown() override {
    if (reason_.empty()) LauncherTest::TearDown();
  }

 private:
  std::string reason_;
};

}  // namespace gradwire::launch
