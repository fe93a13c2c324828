// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/options.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "gradwire/base/error.h"

namespace gradwire::options_test {
namespace {

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(SplitName, CutsAtTheFirstColon) {
  EXPECT_EQ(split_name("int4").name, "int4");
  EXPECT_EQ(split_name("int4").options, "");
  EXPECT_EQ(split_name(" int4 : block=8,a=b:c ").name, "int4");
  EXPECT_EQ(split_name(" int4 : block=8,a=b:c ").options, "block=8,a=b:c");
  EXPECT_EQ(split_name(":").name, "");
  EXPECT_EQ(split_name("").options, "");
}

TEST(Options, GivesEachKindOfValueAndTheDefaultOtherwise) {
  Options options("thing", " block = 64 , ratio=0.5,min=64Ki,rounding=up,name=x,fast=true");
  EXPECT_TRUE(options.has("block"));
  EXPECT_EQ(options.number("block", std::size_t{1}), 64u);
  EXPECT_FALSE(options.has("block"));
  EXPECT_EQ(options.number("block", std::size_t{1}), 1u);
  EXPECT_EQ(options.number("ratio", 0.25), 0.5);
  EXPECT_EQ(options.byte_size("min", 1), 65536u);
  EXPECT_EQ(options.byte_size("max", 7), 7u);
  EXPECT_EQ(options.choice("rounding", {"down", "up"}), 1u);
  EXPECT_EQ(options.choice("rounding", {"down", "up"}), 0u);
  EXPECT_EQ(options.text("name", "y"), "x");
  EXPECT_EQ(options.text("name", "y"), "y");
  EXPECT_TRUE(options.flag("fast", false));
  EXPECT_FALSE(options.flag("fast", false));
  EXPECT_NO_THROW(options.require_all_taken("block"));
}

TEST(Options, RefusesWhatIsNoOption) {
  for (const char* wrong : {"block", "=8", "block=8,block=9", ",", "block=8,,ratio=1"}) {
    EXPECT_TRUE(contains(message_of([&] { Options("thing", wrong); }), "thing")) << wrong;
  }
}

TEST(Options, RefusesValuesAndNamesThem) {
  for (const char* wrong : {"", "8x", "-8", "99999999999999999999999"}) {
    Options options("thing", std::string("block=") + wrong);
    const std::string message = message_of([&] { options.number("block", std::size_t{1}); });
    EXPECT_TRUE(contains(message, "thing: option block=" + std::string(wrong))) << message;
  }
  for (const char* wrong : {"", "Ki", "1.5Ki", "64KB", "99999999999Gi"}) {
    Options options("thing", std::string("min=") + wrong);
    EXPECT_TRUE(contains(message_of([&] { options.byte_size("min", 1); }), "option min=")) << wrong;
  }
  Options words("thing", "rounding=left,name=,fast=2");
  EXPECT_TRUE(contains(message_of([&] { words.choice("rounding", {"down", "up"}); }), "down, up"));
  EXPECT_TRUE(contains(message_of([&] { words.text("name", ""); }), "option name="));
  EXPECT_TRUE(contains(message_of([&] { words.flag("fast", true); }), "option fast=2"));
}

TEST(Options, NamesTheRightOnesForOneThatIsLeft) {
  const Options options("codec int4", "size=3");
  EXPECT_TRUE(
      contains(message_of([&] { options.require_all_taken("block=256"); }), "'size'; its options are block=256"));
  EXPECT_TRUE(contains(message_of([&] { options.require_all_taken(""); }), "it has none"));
}

}  // namespace
}  // namespace gradwire::options_test
