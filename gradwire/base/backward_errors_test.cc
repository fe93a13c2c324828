// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/backward_errors.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace gradwire {
namespace {

// The errors of two other languages.
struct First {};
struct Second {};

void as_first(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::runtime_error&) {
    throw First();
  } catch (...) {
  }
}
void as_second(const std::exception_ptr&) { throw Second(); }

[[noreturn]] void fail() { throw std::runtime_error("on purpose"); }

TEST(BackwardErrors, WhatIsRememberedIsTheInnermostOfTheThread) {
  EXPECT_EQ(backward_errors(), nullptr);
  {
    const BackwardErrors outer(&as_first);
    EXPECT_EQ(backward_errors(), &as_first);
    {
      const BackwardErrors inner(&as_second);
      EXPECT_EQ(backward_errors(), &as_second);
    }
    EXPECT_EQ(backward_errors(), &as_first);
  }
  EXPECT_EQ(backward_errors(), nullptr);
}

TEST(BackwardErrors, ErrorsOfABackwardPassAreTranslatedAndOthersPass) {
  EXPECT_THROW(run_backward(&as_first, fail), First);
  EXPECT_THROW(run_backward(&as_second, fail), Second);
  EXPECT_THROW(run_backward(nullptr, fail), std::runtime_error);
  EXPECT_THROW(run_backward(&as_first, [] { throw std::string("no error of the language"); }), std::string);
  EXPECT_EQ(run_backward(&as_first, [] { return 3; }), 3);
}

// A backward pass with create_graph records functions for another backward pass.
TEST(BackwardErrors, WhatABackwardPassRecordsRemembersTheSame) {
  EXPECT_EQ(run_backward(&as_first, [] { return backward_errors(); }), &as_first);
  EXPECT_EQ(backward_errors(), nullptr);
}

}  // namespace
}  // namespace gradwire
