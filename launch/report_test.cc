// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests the launcher's report and exit code for every kind of end.
#include "launch/report.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

constexpr std::chrono::milliseconds kTimeout{1500};

JobOutcome outcome_of(std::vector<std::optional<ProcessEnd>> ends) {
  JobOutcome outcome;
  outcome.ends = std::move(ends);
  return outcome;
}

const ProcessEnd kGood{};
const ProcessEnd kSeven{false, 7, false};
const ProcessEnd kCrash{true, SIGSEGV, true};
const ProcessEnd kTerm{true, SIGTERM, false};
const ProcessEnd kKill{true, SIGKILL, false};

TEST(Report, AGoodJobIsSilent) {
  const auto outcome = outcome_of({kGood, kGood});
  EXPECT_EQ(outcome.exit_code(), 0);
  EXPECT_EQ(report(outcome, kTimeout), "");
}

TEST(Report, NamesTheFirstDeathAndWhatBecameOfTheOthers) {
  auto outcome = outcome_of({kTerm, kCrash, kKill, kTerm, kSeven});
  outcome.first_bad = 1;
  outcome.first_bad_after = std::chrono::milliseconds(2345);
  outcome.killed = {2};
  outcome.last_lines = {"a", "b"};
  EXPECT_EQ(outcome.exit_code(), 128 + SIGSEGV);
  EXPECT_EQ(report(outcome, kTimeout),
            "gradwire-run: rank 1 died first, of signal 11 (SIGSEGV), core dumped, 2.35 s after the start\n"
            "gradwire-run: its last 2 lines of stderr:\n"
            "  | a\n"
            "  | b\n"
            "gradwire-run: the others ended so: rank 4: exit code 7; rank 2: killed by gradwire-run; ranks 0, 3: "
            "signal 15 (SIGTERM)\n");
}

TEST(Report, AnErrorOfSeveralRanksIsToldOnceWithTheRanks) {
  auto outcome = outcome_of({kSeven, kSeven, kSeven, kTerm, kGood, kSeven, kTerm, kTerm});
  outcome.first_bad = 0;
  outcome.first_rank = 8;
  outcome.asked = {3, 6, 7};
  const auto lines = [](int rank) -> std::vector<std::string> {
    if (rank == 1) return {"Traceback", "ValueError: another one"};
    if (rank == 5) return {};
    if (rank >= 6) return {"step 7 of 10"};  // of a log: no error
    return {concat("line ", rank), concat("PeerError: barrier on rank ", 8 + rank, " of 14: rank 13 died")};
  };
  EXPECT_EQ(shared_errors(outcome, lines),
            "gradwire-run: ranks 8, 10, 11 ended with the same error, here in the words of rank 8:\n"
            "  | PeerError: barrier on rank 8 of 14: rank 13 died\n");
  outcome.last_lines = lines(0);
  EXPECT_EQ(shared_errors(outcome, lines),
            "gradwire-run: ranks 8, 10, 11 ended with the same error, quoted above in the words of rank 8\n");
  outcome.interrupted_first = true;  // report() quotes nothing then
  EXPECT_NE(shared_errors(outcome, lines).find("\n  | PeerError: "), std::string::npos);
  outcome.interrupted_first = false;
  outcome.ends = {kSeven, kSeven};
  EXPECT_EQ(shared_errors(outcome, lines), "") << "two errors, each of one rank";
}

TEST(Report, AnElasticJobTellsOfTheFirstAndTheLastOfTheDeathsThatEndedIt) {
  auto outcome = outcome_of({kGood, kSeven});
  outcome.first_rank = 4;
  outcome.first_bad = 1;
  outcome.first_bad_after = std::chrono::milliseconds(9000);
  outcome.last_lines = {"PeerError: no member holds the state"};
  outcome.earlier = EarlierDeath{.rank = 0,
                                 .end = {false, 3, false},
                                 .after = std::chrono::milliseconds(2000),
                                 .last_lines = {"ValueError: the cause"},
                                 .error_file = ""};
  EXPECT_EQ(outcome.exit_code(), 3);
  EXPECT_EQ(report(outcome, kTimeout),
            "gradwire-run: rank 4 died first, of exit code 3, 2 s after the start\n"
            "gradwire-run: its last line of stderr:\n"
            "  | ValueError: the cause\n"
            "gradwire-run: rank 5 died last, of exit code 7, 9 s after the start\n"
            "gradwire-run: its last line of stderr:\n"
            "  | PeerError: no member holds the state\n"
            "gradwire-run: the others ended so: rank 4: exit code 0\n");
}

TEST(Report, OneRankAlone) {
  auto outcome = outcome_of({kSeven});
  outcome.first_bad = 0;
  EXPECT_EQ(outcome.exit_code(), 7);
  EXPECT_EQ(report(outcome, kTimeout),
            "gradwire-run: rank 0 died first, of exit code 7, 0 s after the start\n"
            "gradwire-run: it wrote nothing to stderr\n");
}

TEST(Report, AnInterruptionAfterADeathDoesNotHideIt) {
  auto outcome = outcome_of({kSeven, kTerm});
  outcome.first_bad = 0;
  outcome.interrupted_by = SIGINT;
  EXPECT_EQ(outcome.exit_code(), 7);
  EXPECT_NE(report(outcome, kTimeout).find("rank 0 died first"), std::string::npos);
}

TEST(Report, AnInterruptionBeforeAnyDeathIsTheReason) {
  auto outcome = outcome_of({kTerm, kGood});
  outcome.first_bad = 0;
  outcome.interrupted_by = SIGTERM;
  outcome.interrupted_first = true;
  EXPECT_EQ(outcome.exit_code(), 128 + SIGTERM);
  const auto text = report(outcome, kTimeout);
  EXPECT_NE(text.find("interrupted by SIGTERM"), std::string::npos);
  EXPECT_EQ(text.find("died first"), std::string::npos);
  EXPECT_NE(text.find("rank 0: signal 15 (SIGTERM)"), std::string::npos);
}

TEST(Report, ATimeoutIsTheReasonThoughTheRanksDieOfIt) {
  auto outcome = outcome_of({kTerm, kTerm});
  outcome.first_bad = 0;
  outcome.late = {0, 1};
  EXPECT_EQ(outcome.exit_code(), 124);
  EXPECT_NE(
      report(outcome, kTimeout).find("longer than --timeout 1.5 s and was stopped; ranks 0, 1 were still running"),
      std::string::npos);
}

TEST(Report, ATimeoutWhileOnlyOtherHostsRunIsNoGoodEnd) {
  auto outcome = outcome_of({kGood, kGood});
  outcome.late_hosts = true;
  EXPECT_EQ(outcome.exit_code(), 124);
  EXPECT_NE(report(outcome, kTimeout).find("longer than --timeout 1.5 s and was stopped; other hosts were still in it"),
            std::string::npos);
}

TEST(Report, RanksHaveTheNumbersThatTheyHaveInTheJob) {
  auto outcome = outcome_of({kTerm, kSeven});
  outcome.first_rank = 6;
  outcome.first_bad = 1;
  const auto text = report(outcome, kTimeout);
  EXPECT_NE(text.find("rank 7 died first"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 6: signal 15"), std::string::npos) << text;
}

TEST(Report, ARankThatWasStoppedForAnotherHostIsNotBlamed) {
  auto outcome = outcome_of({kTerm, kTerm});
  outcome.first_rank = 2;
  outcome.first_bad = 0;
  outcome.stopped_first = true;
  const auto text = report(outcome, kTimeout);
  EXPECT_EQ(text.find("died first"), std::string::npos) << text;
  EXPECT_NE(text.find("failed on another host"), std::string::npos) << text;
  EXPECT_NE(text.find("ranks 2, 3: signal 15"), std::string::npos) << text;
}

TEST(Report, WhatSigkillDidNotEndIsSaid) {
  auto outcome = outcome_of({kSeven, std::nullopt});
  outcome.first_bad = 0;
  outcome.killed = {1};
  outcome.unkillable = {4711};
  const auto text = report(outcome, kTimeout);
  EXPECT_NE(text.find("rank 1: still there after SIGKILL"), std::string::npos) << text;
  EXPECT_NE(text.find("in time: 4711"), std::string::npos) << text;
}

}  // namespace
}  // namespace gradwire::launch
