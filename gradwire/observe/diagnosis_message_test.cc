// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision where ranks wait for messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/observe/diagnosis.h"
#include "gradwire/observe/diagnosis_test_support.h"

namespace gradwire::observe::diagnosis_test::messages {
namespace {

// Of a message, the peer is the one that is missed.
TEST(Diagnosis, AReceiveWaitsForItsSender) {
  for_each_cause([](Job& job, int cause) {
    const int receiver = (cause + 1) % job.size();
    job.call(receiver, {.kind = CallKind::recv, .root = cause}, Outcome::none);
    job.at(cause).process.state = 'R';
    const Diagnosis found = job.stalled();
    expect(found, FaultClass::slow, {cause});
    EXPECT_EQ(found.call->kind, CallKind::recv);
  });
}

Made sent(int to, int tag) { return {.kind = CallKind::send, .root = to, .tag = tag}; }
Made received(int from, int tag) { return {.kind = CallKind::recv, .root = from, .tag = tag}; }

// Rank 1 has sent with tag 4, and both wait for messages with other tags.
Job job_of_two_tags() {
  Job job(2);
  job.call(1, sent(0, 4), Outcome::good);
  job.call(0, received(1, 3), Outcome::none);
  job.call(1, received(0, 5), Outcome::none);
  return job;
}

TEST(Diagnosis, AMessageWithAnotherTagThanTheOneThatIsWaitedForIsTold) {
  const std::string sentence = "rank 1 sent to rank 0 with tag 4; rank 0 waits for tag 3";
  Job job = job_of_two_tags();
  const Diagnosis found = job.stalled();
  EXPECT_EQ(found.fault, FaultClass::deadlock);
  EXPECT_EQ(found.likely_cause, sentence);
  EXPECT_NE(job.words(found).find(concat("  likely cause: ", sentence, "\n")), std::string::npos) << job.words(found);
  EXPECT_NE(job.words(found).find("recv(1024 f32, rank 1, tag 3)"), std::string::npos) << job.words(found);
  // A deadline ended the receives.
  for (RankTable& rank : job.ranks) {
    CallRow& last = rank.groups[0].calls.back();
    last.outcome = Outcome::timeout;
    last.ended = last.called + 5 * kSecond;
  }
  EXPECT_EQ(job.over().likely_cause, sentence);
  // The sender has left.
  Job other(2);
  other.call(1, sent(0, 4), Outcome::good);
  other.call(0, received(1, 0), Outcome::none);
  other.end(1, 0, -1);
  EXPECT_EQ(other.stalled().fault, FaultClass::left);
  EXPECT_EQ(other.stalled().likely_cause, "rank 1 sent to rank 0 with tag 4; rank 0 waits for tag 0");
  EXPECT_EQ(other.words(other.stalled()).find("tag 0)"), std::string::npos) << "the default is not shown in calls";
}

TEST(Diagnosis, AMessageThatWasOrWillBeTakenIsNoCause) {
  // Received, by a receive of its own, from any rank, or by one whose tag is not known; or a receive is there for it.
  for (const Made& receive : {received(1, 4), Made{.kind = CallKind::recv_anysource, .tag = 4}, received(1, -1)}) {
    for (const Outcome outcome : {Outcome::good, Outcome::none}) {
      Job job(2);
      job.call(1, sent(0, 4), Outcome::good);
      job.call(0, receive, outcome).waited = outcome == Outcome::none ? Waited::no : Waited::not_known;
      job.call(0, received(1, 3), Outcome::none);
      job.call(1, received(0, 5), Outcome::none);
      EXPECT_EQ(job.stalled().fault, FaultClass::deadlock);
      EXPECT_EQ(job.stalled().likely_cause, "");
    }
  }
  // The sender computes, and may send with tag 3 yet.
  Job slow(2);
  slow.call(1, sent(0, 4), Outcome::good);
  slow.call(0, received(1, 3), Outcome::none);
  slow.at(1).process.state = 'R';
  EXPECT_EQ(slow.stalled().fault, FaultClass::slow);
  EXPECT_EQ(slow.stalled().likely_cause, "");
  // It has sent with tag 3, too, or to another rank, or what it sent was refused.
  Job both(2);
  both.call(1, sent(0, 4), Outcome::good);
  both.call(1, sent(0, 3), Outcome::none).waited = Waited::no;
  both.call(0, received(1, 3), Outcome::none);
  both.call(1, received(0, 5), Outcome::none);
  EXPECT_EQ(both.stalled().likely_cause, "");
  Job elsewhere(3);
  elsewhere.call(1, sent(2, 4), Outcome::good);
  elsewhere.call(1, sent(0, 4), Outcome::refused);
  elsewhere.call(1, sent(0, -1), Outcome::good);  // its tag is not known
  elsewhere.call(0, received(1, 3), Outcome::none);
  elsewhere.call(1, received(0, 5), Outcome::none);
  EXPECT_EQ(elsewhere.stalled().likely_cause, "");
}

TEST(Diagnosis, AMessageForARankOutsideOfTheRingIsNoCause) {
  Job job(3);
  job.call(1, sent(0, 4), Outcome::good);
  job.call(1, received(2, 0), Outcome::none);
  job.call(2, received(1, 0), Outcome::none);
  job.call(0, received(1, 3), Outcome::none);
  expect(job.stalled(), FaultClass::deadlock, {1, 2});
  EXPECT_EQ(job.stalled().likely_cause, "") << "rank 1 may send with tag 3 once rank 2 has answered";
}

TEST(Diagnosis, ATagIsToldWhereTheOthersWaitInACollective) {
  Job job(3);
  job.call(1, sent(0, 4), Outcome::good);
  job.call(0, received(1, 3), Outcome::none);
  for (const int rank : {1, 2}) job.call(rank, {}, Outcome::none);
  EXPECT_EQ(job.stalled().culprits, std::vector<int>{0});
  EXPECT_EQ(job.stalled().likely_cause, "rank 1 sent to rank 0 with tag 4; rank 0 waits for tag 3");
}

TEST(Diagnosis, WhereReceivesAreForgottenOnlyAMessageOfTheWaitCounts) {
  const auto forget = [](Job& job) { job.at(0).groups[0].calls.erase(job.at(0).groups[0].calls.begin()); };
  Job before = job_of_two_tags();
  forget(before);
  EXPECT_EQ(before.stalled().likely_cause, "") << "a receive that is forgotten may have taken the message";
  Job meanwhile(2);
  meanwhile.call(0, received(1, 3), Outcome::none);
  meanwhile.call(1, sent(0, 4), Outcome::good);
  meanwhile.call(1, received(0, 5), Outcome::none);
  forget(meanwhile);
  EXPECT_EQ(meanwhile.stalled().likely_cause, "rank 1 sent to rank 0 with tag 4; rank 0 waits for tag 3");
  meanwhile.call(0, {}, Outcome::good);  // by another thread, and in the place of another call
  EXPECT_EQ(meanwhile.stalled().likely_cause, "");
}

// Any other rank could end the receive: it waits for those that make no call, also over a network.
TEST(Diagnosis, AReceiveFromAnyRankWaitsForTheRanksThatMakeNoCall) {
  Job job(4);
  for (int rank = 0; rank < 4; ++rank) job.at(rank).groups[0].backend = "ucx";
  job.call(0, {.kind = CallKind::recv_anysource}, Outcome::none);
  for (const int worker : {1, 2}) job.at(worker).process.state = 'R';
  job.call(3, {.kind = CallKind::recv, .root = 0}, Outcome::none);
  expect(job.stalled(), FaultClass::slow, {1, 2});
  // Who has left sends nothing more, and that is no fault while another worker goes on.
  job.end(1, 0, -1);
  expect(job.stalled(), FaultClass::slow, {2});
  job.end(2, 0, -1);
  expect(job.stalled(), FaultClass::left, {1, 2});
  // The ranks of another host may send.
  Job part(3);
  for (int rank = 0; rank < 3; ++rank) part.at(rank).groups[0].backend = "ucx";
  part.call(0, {.kind = CallKind::recv_anysource}, Outcome::none);
  part.ranks.pop_back();
  expect(part.stalled(), FaultClass::unknown, {});
  // All wait for each other.
  Job ring(3);
  for (int rank = 0; rank < 3; ++rank) {
    ring.at(rank).groups[0].backend = "ucx";
    ring.call(rank, {.kind = rank == 0 ? CallKind::recv_anysource : CallKind::recv, .root = rank == 0 ? -1 : 0},
              Outcome::none);
  }
  expect(ring.stalled(), FaultClass::deadlock, {0, 1, 2});
}

// A pipeline: the cause has posted the receive of what comes back, and does something else.
TEST(Diagnosis, AReceiveThatWasPostedEarlyIsNoWait) {
  for_each_cause([](Job& job, int cause) {
    const int other = (cause + 1) % job.size();
    for (RankTable& rank : job.ranks) rank.process.system_call = "futex";
    job.call(cause, {.kind = CallKind::recv, .root = other}, Outcome::none);
    job.call(other, {.kind = CallKind::recv, .line = 13, .root = cause}, Outcome::none);
    Job barrier = job;
    for (Job* const each : {&job, &barrier}) {
      if (each == &barrier) each->others_call(cause, Outcome::none, {.kind = CallKind::barrier});
      each->at(cause).process.system_call = "nanosleep";
      const Diagnosis found = each->stalled();
      expect(found, FaultClass::blocked, {cause});
      EXPECT_TRUE(found.certain);
      each->at(cause).process.system_call = "";
      each->at(cause).process.state = 'R';
      expect(each->stalled(), FaultClass::slow, {cause});
    }
    EXPECT_EQ(job.stalled().call->place.line, "train.py:13 (main)");
    // Where the look shows nothing of one rank alone, they disagree.
    job.at(other).process.state = 'R';
    expect(job.stalled(), FaultClass::deadlock, {std::min(cause, other), std::max(cause, other)});
  });
}

}  // namespace
}  // namespace gradwire::observe::diagnosis_test::messages
