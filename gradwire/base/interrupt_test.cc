// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/interrupt.h"

#include <gtest/gtest.h>

#include <thread>

#include "gradwire/base/error.h"

namespace gradwire::interrupt_test {
namespace {

bool yes() noexcept { return true; }
bool no() noexcept { return false; }

TEST(InterruptTest, OnlyACheckThatSaysYesThrows) {
  EXPECT_NO_THROW(throw_if_interrupted("a wait"));
  EXPECT_EQ(set_interrupt_check(&no), nullptr);
  EXPECT_NO_THROW(throw_if_interrupted("a wait"));
  EXPECT_EQ(set_interrupt_check(&yes), &no);
  EXPECT_THROW(throw_if_interrupted("a wait"), AbortedError);
  EXPECT_EQ(set_interrupt_check(nullptr), &yes);
  EXPECT_NO_THROW(throw_if_interrupted("a wait"));
}

TEST(InterruptTest, AThreadHasACheckOfItsOwn) {
  set_interrupt_check(&yes);
  std::thread([] { EXPECT_EQ(interrupt_check(), nullptr); }).join();
  set_interrupt_check(nullptr);
}

}  // namespace
}  // namespace gradwire::interrupt_test
