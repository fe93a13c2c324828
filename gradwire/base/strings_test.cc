// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/strings.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace gradwire::strings_test {
namespace {

TEST(StringsTest, ExactTextsAreReadAsTheSameNumber) {
  EXPECT_EQ(exact(0.7), "0.7");
  EXPECT_EQ(exact(0.1F), "0.1");
  EXPECT_EQ(exact(1e-60), "1e-60");
  for (const double number : {1.0 / 3, 0.1234567, 0.1234574, 5e-324, 1.7976931348623157e308})
    EXPECT_EQ(std::strtod(exact(number).c_str(), nullptr), number);
}

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

TEST(StringsTest, NumbersAtTheBeginningAreThoseThatJoinWrote) {
  for (const std::vector<int>& numbers : {std::vector<int>{}, {0}, {2, 5}, {1, 22, 333}}) {
    EXPECT_EQ(leading_numbers(join(numbers)), numbers);
    EXPECT_EQ(leading_numbers(join(numbers, ",") + "; 7, 8"), numbers);
  }
}

}  // namespace
}  // namespace gradwire::strings_test
