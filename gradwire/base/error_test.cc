// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/error.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

namespace gradwire::error_test {
namespace {

TEST(ErrorTest, DescribeSaysTheKindAndTheMessage) {
  EXPECT_EQ(describe(InvalidArgument("m")), "InvalidArgument: m");
  EXPECT_EQ(describe(UnsupportedError("m")), "UnsupportedError: m");
  EXPECT_EQ(describe(MismatchError("m")), "MismatchError: m");
  EXPECT_EQ(describe(AbortedError("m")), "AbortedError: m");
  EXPECT_EQ(describe(ResourceError("m")), "ResourceError: m");
  EXPECT_EQ(describe(StoreError("m")), "StoreError: m");
  EXPECT_EQ(describe(InternalError("m")), "InternalError: m");
  EXPECT_EQ(describe(PeerError("m", {1})), "PeerError: m");
  EXPECT_EQ(describe(TimeoutError("m")), "TimeoutError: m");
  EXPECT_EQ(describe(std::runtime_error("m")), "error: m");
  EXPECT_NE(describe(std::bad_alloc()).find("error: "), std::string::npos);
}

TEST(ErrorTest, DescribeTakesWhateverWasThrown) {
  EXPECT_EQ(describe(std::make_exception_ptr(StoreError("m"))), "StoreError: m");
  EXPECT_EQ(describe(std::make_exception_ptr(5)), "an exception that is no std::exception");
}

TEST(ErrorTest, PeersAreCarried) {
  EXPECT_EQ(PeerError("m", {0, 3}).peers(), (std::vector<int>{0, 3}));
  EXPECT_EQ(TimeoutError("m", {2}).peers(), std::vector<int>{2});
  EXPECT_TRUE(TimeoutError("m").peers().empty());
}

TEST(ErrorTest, AllAreCaughtAsErrorAndAsRuntimeError) {
  EXPECT_THROW(throw PeerError("m", {1}), Error);
  EXPECT_THROW(throw StoreError("m"), std::runtime_error);
}

TEST(ErrorTest, ABrokenInvariantNamesItselfAndItsPlace) {
  EXPECT_NO_THROW(GRADWIRE_CHECK(1 + 1 == 2));
  try {
    GRADWIRE_CHECK(1 + 1 == 3);
    ADD_FAILURE() << "no exception";
  } catch (const InternalError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("1 + 1 == 3"), std::string::npos) << text;
    EXPECT_NE(text.find("error_test.cc"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace gradwire::error_test
