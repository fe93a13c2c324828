// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests LineSplitter against a simple oracle, for every way of cutting the bytes; and LastLines.
#include "launch/lines.h"

#include <gtest/gtest.h>

#include <random>

namespace gradwire::launch {
namespace {

std::vector<std::string> split(const std::string& bytes, const std::vector<std::size_t>& cuts, std::size_t limit) {
  LineSplitter splitter(limit);
  std::vector<std::string> lines;
  const auto add = [&](std::string_view line) { lines.emplace_back(line); };
  std::size_t from = 0;
  for (const std::size_t to : cuts) {
    splitter.feed(std::string_view(bytes).substr(from, to - from), add);
    from = to;
  }
  splitter.feed(std::string_view(bytes).substr(from), add);
  splitter.finish(add);
  return lines;
}

// Looks at the whole text at once, which the splitter never can.
std::vector<std::string> oracle(const std::string& bytes, std::size_t limit) {
  std::vector<std::string> lines;
  std::string line;
  bool open = false;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const bool ends = bytes[i] == '\n' || bytes[i] == '\r';
    if (ends) {
      if (bytes[i] == '\r' && i + 1 < bytes.size() && bytes[i + 1] == '\n') ++i;
      lines.push_back(line);
      line.clear();
      open = false;
      continue;
    }
    if (line.size() == limit) {
      lines.push_back(line);
      line.clear();
    }
    line += bytes[i];
    open = true;
  }
  if (open) lines.push_back(line);
  return lines;
}

TEST(LineSplitter, EqualsTheOracleHoweverTheBytesAreCut) {
  std::mt19937 random(7);
  const std::string letters = "aaaab\n\r";
  for (int trial = 0; trial < 3000; ++trial) {
    std::string bytes;
    for (unsigned length = random() % 40; length > 0; --length) bytes += letters[random() % letters.size()];
    std::vector<std::size_t> cuts;
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      if (random() % 3 == 0) cuts.push_back(at);
    }
    const std::size_t limit = 1 + random() % 12;
    ASSERT_EQ(split(bytes, cuts, limit), oracle(bytes, limit)) << testing::PrintToString(bytes) << " limit " << limit;
  }
}

TEST(LineSplitter, TheEndOfALineThatWasTakenForARedrawIsTold) {
  LineSplitter splitter;
  std::vector<std::string> redrawn;
  int ended = 0;
  const auto feed = [&](std::string_view bytes) {
    splitter.feed(
        bytes,
        [&](std::string_view line) {
          if (splitter.redrawn()) redrawn.emplace_back(line);
        },
        [&] { ++ended; });
  };
  feed("10%\r20%\r\n30%\r");
  EXPECT_EQ(redrawn, (std::vector<std::string>{"10%", "30%"}));
  EXPECT_EQ(ended, 0);
  feed("\n\n40%\r");
  EXPECT_EQ(ended, 1);
  feed("50%\r");
  feed("\n");
  EXPECT_EQ(ended, 2);
}

TEST(LineSplitter, ReturnAndNewlineInTwoPiecesAreOneEnd) {
  EXPECT_EQ(split("a\r\nb", {2}, 100), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(split("10%\r20%\r30%\n", {}, 100), (std::vector<std::string>{"10%", "20%", "30%"}));
  EXPECT_EQ(split("\n\n", {1}, 100), (std::vector<std::string>{"", ""}));
}

TEST(LastLines, KeepsTheLastOnesAndCutsLongOnes) {
  LastLines last(2, 5);
  for (const auto* line : {"one", "two", "three", "fourteen"}) last.add(line);
  EXPECT_EQ(last.lines(), (std::vector<std::string>{"three", "fourt..."}));
}

TEST(LastLines, FramesOfABacktraceDoNotPushOutTheError) {
  LastLines last(2);
  for (const auto* line : {"before", "can't allocate memory", "frame #0: alloc_cpu", "frame #1: empty", "frames"})
    last.add(line);
  EXPECT_EQ(last.lines(), (std::vector<std::string>{"can't allocate memory", "frames"}));
}

TEST(LastLines, OfAFileThatIsNotThereAreNone) { EXPECT_TRUE(last_lines_of_file("/no/such/file").empty()); }

// A rank may put anything in the place of its file.
TEST(LastLines, OfAFileThatCannotBeReadAreNone) { EXPECT_TRUE(last_lines_of_file(::testing::TempDir()).empty()); }

}  // namespace
}  // namespace gradwire::launch
