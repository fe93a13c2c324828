// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What gradwire says about itself is true of this machine.
#include "gradwire/backend/info.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "gradwire/backend/registry.h"
#include "gradwire/backend/ucx/ucx_backend.h"
#include "gradwire/base/strings.h"
#include "gradwire/kernels/dispatch.h"

namespace gradwire::info_test {
namespace {

TEST(Info, EveryBackendIsNamedAndTheReasonGivenWhereOneCannotBeUsed) {
  const std::vector<BackendInfo> backends = backend_info();
  for (const BackendEntry& entry : builtin_backends()) {
    const auto same = [&](const BackendInfo& backend) { return backend.name == entry.name; };
    EXPECT_EQ(std::count_if(backends.begin(), backends.end(), same), 1) << entry.name;
  }
  for (const char* name : {"auto", "hybrid", "gloo", "nccl"}) {
    EXPECT_EQ(
        std::count_if(backends.begin(), backends.end(), [&](const auto& backend) { return backend.name == name; }), 1)
        << name;
  }
  for (const BackendInfo& backend : backends) {
    EXPECT_TRUE(backend.is_usable || !backend.remark.empty()) << backend.name;
    const bool needs_nothing = backend.name == "shm" || backend.name == "threads";
    EXPECT_TRUE(backend.is_usable || !needs_nothing) << backend.name << ": " << backend.remark;
    EXPECT_TRUE(backend.name != "ucx" || backend.is_usable == !why_no_ucx()) << backend.remark;
  }
}

TEST(Info, TheTextHasVersionBackendsAndKernels) {
  const std::string text = installation_info();
  EXPECT_EQ(text.find(concat("gradwire ", version(), "\nbuild: ")), 0U) << text;
  for (const BackendInfo& backend : backend_info())
    EXPECT_NE(text.find(concat("\nbackend ", backend.name, ": ", backend.is_usable ? "usable" : "not usable")),
              std::string::npos)
        << text;
  EXPECT_NE(text.find(concat("\nkernels: ", kernels::selected(), " (this processor can run ")), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
}

}  // namespace
}  // namespace gradwire::info_test
