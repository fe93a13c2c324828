// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "gradwire/base/notice.h"

namespace gradwire::log::log_test {
namespace {

// Runs `body` in a forked child with GRADWIRE_LOG set to `level` (nullptr: unset) and returns what it wrote to stdout
// and stderr. A child, because the level is read from the environment once in a process. `body` must be the first in
// its process to log.
std::string written(const char* level, const std::function<void()>& body) {
  int pipe[2];
  if (::pipe(pipe) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDOUT_FILENO);
    ::dup2(pipe[1], STDERR_FILENO);
    ::close(pipe[0]);
    ::close(pipe[1]);
    level == nullptr ? ::unsetenv("GRADWIRE_LOG") : ::setenv("GRADWIRE_LOG", level, 1);
    body();
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(pipe[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  ::close(pipe[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void say_all() {
  debug("one-debug");
  info("two-info");
  warn("three-warn");
  error("four-error");
}

TEST(LogTest, IsSilentByDefault) {
  EXPECT_EQ(written(nullptr, say_all), "");
  EXPECT_EQ(written("off", say_all), "");
  EXPECT_EQ(written("", say_all), "");
}

TEST(LogTest, WhatIsNoLevelIsTold) {
  const std::string text = written("inof", say_all);
  EXPECT_TRUE(contains(text, "GRADWIRE_LOG is 'inof'")) << text;
  EXPECT_TRUE(contains(text, "debug, info, warn, error or off")) << text;
  EXPECT_FALSE(contains(text, "four-error")) << text;
}

TEST(LogTest, ANoticeShowsWhereNobodyChoseALevel) {
  const auto say = [] { notice("waiting"); };
  EXPECT_TRUE(contains(written(nullptr, say), "waiting"));
  EXPECT_TRUE(contains(written("warn", say), "waiting"));
  EXPECT_EQ(written("error", say), "");
  EXPECT_EQ(written("off", say), "");
  EXPECT_EQ(written(nullptr,
                    [&] {
                      set_level(Level::off);
                      say();
                    }),
            "");
}

TEST(LogTest, TheEnvironmentChoosesTheLevel) {
  const std::string warn_text = written("warn", say_all);
  EXPECT_FALSE(contains(warn_text, "one-debug") || contains(warn_text, "two-info")) << warn_text;
  EXPECT_TRUE(contains(warn_text, "three-warn") && contains(warn_text, "four-error")) << warn_text;
  EXPECT_TRUE(contains(written("debug", say_all), "one-debug"));
  const std::string error_text = written("error", say_all);
  EXPECT_FALSE(contains(error_text, "three-warn")) << error_text;
  EXPECT_TRUE(contains(error_text, "four-error")) << error_text;
}

TEST(LogTest, SetLevelIsStronger) {
  EXPECT_EQ(written("debug",
                    [] {
                      set_level(Level::off);
                      say_all();
                    }),
            "");
  const std::string text = written(nullptr, [] {
    set_level(Level::info);
    if (!enabled(Level::info) || enabled(Level::debug) || enabled(Level::off)) error("enabled() is wrong");
    say_all();
  });
  EXPECT_TRUE(contains(text, "two-info")) << text;
  EXPECT_FALSE(contains(text, "one-debug") || contains(text, "enabled()")) << text;
}

TEST(LogTest, LinesCarryTheRank) {
  const std::string text = written("info", [] {
    info("before");
    set_rank(3);
    info("with rank {}");  // braces are text, not a format
    set_rank(-1);
    info("after");
  });
  EXPECT_TRUE(contains(text, "rank 3: with rank {}")) << text;
  EXPECT_FALSE(contains(text, "rank 3: after") || contains(text, "rank -1")) << text;
}

}  // namespace
}  // namespace gradwire::log::log_test
