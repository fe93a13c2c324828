// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/strings.h"

#include <gtest/gtest.h>

namespace gradwire::strings_test {
namespace {

TEST(StringsTest, ConcatTakesAnythingThatPrints) {
  EXPECT_EQ(concat("rank ", 3, " of ", 8L, ", ", 0.5, ' ', std::string("done")), "rank 3 of 8, 0.5 done");
}

TEST(StringsTest, JoinPutsSeparatorsBetween) {
  EXPECT_EQ(join(std::vector<std::string>{}, ", "), "");
  EXPECT_EQ(join(std::vector<std::string>{"a"}, ", "), "a");
  EXPECT_EQ(join(std::vector<std::string>{"a", "", "c"}, "; "), "a; ; c");
  EXPECT_EQ(join(std::vector<int>{0, 2, 5}), "0, 2, 5");
}

TEST(StringsTest, TimesHaveNoExponent) {
  EXPECT_EQ(measured_seconds(0.01234), "0.0123 s");
  EXPECT_EQ(measured_seconds(4.1234), "4.12 s");
  EXPECT_EQ(measured_seconds(999.4), "999 s");
  EXPECT_EQ(measured_seconds(999.9), "1000 s");
  EXPECT_EQ(measured_seconds(86400), "86400 s");
}

TEST(StringsTest, NameRanksKnowsThePlural) {
  EXPECT_EQ(name_ranks({3}), "rank 3");
  EXPECT_EQ(name_ranks({0, 2}), "ranks 0, 2");
}

}  // namespace
}  // namespace gradwire::strings_test
