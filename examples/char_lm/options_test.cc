// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/options.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "examples/char_lm/errors.h"

namespace char_lm::options_test {
namespace {

TEST(Options, DefaultsPassTheirOwnChecks) {
  const Options options = parse_options({});
  EXPECT_TRUE(options.text.empty());
  EXPECT_TRUE(options.gradient_as_bucket_view);
  EXPECT_FALSE(options.lanes.has_value());
}

TEST(Options, AllAreRead) {
  const Options options = parse_options({"--text",
                                         "t",
                                         "--layers",
                                         "3",
                                         "--width",
                                         "96",
                                         "--heads",
                                         "6",
                                         "--context",
                                         "10",
                                         "--batch",
                                         "12",
                                         "--steps",
                                         "77",
                                         "--lr",
                                         "0.5",
                                         "--seed",
                                         "18446744073709551615",
                                         "--hook",
                                         "h",
                                         "--backend",
                                         "b",
                                         "--dtype",
                                         "bf16",
                                         "--lanes",
                                         "2",
                                         "--save",
                                         "/tmp/s",
                                         "--resume",
                                         "r",
                                         "--json",
                                         "/tmp/j",
                                         "--bucket-cap-mb",
                                         "0.25",
                                         "--no-gradient-as-bucket-view",
                                         "--generate",
                                         "9",
                                         "--eval-batches",
                                         "4",
                                         "--log-every",
                                         "8",
                                         "--threads",
                                         "5"});
  EXPECT_EQ(options.text, "t");
  EXPECT_EQ(options.layers, 3);
  EXPECT_EQ(options.width, 96);
  EXPECT_EQ(options.heads, 6);
  EXPECT_EQ(options.context, 10);
  EXPECT_EQ(options.batch, 12);
  EXPECT_EQ(options.steps, 77);
  EXPECT_EQ(options.lr, 0.5);
  EXPECT_EQ(options.seed, 18446744073709551615U);
  EXPECT_EQ(options.hook, "h");
  EXPECT_EQ(options.backend, "b");
  EXPECT_EQ(options.dtype, "bf16");
  EXPECT_EQ(options.lanes, 2);
  EXPECT_EQ(options.save, "/tmp/s");
  EXPECT_EQ(options.resume, "r");
  EXPECT_EQ(options.json, "/tmp/j");
  EXPECT_EQ(options.bucket_cap_mb, 0.25);
  EXPECT_FALSE(options.gradient_as_bucket_view);
  EXPECT_EQ(options.generate, 9);
  EXPECT_EQ(options.eval_batches, 4);
  EXPECT_EQ(options.log_every, 8);
  EXPECT_EQ(options.threads, 5);
}

struct BadOption {
  std::vector<std::string> arguments;
  std::string mentions;
};

void PrintTo(const BadOption& option, std::ostream* out) {
  for (const std::string& argument : option.arguments) {
    *out << argument << ' ';
  }
}

class BadOptions : public testing::TestWithParam<BadOption> {};

// Each mistake gets one line that names what is wrong.
TEST_P(BadOptions, GetOneSentence) {
  try {
    parse_options(GetParam().arguments);
    FAIL() << "was accepted";
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(GetParam().mentions), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadOptions,
    testing::Values(
        BadOption{{"--colour", "red"}, "--colour"}, BadOption{{"stray"}, "stray"}, BadOption{{"--text"}, "--text"},
        BadOption{{"--text", ""}, "--text"}, BadOption{{"--layers", "0"}, "--layers"},
        BadOption{{"--layers", "two"}, "--layers"}, BadOption{{"--width", "100", "--heads", "3"}, "--heads 3"},
        BadOption{{"--context", "-1"}, "--context"}, BadOption{{"--batch", "0"}, "--batch"},
        BadOption{{"--steps", "0"}, "--steps"}, BadOption{{"--steps", "99999999999999999999"}, "--steps"},
        BadOption{{"--lr", "0"}, "--lr"}, BadOption{{"--lr", "nan"}, "--lr"}, BadOption{{"--lr", "inf"}, "--lr"},
        BadOption{{"--seed", "-1"}, "--seed"}, BadOption{{"--dtype", "f8"}, "--dtype"},
        BadOption{{"--lanes", "9"}, "--lanes"}, BadOption{{"--bucket-cap-mb", "-3"}, "--bucket-cap-mb"},
        BadOption{{"--eval-batches", "0"}, "--eval-batches"}, BadOption{{"--generate", "-1"}, "--generate"},
        BadOption{{"--log-every", "0"}, "--log-every"}, BadOption{{"--threads", "-2"}, "--threads"},
        BadOption{{"--save", "/nonexistent/x"}, "/nonexistent"},
        BadOption{{"--checkpoint", "/nonexistent/x"}, "/nonexistent"},
        BadOption{{"--checkpoint", "c", "--resume", "r"}, "--resume"},
        BadOption{{"--checkpoint-every", "0"}, "--checkpoint-every"}, BadOption{{"--json", "/"}, "folder"}));

TEST(Options, HelpNamesEveryOption) {
  try {
    parse_options({"--help"});
    FAIL() << "went on";
  } catch (const HelpRequest& help) {
    for (const char* option : {"--text",          "--layers",
                               "--width",         "--heads",
                               "--context",       "--batch",
                               "--steps",         "--lr",
                               "--seed",          "--hook",
                               "--backend",       "--dtype",
                               "--lanes",         "--save",
                               "--resume",        "--json",
                               "--bucket-cap-mb", "--no-gradient-as-bucket-view",
                               "--checkpoint",    "--checkpoint-every",
                               "--generate",      "--eval-batches"}) {
      EXPECT_NE(help.text.find(option), std::string::npos) << option;
    }
  }
}

}  // namespace
}  // namespace char_lm::options_test
