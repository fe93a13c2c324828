// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "gradwire/base/error.h"

namespace gradwire::environment_test {
namespace {

constexpr const char* kName = "GRADWIRE_TEST_VARIABLE";

class EnvironmentTest : public ::testing::Test {
 protected:
  void set(const char* value) { ::setenv(kName, value, 1); }
  ~EnvironmentTest() override { ::unsetenv(kName); }
};

TEST_F(EnvironmentTest, UnsetAndEmptyAreNothing) {
  ::unsetenv(kName);
  EXPECT_EQ(environment(kName), std::nullopt);
  EXPECT_EQ(environment_integer(kName, 0, 9), std::nullopt);
  set("");
  EXPECT_EQ(environment(kName), std::nullopt);
  EXPECT_EQ(environment_integer(kName, 0, 9), std::nullopt);
  set(" x ");
  EXPECT_EQ(environment(kName), " x ");
}

TEST_F(EnvironmentTest, IntegersInRangeAreTaken) {
  set("0");
  EXPECT_EQ(environment_integer(kName, 0, 9), 0);
  set("9");
  EXPECT_EQ(environment_integer(kName, 0, 9), 9);
  set("-12");
  EXPECT_EQ(environment_integer(kName, -12, 9), -12);
}

TEST_F(EnvironmentTest, AnythingElseIsRefusedByName) {
  for (const char* value : {"10", "-1", "x", "1x", "1.5", "99999999999999999999", "1 "}) {
    set(value);
    try {
      environment_integer(kName, 0, 9);
      ADD_FAILURE() << value << " was taken";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(kName), std::string::npos) << text;
      EXPECT_NE(text.find(value), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace gradwire::environment_test
