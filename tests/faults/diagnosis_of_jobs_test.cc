// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Each class of fault, injected into one rank of a job under gradwire-run: the launcher names that rank, the call, the
// source line and the class; and it says nothing of a healthy job.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/environment.h"
#include "gradwire/base/strings.h"
#include "launch/free_port.h"
#include "launch/launcher_fixture_internal.h"

namespace gradwire::launch {
namespace {

// One of the three calls of a step, in words of the report.
struct Phase {
  std::string call;
  std::string function;  // that makes the call
};
const std::vector<Phase> kPhases = {{"all_reduce(1024 f32)", "reduce_gradients"},
                                    {"all_reduce(1 f32)", "sum_loss"},
                                    {"broadcast(4 f32, root 0)", "take_word"}};

struct Case {
  std::string fault;
  std::string headline;       // after "rank K is the cause: "
  std::vector<int> phases;    // before or in place of which calls of the step the fault is injected
  std::string more = {};      // what the report says besides
  bool calls_differ = false;  // the rank at fault makes another call
  bool hangs = false;         // the job ends only when it is told to
};

std::ostream& operator<<(std::ostream& out, const Case& each) { return out << each.fault; }

// How often each class was injected, and recognized with its rank and its call.
struct Tally {
  int injected = 0;
  int right = 0;
};

class DiagnosisOfJobsTest : public LauncherTest, public testing::WithParamInterface<Case> {
 protected:
  // The first call after five steps of three calls. One dup() came before them.
  static constexpr int kCall = 15;
  static constexpr int kCallsBefore = 1;

  static void TearDownTestSuite() {
    for (const auto& [fault, tally] : tallies())
      std::cout << fault << ": " << tally.right << " of " << tally.injected << " recognized\n";
    tallies().clear();
  }
  static std::map<std::string, Tally>& tallies() {
    static std::map<std::string, Tally> all;
    return all;
  }

  // The report of a job in which `rank` of `ranks` has the fault.
  Result run_fault(const Case& fault, int ranks, int rank, int phase) {
    std::vector<std::string> arguments = {"-n", std::to_string(ranks), "--flight-dir", scratch("flight")};
    if (fault.hangs) arguments.insert(arguments.end(), {"--stall", "1"});
    arguments.insert(arguments.end(),
                     {FAULT_PROGRAM, fault.fault, std::to_string(rank), std::to_string(kCall + phase), "60"});
    start(arguments);
    if (fault.hangs) {
      wait_for_error("what to do");
      signal_launcher(SIGTERM);
    }
    return finish();
  }

  // Whether the launcher, and gradwire-diagnose afterwards, name the rank, the class, the call and its line.
  void expect_recognized(const Case& fault, int ranks, int rank, int phase) {
    SCOPED_TRACE(concat("rank ", rank, " of ", ranks, ", phase ", phase));
    const Result result = run_fault(fault, ranks, rank, phase);
    const Phase& usual = kPhases[static_cast<std::size_t>(phase)];
    const std::string headline = concat("rank ", rank, " is the cause: ", fault.headline, "\n");
    std::vector<std::string> parts = {concat("gradwire-run: ", headline), fault.more};
    if (fault.fault != "hook_exception") {
      parts.push_back(concat(fault.calls_differ ? "the others called " : "the others waited in ", usual.call, " (call ",
                             kCallsBefore + kCall + phase + 1, " of its group) at fault_program.cc:"));
      parts.push_back(concat(" (", usual.function, "), group default"));
    }
    if (fault.fault == "hook_exception") parts.emplace_back(" (train_with_a_hook), group default.dup");
    Tally& tally = tallies()[fault.fault];
    ++tally.injected;
    bool right = count_of(result.err, "is the cause") == 1;
    const std::string told = result.err.substr(std::min(result.err.find("gradwire-run: "), result.err.size()));
    for (const std::string& part : parts) right = right && told.find(part) != std::string::npos;
    EXPECT_TRUE(right) << result.err << "\nshould hold:\n" << ::testing::PrintToString(parts);
    start_program({GRADWIRE_DIAGNOSE_PROGRAM, scratch("flight")});
    const Result again = finish();
    EXPECT_EQ(again.exit_code, 1);
    EXPECT_NE(again.out.find(headline), std::string::npos) << again.out << again.err;
    if (right) ++tally.right;
    std::filesystem::remove_all(scratch("flight"));
  }

  // gradwire-diagnose on the running job.
  Result diagnose_job(const std::string& bound = "0.1") const {
    BackgroundProgram program(scratch("diagnose"),
                              {GRADWIRE_DIAGNOSE_PROGRAM, "--job", std::to_string(launcher()), "--bound", bound});
    return program.finish();
  }

  void wait_until_calls_wait(const std::string& seconds) const {
    const auto end = std::chrono::steady_clock::now() + kGuard;
    while (std::chrono::steady_clock::now() < end) {
      if (diagnose_job(seconds).out.find("is the cause") != std::string::npos) return;
    }
    ADD_FAILURE() << "the job goes on";
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
  for (const auto& [ranks, rank] : std::vector<std::pair<int, int>>{{2, 1}, {3, 0}}) {
    for (const int phase : GetParam().phases) expect_recognized(GetParam(), ranks, rank, phase);
  }
}

const std::vector<int> kAnyPhase = {0, 1, 2};

const std::vector<Case> kCases = {
    {"killed", "killed", kAnyPhase},
    {"crashed", "crashed", kAnyPhase},
    {"out_of_memory", "out of memory", kAnyPhase, "std::bad_alloc"},
    {"failed", "ended with an error", kAnyPhase, "the file of samples is broken"},
    {"left", "left the loop", kAnyPhase},
    {"hook_exception", "exception in a hook", {0}, "the scale of the gradients is not finite"},
    {"other_collective", "other collective", {0, 1, 2}, "the cause called all_gather_into_tensor(1024 f32)", true},
    {"other_shape", "other shape", {0}, "the cause called all_reduce(1000 f32)", true},
    {"other_dtype", "other dtype", {0}, "the cause called all_reduce(1024 f64)", true},
    {"other_root", "other root", {2}, "the cause called broadcast(4 f32, root 1)", true},
    {"skipped", "skipped a call", {0, 2}, "the cause called all_reduce(1 f32)", true},
    {"stopped", "stopped", kAnyPhase, "its process is stopped", false, true},
    {"slow", "slow", kAnyPhase, "its process computes", false, true},
    {"blocked", "blocked", kAnyPhase, "its process waits in read()", false, true},
};

INSTANTIATE_TEST_SUITE_P(Faults, DiagnosisOfJobsTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.fault; });

class DiagnosisTest : public DiagnosisOfJobsTest {};

TEST_F(DiagnosisTest, SaysNothingOfAHealthyJob) {
  const Result result =
      run({"-n", "3", "--stall", "20", "--flight-dir", scratch("flight"), FAULT_PROGRAM, "none", "0", "0", "9000"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_FALSE(std::filesystem::exists(scratch("flight")));
}

// The exception on the other ranks and the report speak of the same call in the same words.
TEST_F(DiagnosisTest, TheExceptionNamesTheCallThatTheReportNames) {
  const Result result = run({"-n", "3", FAULT_PROGRAM, "killed", "1", "15", "60"});
  const auto at = result.err.find("the others waited in all_reduce(1024 f32) (call ");
  ASSERT_NE(at, std::string::npos) << result.err;
  const std::string number = result.err.substr(result.err.find("(call ", at) + 6, 2);
  for (const int rank : {0, 2}) {
    const std::string call = concat("all_reduce (call ", number, " of group default) on rank ", rank, " of 3: ");
    EXPECT_NE(result.err.find(call), std::string::npos) << call << " is not in:\n" << result.err;
  }
  // Whichever of the two was told of the death by the other, both say the same, and the report says this once.
  const std::string once = "gradwire-run: ranks 0, 2 ended with the same error, here in the words of rank 0:\n  | ";
  EXPECT_NE(result.err.find(once), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(" of 3: rank 1 (process "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("; start the job again, or run the job elastically"), std::string::npos) << result.err;
}

// The other ranks fail too, because of that rank, and a launcher hears of them before it hears of the other host. All
// exit with 1.
TEST_F(DiagnosisTest, OverHostsTheVerdictNamesTheRankThatFailedFirst) {
  for (const int cause : {0, 3}) {
    const std::uint16_t port = find_free_port(PortScope::loopback);
    const auto node = [&](int number) {
      return launch(concat("node-", cause, "-", number),
                    {"-n", "2", "--nnodes", "2", "--node-rank", std::to_string(number), "--rendezvous",
                     concat("127.0.0.1:", port), FAULT_PROGRAM, "failed", std::to_string(cause), "15", "60"});
    };
    auto first = node(0);
    auto second = node(1);
    for (const Result& result : {first.finish(), second.finish()}) {
      EXPECT_EQ(result.exit_code, 1);
      const std::string named = concat("gradwire-run: rank ", cause, " on node ", cause / 2, " (");
      EXPECT_NE(result.err.find(named), std::string::npos) << named << " is not in:\n" << result.err;
    }
  }
}

// Each process kills itself; the launcher replaces two of them, and ends the job with the third.
TEST_F(DiagnosisTest, TheRecordsOfProcessesThatWereReplacedAreKept) {
  const Result result = run({"--elastic", "1:1", "-n", "1", "--deaths-per-minute", "2", "--flight-dir",
                             scratch("flight"), FAULT_PROGRAM, "killed", "0", "5", "20"});
  EXPECT_NE(result.err.find("rank 0 is the cause: killed"), std::string::npos) << result.err;
  int earlier = 0;
  int last = 0;
  for (const auto& file : std::filesystem::directory_iterator(scratch("flight"))) {
    const std::string name = file.path().filename().string();
    earlier += name.starts_with("earlier-rank-0-pid-") ? 1 : 0;
    last += name == "rank-0.jsonl" ? 1 : 0;
    EXPECT_NE(read_file(file.path()).find("\"operation\":\"all_reduce\""), std::string::npos) << name;
  }
  EXPECT_EQ(earlier, 2);
  EXPECT_EQ(last, 1);
}

// The second process fails before its first call. What the first one had recorded is not told as its own.
TEST_F(DiagnosisTest, TheRecordsOfAProcessThatWasReplacedAreNotThoseOfTheNewOne) {
  const std::string program = concat("[ -e ", scratch("began"), " ] && exit 3; touch ", scratch("began"), "; exec ",
                                     FAULT_PROGRAM, " killed 0 5 20");
  const Result result = run({"--elastic", "1:1", "-n", "1", "--deaths-per-minute", "1", "--flight-dir",
                             scratch("flight"), "sh", "-c", program});
  EXPECT_NE(result.err.find("rank 0 is the cause: ended with an error"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("rank 0: has made no call; it exited with 3"), std::string::npos) << result.err;
  int earlier = 0;
  for (const auto& file : std::filesystem::directory_iterator(scratch("flight"))) {
    const bool is_earlier = file.path().filename().string().starts_with("earlier-rank-0-pid-");
    earlier += is_earlier ? 1 : 0;
    EXPECT_EQ(read_file(file.path()).find("\"type\":\"call\"") != std::string::npos, is_earlier) << file.path();
  }
  EXPECT_EQ(earlier, 1);
}

// Calls go on while each rank waits for a message for longer than the bound.
TEST_F(DiagnosisTest, SaysNothingOfAReceiveThatWaitsWhileTheJobGoesOn) {
  const Result result = run({"-n", "2", "--stall", "4", FAULT_PROGRAM, "early_receive", "0", "0", "5"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
}

TEST_F(DiagnosisTest, SaysNothingOfAJobThatIsInterrupted) {
  start({"-n", "2", FAULT_PROGRAM, "none", "0", "0", "100000000"});
  wait_until_calls_are_made();
  signal_launcher(SIGINT);
  EXPECT_EQ(finish().err.find("cause"), std::string::npos);
}

TEST_F(DiagnosisTest, WithoutArgumentsTheRunningJobsAreListed) {
  start({"-n", "2", FAULT_PROGRAM, "none", "0", "0", "100000000"});
  wait_until_calls_are_made();
  BackgroundProgram program(scratch("diagnose"), {GRADWIRE_DIAGNOSE_PROGRAM});
  const Result listed = program.finish();
  EXPECT_EQ(listed.exit_code, 0);
  EXPECT_EQ(listed.err, "");
  const std::string line = concat("--job ", launcher(), "   ", GRADWIRE_RUN_PROGRAM, " -n 2 ", FAULT_PROGRAM, " none");
  EXPECT_NE(listed.out.find(line), std::string::npos) << listed.out << "\nshould hold: " << line;
  signal_launcher(SIGINT);
  finish();
}

// Nobody asked for --stall, and somebody has lost patience.
TEST_F(DiagnosisTest, AJobThatStandsStillAndIsInterruptedIsExplained) {
  for (const int signal : {SIGINT, SIGTERM}) {
    start({"-n", "2", FAULT_PROGRAM, "blocked", "1", "15", "60"});
    wait_until_calls_wait("5");
    signal_launcher(signal);
    const Result result = finish();
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_NE(result.err.find("the job stood still: no call had begun or ended for "), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("rank 1 is the cause: blocked"), std::string::npos) << result.err;
  }
}

// Its main thread waits for another thread, which only two looks show to compute.
TEST_F(DiagnosisTest, ARankWhoseOtherThreadComputesIsSlowAlsoWithoutStall) {
  start({"-n", "2", FAULT_PROGRAM, "slow_thread", "1", "15", "60"});
  wait_until_calls_wait("5");
  const Result running = diagnose_job();
  EXPECT_NE(running.out.find("rank 1 is the cause: slow"), std::string::npos) << running.out;
  signal_launcher(SIGINT);
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_NE(result.err.find("rank 1 is the cause: slow"), std::string::npos) << result.err;
  // On a slow machine the ranks may not have begun, or not have stood still for long, after the first of these times.
  Result late;
  for (const char* const seconds : {"5", "15", "45"}) {
    late = run({"-n", "2", "--timeout", seconds, FAULT_PROGRAM, "slow_thread", "1", "15", "60"});
    EXPECT_EQ(late.exit_code, 124);
    if (late.err.find("is the cause") != std::string::npos) break;
  }
  EXPECT_NE(late.err.find("rank 1 is the cause: slow"), std::string::npos) << late.err;
}

// Each rank waits in another group for the others.
TEST_F(DiagnosisTest, RanksThatWaitForEachOtherInTwoGroupsAreADeadlock) {
  start({"-n", "2", "--stall", "1", FAULT_PROGRAM, "deadlock", "1", "15", "60"});
  wait_for_error("what to do");
  signal_launcher(SIGTERM);
  const Result result = finish();
  EXPECT_NE(result.err.find("ranks 0, 1 disagree: deadlock"), std::string::npos) << result.err;
}

// A stall is told once, and again only after the job has gone on.
TEST_F(DiagnosisTest, AStallIsToldOnceAndTheJobGoesOn) {
  start({"-n", "2", "--stall", "1", FAULT_PROGRAM, "stopped", "1", "15", "60"});
  wait_for_error("what to do");
  const Result diagnosed = diagnose_job();
  EXPECT_EQ(diagnosed.exit_code, 1) << diagnosed.err;
  EXPECT_NE(diagnosed.out.find("rank 1 is the cause: stopped"), std::string::npos) << diagnosed.out << diagnosed.err;
  signal_launcher(SIGCONT);
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(count_of(result.err, "is the cause"), 1) << result.err;
}

TEST_F(DiagnosisTest, TheBoundOfAStallMayComeFromTheEnvironment) {
  start_program({"/usr/bin/env", "GRADWIRE_STALL_SECONDS=1", GRADWIRE_RUN_PROGRAM, "-n", "2", FAULT_PROGRAM, "stopped",
                 "1", "15", "60"});
  wait_for_error("rank 1 is the cause: stopped");
  signal_launcher(SIGTERM);
  finish();
}

TEST_F(DiagnosisTest, AJobThatRunsTooLongIsExplainedWhenItStandsStill) {
  // On a slow machine the ranks may not have begun, or not have stood still for long, after the first of these times.
  Result result;
  for (const char* const seconds : {"5", "15", "45"}) {
    result = run({"-n", "2", "--timeout", seconds, FAULT_PROGRAM, "blocked", "1", "15", "60"});
    EXPECT_EQ(result.exit_code, 124);
    if (result.err.find("is the cause") != std::string::npos) break;
  }
  EXPECT_NE(result.err.find("rank 1 is the cause: blocked"), std::string::npos) << result.err;
}

// As without gradwire-run: each rank has a file of its own.
TEST_F(DiagnosisTest, FilesOfRanksAreReadAfterTheJob) {
  std::filesystem::create_directory(scratch("files"));
  const Result job = run_script({"-n", "3"}, concat("GRADWIRE_FLIGHT_RECORDER=", scratch("files"),
                                                    "/$RANK.flight exec ", FAULT_PROGRAM, " other_shape 1 15 60"));
  EXPECT_NE(job.exit_code, 0);
  EXPECT_EQ(job.err.find("is the cause"), std::string::npos) << job.err;
  start_program({GRADWIRE_DIAGNOSE_PROGRAM, scratch("files")});
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("rank 1 is the cause: other shape"), std::string::npos) << result.out << result.err;
  EXPECT_NE(result.out.find("fault_program.cc:"), std::string::npos) << result.out;
}

// An addr2line that takes for ever. The launcher waits for it, 5 seconds while the job runs and 30 at its end.
class SlowLookupTest : public DiagnosisOfJobsTest {
 protected:
  // Starts two ranks of a shell script, in which `blocked` and `killed` run FAULT_PROGRAM with that fault of rank 1.
  void start_job(const std::vector<std::string>& options, const std::string& script) {
    std::filesystem::create_directory(scratch("bin"));
    std::ofstream(scratch("bin/addr2line")) << "#!/bin/sh\ntouch " << scratch("looks") << "\nexec sleep 1000\n";
    std::filesystem::permissions(scratch("bin/addr2line"), std::filesystem::perms::owner_all);
    std::vector<std::string> command = {
        "/usr/bin/env", concat("PATH=", scratch("bin"), ":", environment("PATH").value_or("/usr/bin:/bin")),
        GRADWIRE_RUN_PROGRAM, "-n", "2"};
    command.insert(command.end(), options.begin(), options.end());
    for (const auto* word : {"/bin/sh", "-c"}) command.emplace_back(word);
    std::string faults;
    for (const char* fault : {"blocked", "killed"})
      faults += concat(fault, "() { exec ", FAULT_PROGRAM, " ", fault, " 1 15 60; }; ");
    command.push_back(faults + script);
    start_program(command);
  }
  void wait_for_lookup() const {
    const auto end = std::chrono::steady_clock::now() + kGuard;
    while (!std::filesystem::exists(scratch("looks")) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_TRUE(std::filesystem::exists(scratch("looks"))) << "the launcher looks up no lines";
  }
  bool has_told() const { return read_file(scratch("stderr")).find("is the cause") != std::string::npos; }
};

TEST_F(SlowLookupTest, OutputGoesOnWhileTheJobRuns) {
  start_job({"--stall", "1"}, "(while sleep 0.05; do echo tick; done) & blocked");
  wait_for_lookup();
  wait_for_output("tick", count_of(read_file(scratch("stdout")), "tick") + 10);
  EXPECT_FALSE(has_told()) << "the lookup has ended already";
  wait_for_error("what to do");
  EXPECT_TRUE(has_told());
  signal_launcher(SIGTERM);
  finish();
}

// The launcher tells the cause, without the lines, before it passes the signal on. So the signal has ended the lookup.
TEST_F(SlowLookupTest, ASignalEndsTheJobAndTheLookup) {
  start_job({"--stall", "1"}, "(blocked) & trap 'echo interrupted >&2; exit 0' INT; echo up; wait");
  wait_for_output("up", 2);
  wait_for_lookup();
  EXPECT_FALSE(has_told()) << "the lookup has ended already";
  const auto before = std::chrono::steady_clock::now();
  signal_launcher(SIGINT);
  const Result result = finish();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(3));
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_EQ(count_of(result.err, "rank 1 is the cause: blocked"), 1) << result.err;
  EXPECT_EQ(count_of(result.err, "] interrupted\n"), 2) << result.err;
  EXPECT_LT(result.err.find("rank 1 is the cause: blocked"), result.err.find("] interrupted\n")) << result.err;
}

TEST_F(SlowLookupTest, ADeathIsNoticedMeanwhile) {
  // The other rank hears of the death by a signal of the launcher.
  start_job({"--stall", "1"}, concat("(blocked) & if [ $RANK = 0 ]; then while [ ! -e ", scratch("looks"),
                                     " ]; do sleep 0.05; done; exit 7; fi; trap 'echo asked; exit 1' TERM; wait"));
  wait_for_output("asked");
  EXPECT_FALSE(has_told()) << "the lookup has ended already";
  signal_launcher(SIGTERM);
  const Result result = finish();
  EXPECT_NE(result.err.find("rank 1 is the cause: blocked"), std::string::npos) << result.err;
}

TEST_F(SlowLookupTest, ASignalEndsTheLookupAfterTheJob) {
  for (const int signal : {SIGINT, SIGTERM}) {
    std::filesystem::remove(scratch("looks"));
    start_job({}, "killed");
    wait_for_lookup();
    const auto before = std::chrono::steady_clock::now();
    signal_launcher(signal);
    const Result result = finish();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - before;
    std::cout << "a lookup at the end was ended in " << time.count() << " s\n";
    EXPECT_LT(time.count(), 3);
    EXPECT_EQ(result.exit_code, 128 + SIGKILL) << "of the rank that failed";
    EXPECT_NE(result.err.find("rank 1 is the cause: killed"), std::string::npos) << result.err;
  }
}

TEST_F(DiagnosisTest, TheRecorderCanBeSwitchedOff) {
  const Result result =
      run({"-n", "2", "--env", "GRADWIRE_FLIGHT_RECORDER=off", FAULT_PROGRAM, "killed", "1", "15", "60"});
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_EQ(result.err.find("is the cause"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace gradwire::launch
