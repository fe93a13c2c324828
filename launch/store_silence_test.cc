// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A host whose store is silent tells its user once, and gives the job up when two talks have failed and the time is
// over.
#include "launch/store_silence.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace gradwire::launch::store_silence_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const StoreSilence::Time kBegin{std::chrono::hours(1)};

// The store answers in each talk, and each talk ends with `problem`.
void expect_no_word(const std::string& problem) {
  StoreSilence silence("host-a:29400", seconds(10), kBegin);
  for (int second = 1; second < 100; ++second) {
    silence.hears(kBegin + seconds(second));
    const auto found = silence.end_talk(problem, kBegin + seconds(second));
    EXPECT_EQ(found.to_tell, "");
    EXPECT_EQ(found.why_lost, "");
  }
}

TEST(StoreSilenceTest, AStoreThatAnswersIsNotTalkedOf) { expect_no_word(""); }

TEST(StoreSilenceTest, TheUserHearsOnceOfASilenceAndOnceOfItsEnd) {
  StoreSilence silence("host-a:29400", seconds(10), kBegin);
  EXPECT_EQ(silence.end_talk("refused", kBegin + milliseconds(1999)).to_tell, "") << "a talk was due a second ago";
  EXPECT_EQ(silence.end_talk("refused", kBegin + milliseconds(2000)).to_tell,
            "the store of the job at host-a:29400 does not answer; this host's ranks wait up to 10 s for it");
  EXPECT_EQ(silence.end_talk("refused", kBegin + milliseconds(3000)).to_tell, "") << "told already";
  silence.hears(kBegin + seconds(4));
  EXPECT_EQ(silence.end_talk("", kBegin + seconds(4)).to_tell,
            "the store of the job at host-a:29400 answers again, and the job goes on");
  EXPECT_EQ(silence.end_talk("", kBegin + seconds(5)).to_tell, "");
  EXPECT_NE(silence.end_talk("refused", kBegin + seconds(6)).to_tell, "") << "another silence";
}

TEST(StoreSilenceTest, AShortSilenceEndsWithoutAWord) {
  StoreSilence silence("host-a:29400", seconds(10), kBegin);
  silence.end_talk("refused", kBegin + seconds(1));
  silence.hears(kBegin + seconds(2));
  EXPECT_EQ(silence.end_talk("", kBegin + seconds(2)).to_tell, "");
}

TEST(StoreSilenceTest, TheJobIsLostWhenTheTimeIsOver) {
  StoreSilence silence("host-a:29400", seconds(10), kBegin);
  silence.end_talk("refused", kBegin + seconds(1));
  EXPECT_EQ(silence.end_talk("refused", kBegin + milliseconds(9999)).why_lost, "");
  EXPECT_EQ(silence.end_talk("connection refused", kBegin + seconds(10)).why_lost,
            "the coordinator of the job at host-a:29400 has not answered for 10 s (connection refused), so this host "
            "stops its ranks: a part of the job that is cut off does not train on");
}

TEST(StoreSilenceTest, AProcessThatStoodStillAsksOnceMore) {
  StoreSilence silence("host-a:29400", seconds(10), kBegin);
  EXPECT_EQ(silence.end_talk("no answer in time", kBegin + std::chrono::hours(1)).why_lost, "")
      << "it may not have run for an hour itself";
  EXPECT_NE(silence.end_talk("no answer in time", kBegin + std::chrono::hours(1)).why_lost, "");
}

// Of a look at the log behind an answer, for example.
TEST(StoreSilenceTest, ATalkThatFailsAfterAnAnswerIsNoSilence) { expect_no_word("no such key"); }

TEST(StoreSilenceTest, AnAnswerEndsTheRowOfFailedTalks) {
  StoreSilence silence("host-a:29400", seconds(10), kBegin);
  silence.end_talk("refused", kBegin + seconds(9));
  silence.hears(kBegin + seconds(9));
  silence.end_talk("", kBegin + seconds(9));
  EXPECT_EQ(silence.end_talk("refused", kBegin + seconds(100)).why_lost, "") << "the first of another row";
}

}  // namespace
}  // namespace gradwire::launch::store_silence_test
