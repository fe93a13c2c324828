// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Each class of fault, injected into one rank of a job under gradwire-run: the launcher names that rank, the call, the
// source line and the class; and it says nothing of a healthy job.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/strings.h"
#include "launch/launcher_fixture_internal.h"

namespace gradwire::launch {
namespace {

// Shown with the failure of a test.
struct Case {
  std::string fault;
  std::string headline;  // after "rank K is the cause: "
  std::string call;      // what the others called
  std::string line;      // the function in which they called it
  bool hangs = false;    // the job ends only when it is told to
};

std::ostream& operator<<(std::ostream& out, const Case& each) { return out << each.fault; }

class DiagnosisOfJobsTest : public LauncherTest, public testing::WithParamInterface<Case> {
 protected:
  // The report of a job in which `rank` of `ranks` has the fault in step 5. In the steps before, 3 calls each.
  Result run_fault(const Case& fault, int ranks, int rank) {
    std::vector<std::string> arguments = {"-n", std::to_string(ranks), "--flight-dir", scratch("flight")};
    if (fault.hangs) arguments.insert(arguments.end(), {"--stall", "0.5"});
    arguments.insert(arguments.end(), {FAULT_PROGRAM, fault.fault, std::to_string(rank), "5", "20"});
    start(arguments);
    if (fault.hangs) {
      wait_for_error("what to do");
      signal_launcher(SIGTERM);
    }
    return finish();
  }

  void wait_for_error(const std::string& text) const {
    const auto end = std::chrono::steady_clock::now() + kGuard;
    while (std::chrono::steady_clock::now() < end) {
      if (read_file(scratch("stderr")).find(text) != std::string::npos) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ADD_FAILURE() << "the launcher does not say '" << text << "'";
  }

  // gradwire-diagnose on the running job.
  Result diagnose_job() const {
    BackgroundProgram program(scratch("diagnose"),
                              {GRADWIRE_DIAGNOSE_PROGRAM, "--job", std::to_string(launcher()), "--bound", "0.1"});
    return program.finish();
  }

  // The records of a job without calls cannot be read.
  void wait_until_calls_are_made() const {
    const auto end = std::chrono::steady_clock::now() + kGuard;
    while (std::chrono::steady_clock::now() < end) {
      if (diagnose_job().out.find("2 ranks") != std::string::npos) return;
    }
    ADD_FAILURE() << "the job makes no calls";
  }
};

TEST_P(DiagnosisOfJobsTest, NamesTheRankTheCallAndTheClass) {
  const Case& fault = GetParam();
  for (const auto& [ranks, rank] : std::vector<std::pair<int, int>>{{2, 1}, {3, 0}}) {
    SCOPED_TRACE(concat("rank ", rank, " of ", ranks));
    const Result result = run_fault(fault, ranks, rank);
    const auto says = [&](const std::string& text) { return result.err.find(text) != std::string::npos; };
    EXPECT_TRUE(says(concat("gradwire-run: rank ", rank, " is the cause: ", fault.headline, "\n"))) << result.err;
    EXPECT_TRUE(says(fault.call)) << fault.call << " in\n" << result.err;
    if (!fault.line.empty()) {
      EXPECT_TRUE(says(" at fault_program.cc:")) << result.err;
      EXPECT_TRUE(says(concat(fault.line, ")"))) << result.err;
    }
    EXPECT_EQ(count_of(result.err, "is the cause"), 1) << result.err;
    for (int each = 0; each < ranks; ++each)
      EXPECT_TRUE(std::filesystem::exists(concat(scratch("flight"), "/rank-", each, ".jsonl"))) << each;
    // The same from the files.
    start_program({GRADWIRE_DIAGNOSE_PROGRAM, scratch("flight")});
    const Result again = finish();
    EXPECT_EQ(again.exit_code, 1);
    EXPECT_NE(again.out.find(concat("rank ", rank, " is the cause: ", fault.headline, "\n")), std::string::npos)
        << again.out << again.err;
    std::filesystem::remove_all(scratch("flight"));
  }
}

// Step 5 begins with call 17 of the group: one dup(), then 5 steps of 3 calls.
const std::vector<Case> kCases = {
    {"killed", "killed", "in all_reduce(1024 f32) (call 17 of its group)", "reduce_gradients"},
    {"crashed", "crashed", "in all_reduce(1024 f32) (call 17 of its group)", "reduce_gradients"},
    {"out_of_memory", "out of memory", "in all_reduce(1024 f32) (call 17 of its group)", "reduce_gradients"},
    {"failed", "ended with an error", "in all_reduce(1024 f32) (call 17 of its group)", "reduce_gradients"},
    {"left", "left the loop", "in all_reduce(1024 f32) (call 17 of its group)", "reduce_gradients"},
    {"hook_exception", "exception in a hook", "the scale of the gradients is not finite", ""},
    {"other_collective", "other collective", "the others called all_reduce(1024 f32) (call 17 of its group)",
     "reduce_gradients"},
    {"other_shape", "other shape", "the cause called all_reduce(1000 f32)", "reduce_gradients"},
    {"other_dtype", "other dtype", "the cause called all_reduce(1024 f64)", "reduce_gradients"},
    {"other_root", "other root", "the cause called broadcast(4 f32, root 1) (call 19 of its group)", "take_word"},
    {"skipped", "skipped a call", "the cause called all_reduce(1 f32) (call 17 of its group)", "sum_loss"},
    {"stopped", "stopped", "in all_reduce(1024 f32) (call 17 of its group)", "reduce_gradients", true},
    {"slow", "slow", "in all_reduce(1024 f32) (call 17 of its group)", "reduce_gradients", true},
    {"blocked", "blocked", "its process waits in read()", "reduce_gradients", true},
};

INSTANTIATE_TEST_SUITE_P(Faults, DiagnosisOfJobsTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.fault; });

class DiagnosisTest : public DiagnosisOfJobsTest {};

TEST_F(DiagnosisTest, SaysNothingOfAHealthyJob) {
  const Result result =
      run({"-n", "3", "--stall", "20", "--flight-dir", scratch("flight"), FAULT_PROGRAM, "none", "0", "0", "3000"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_FALSE(std::filesystem::exists(scratch("flight")));
}

TEST_F(DiagnosisTest, SaysNothingOfAJobThatIsInterrupted) {
  start({"-n", "2", FAULT_PROGRAM, "none", "0", "0", "100000000"});
  wait_until_calls_are_made();
  signal_launcher(SIGINT);
  EXPECT_EQ(finish().err.find("cause"), std::string::npos);
}

// Each rank waits in another group for the others.
TEST_F(DiagnosisTest, RanksThatWaitForEachOtherInTwoGroupsAreADeadlock) {
  start({"-n", "2", "--stall", "0.5", FAULT_PROGRAM, "deadlock", "1", "5", "20"});
  wait_for_error("what to do");
  signal_launcher(SIGTERM);
  const Result result = finish();
  EXPECT_NE(result.err.find("ranks 0, 1 disagree: deadlock"), std::string::npos) << result.err;
}

// A stall is told once, and again only after the job has gone on.
TEST_F(DiagnosisTest, AStallIsToldOnceAndTheJobGoesOn) {
  start({"-n", "2", "--stall", "0.3", FAULT_PROGRAM, "stopped", "1", "5", "20"});
  wait_for_error("what to do");
  const Result diagnosed = diagnose_job();
  EXPECT_EQ(diagnosed.exit_code, 1) << diagnosed.err;
  EXPECT_NE(diagnosed.out.find("rank 1 is the cause: stopped"), std::string::npos) << diagnosed.out << diagnosed.err;
  signal_launcher(SIGCONT);
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(count_of(result.err, "is the cause"), 1) << result.err;
}

TEST_F(DiagnosisTest, AJobThatRunsTooLongIsExplainedWhenItStandsStill) {
  const Result result = run({"-n", "2", "--timeout", "6", FAULT_PROGRAM, "blocked", "1", "5", "20"});
  EXPECT_EQ(result.exit_code, 124);
  EXPECT_NE(result.err.find("rank 1 is the cause: blocked"), std::string::npos) << result.err;
}

// As without gradwire-run: each rank has a file of its own.
TEST_F(DiagnosisTest, FilesOfRanksAreReadAfterTheJob) {
  std::filesystem::create_directory(scratch("files"));
  const Result job = run_script({"-n", "3"}, concat("GRADWIRE_FLIGHT_RECORDER=", scratch("files"),
                                                    "/$RANK.flight exec ", FAULT_PROGRAM, " other_shape 1 5 20"));
  EXPECT_NE(job.exit_code, 0);
  EXPECT_EQ(job.err.find("is the cause"), std::string::npos) << job.err;
  start_program({GRADWIRE_DIAGNOSE_PROGRAM, scratch("files")});
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("rank 1 is the cause: other shape"), std::string::npos) << result.out << result.err;
  EXPECT_NE(result.out.find("fault_program.cc:"), std::string::npos) << result.out;
}

TEST_F(DiagnosisTest, TheRecorderCanBeSwitchedOff) {
  const Result result =
      run({"-n", "2", "--env", "GRADWIRE_FLIGHT_RECORDER=off", FAULT_PROGRAM, "killed", "1", "5", "20"});
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_EQ(result.err.find("is the cause"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace gradwire::launch
