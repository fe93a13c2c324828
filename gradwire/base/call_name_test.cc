// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/call_name.h"

#include <gtest/gtest.h>

#include <thread>

namespace gradwire::call_name_test {
namespace {

std::string text_of(const void* context) { return *static_cast<const std::string*>(context); }

TEST(CallName, TheInnermostNameOfTheThreadCounts) {
  const std::string outer = "outer";
  const std::string inner = "inner";
  const std::string nothing;
  EXPECT_EQ(call_name("own"), "own");
  const CallName first(text_of, &outer);
  {
    const CallName second(text_of, &inner);
    EXPECT_EQ(call_name("own"), "inner");
    const CallName third(text_of, &nothing);
    EXPECT_EQ(call_name("own"), "inner") << "a caller that knows no name";
  }
  EXPECT_EQ(call_name("own"), "outer");
  std::thread([] { EXPECT_EQ(call_name("own"), "own"); }).join();
}

TEST(CallName, PartsOfACallHaveTheNameOfTheWhole) {
  const std::string outer = "outer";
  const std::string inner = "inner";
  const std::string innermost = "innermost";
  {
    const PartsOfCall of_nothing;
    const CallName named(text_of, &inner);
    EXPECT_EQ(call_name("own"), "inner") << "there is no whole with a name";
  }
  const CallName first(text_of, &outer);
  {
    const PartsOfCall parts;
    const CallName second(text_of, &inner);
    EXPECT_EQ(call_name("own"), "outer");
    const PartsOfCall parts_of_a_part;
    const CallName third(text_of, &innermost);
    EXPECT_EQ(call_name("own"), "outer");
  }
  const CallName second(text_of, &inner);
  EXPECT_EQ(call_name("own"), "inner");
}

}  // namespace
}  // namespace gradwire::call_name_test
