// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/flight_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "gradwire/base/os_handles.h"

namespace gradwire::launch::flight_files_test {
namespace {

// The launcher reads through a mapping, which ends with SIGBUS where the file has become shorter.
TEST(FlightFilesTest, ARankCannotShortenItsFile) {
  const FlightFiles files(1);
  ASSERT_NE(files.path(0), "");
  const UniqueFd file(::open(files.path(0).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file);
  EXPECT_NE(::ftruncate(file.get(), 0), 0);
  EXPECT_FALSE(UniqueFd(::open(files.path(0).c_str(), O_RDWR | O_TRUNC | O_CLOEXEC)));
  EXPECT_FALSE(files.read(0));
}

}  // namespace
}  // namespace gradwire::launch::flight_files_test
