// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Where calls are refused.
#include "gradwire/ddp/call_guard_internal.h"

#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/ddp/hook_scope_internal.h"

namespace gradwire::internal::call_guard_test {
namespace {

using testing::error_of;

TEST(CallGuard, RefusesCallsWithinAPass) {
  CallGuard guard(nullptr, 3);
  const auto call = [&] { guard.require_between_passes("a call"); };
  EXPECT_NO_THROW(call());
  guard.begin_pass();
  EXPECT_NE(error_of(call).find("a call was called within a backward pass on rank 3"), std::string::npos);
  guard.end_pass();
  EXPECT_NO_THROW(call());
}

TEST(CallGuard, RefusesCallsInAHookOfItsOwner) {
  const int owner = 0;
  const int other = 0;
  CallGuard guard(&owner, 3);
  const auto call = [&] { guard.require_outside_hook("a call"); };
  EXPECT_NO_THROW(call());
  {
    const HookScope another(&other);
    EXPECT_NO_THROW(call());
    const HookScope hook(&owner);
    EXPECT_NE(error_of(call).find("in its own communication hook on rank 3"), std::string::npos);
  }
  EXPECT_NO_THROW(call());
  EXPECT_NO_THROW(guard.require_own_process());
  EXPECT_TRUE(guard.in_own_process());
}

}  // namespace
}  // namespace gradwire::internal::call_guard_test
