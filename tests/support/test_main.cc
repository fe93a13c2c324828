// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// main() of a program that holds the tests of several sources: `PROGRAM [GoogleTest's options] [SOURCE...]` runs the
// tests of those sources (all without one), such as `hooks_tests clip_hook_test.cc`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace {

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// GoogleTest's filter for the tests of `sources`, a suite in one word where it is all theirs. Leaves in `missing` the
// sources that have no test.
std::string filter_of(const std::vector<std::string>& sources, std::vector<std::string>& missing) {
  std::string filter;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    std::string theirs;
    bool whole = true;
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      if (contains(sources, file_name(test.file()))) {
        theirs += std::string(suite.name()) + "." + test.name() + ":";
        std::erase(missing, file_name(test.file()));
      } else {
        whole = false;
      }
    }
    filter += whole ? std::string(suite.name()) + ".*:" : theirs;
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::vector<std::string> sources(argv + 1, argv + argc);
  // A filter of tests that was given has the last word: a death test names its test in one when it starts this program
  // again. A filter that only leaves tests out is kept.
  const std::string given = GTEST_FLAG_GET(filter);
  if (sources.empty() || (given != "*" && !given.starts_with('-'))) return RUN_ALL_TESTS();
  std::vector<std::string> missing = sources;
  GTEST_FLAG_SET(filter, filter_of(sources, missing) + (given == "*" ? "" : given));
  if (!missing.empty()) {
    std::fprintf(stderr, "%s: this program has no test of %s\n", argv[0], missing.front().c_str());
    return 2;
  }
  return RUN_ALL_TESTS();
}
