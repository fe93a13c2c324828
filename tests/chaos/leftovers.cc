// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/leftovers.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace gradwire::testing {
namespace {

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

}  // namespace

Leftovers::Leftovers() : shared_before_(files_in("/dev/shm")) {
  const char* old = std::getenv("TMPDIR");
  old_folder_ = old != nullptr ? old : "";
  ::setenv("TMPDIR", folder_.path().c_str(), 1);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Leftovers::~Leftovers() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  if (old_folder_.empty()) {
    ::unsetenv("TMPDIR");
  } else {
    ::setenv("TMPDIR", old_folder_.c_str(), 1);
  }
}

void Leftovers::expect_none() const {
  // All children that the test started are reaped by now: what is left came from one of them.
  const pid_t orphan = ::waitpid(-1, nullptr, WNOHANG);
  EXPECT_TRUE(orphan == -1 && errno == ECHILD) << "a process was left behind";
  for (const std::string& name : files_in(folder_.path())) ADD_FAILURE() << "left in TMPDIR: " << name;
  for (const std::string& name : files_in("/dev/shm")) {
    EXPECT_TRUE(shared_before_.count(name) == 1 || name.find("gradwire") == std::string::npos)
        << "left in /dev/shm: " << name;
  }
}

Footprint footprint() {
  Footprint print;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> print.resident_kib;
  }
  const auto count = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{});
  };
  print.descriptors = count("/proc/self/fd");
  std::ifstream maps("/proc/self/maps");
  print.mappings = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  return print;
}

}  // namespace gradwire::testing
