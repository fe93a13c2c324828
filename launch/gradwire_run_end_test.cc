// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests the ends of jobs under gradwire-run: ranks that fail, signals, time limits, clean-up. In every test the fixture
// also checks that no process and no rendezvous folder is left. The tests print measured times; the guards against
// hanging are far longer.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "gradwire/base/strings.h"
#include "launch/free_port.h"
#include "launch/launcher_fixture_internal.h"

namespace gradwire::launch {
namespace {

// Generous: the promise is 2 s, on a machine that is not overloaded.
constexpr double kSlack = 20;

void print_time(const char* what, const Result& result) { std::cout << what << ": " << result.seconds << " s\n"; }

// Throws when there is none: what kill() does with a number that is no process is nothing to try.
int number_after(const std::string& text, const std::string& key) {
  const auto at = text.find(key);
  if (at == std::string::npos) throw std::invalid_argument(concat("no '", key, "' in '", text, "'"));
  const int number = std::stoi(text.substr(at + key.size()));
  if (number < 2) throw std::invalid_argument(concat(number, " is no process of a test"));
  return number;
}

class LauncherEndTest : public LauncherTest {
 protected:
  // The report's own lines and what it quotes.
  static bool says(const Result& result, const std::string& text) { return result.err.find(text) != std::string::npos; }
};

TEST_F(LauncherEndTest, ExitCodeIsThatOfTheRankThatFailed) {
  for (const int code : {1, 3, 77, 255}) {
    const auto result =
        run_script({"-n", "3", "--grace", "60"}, concat("[ $RANK = 2 ] && exit ", code, "; exec sleep 100"));
    EXPECT_EQ(result.exit_code, code);
    EXPECT_TRUE(says(result, concat("rank 2 died first, of exit code ", code))) << result.err;
    EXPECT_TRUE(says(result, "it wrote nothing to stderr")) << result.err;
    EXPECT_TRUE(says(result, "ranks 0, 1: signal 15 (SIGTERM)")) << result.err;
    EXPECT_LT(result.seconds, kSlack);
  }
}

TEST_F(LauncherEndTest, SignalDeathIsReportedWithTheLastLinesOfStderr) {
  const auto result =
      run_script({"-n", "2"},
                 "if [ $RANK = 1 ]; then for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i. >&2; done;"
                 "printf unfinished >&2; kill -SEGV $$; fi; exec sleep 100");
  EXPECT_EQ(result.exit_code, 128 + SIGSEGV);
  EXPECT_TRUE(says(result, "rank 1 died first, of signal 11 (SIGSEGV)")) << result.err;
  EXPECT_TRUE(says(result, "its last 10 lines of stderr")) << result.err;
  EXPECT_FALSE(says(result, "  | line 3.\n")) << result.err;
  std::string tail;
  for (int i = 4; i <= 12; ++i) tail += concat("  | line ", i, ".\n");
  EXPECT_TRUE(says(result, tail + "  | unfinished\n")) << result.err;
  EXPECT_LT(result.err.find("[rank 1] unfinished"), result.err.find("gradwire-run: ")) << "the report comes last";
  print_time("a rank died of SIGSEGV, the other of SIGTERM", result);
}

TEST_F(LauncherEndTest, KillNineIsNamed) {
  const auto result = run_script({"-n", "4"}, "[ $RANK = 3 ] && kill -9 $$; exec sleep 100");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(says(result, "rank 3 died first, of signal 9 (SIGKILL)")) << result.err;
  EXPECT_LT(result.seconds, kSlack);
}

// The launcher is stopped while the ranks die, so that it finds all of them dead at once: the order must survive that.
TEST_F(LauncherEndTest, WhoDiedFirstIsKnownHoweverLateTheLauncherLooks) {
  const std::vector<std::vector<int>> orders = {{2, 0, 1, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {0, 1, 2, 3}};
  for (const auto& order : orders) {
    start_script({"-n", "4"}, "echo keeper-$PPID- pid-$RANK-$$-; exec sleep 100");
    wait_for_output("pid-", 4);
    const std::string out = read_file(scratch("stdout"));
    const pid_t keeper = number_after(out, "keeper-");
    ASSERT_EQ(::kill(keeper, SIGSTOP), 0);
    for (const int rank : order) {
      const pid_t pid = number_after(out, concat("pid-", rank, "-"));
      ASSERT_EQ(::kill(pid, rank == order[0] ? SIGABRT : SIGKILL), 0);
      wait_for_state(pid, 'Z');
    }
    ASSERT_EQ(::kill(keeper, SIGCONT), 0);
    const auto result = finish();
    EXPECT_EQ(result.exit_code, 128 + SIGABRT);
    EXPECT_TRUE(says(result, concat("rank ", order[0], " died first, of signal 6 (SIGABRT)"))) << result.err;
  }
}

// Rank 0 stands for a program without a handler for SIGTERM that learns of the death by itself, as a PeerError would
// have it: from a pipe that only rank 1 holds open. Rank 0 ends after rank 1, which the kernel shows as ended or not at
// all. The launcher watches both once it has passed their output on.
TEST_F(LauncherEndTest, OthersHaveTimeToNoticeAndTheirWordsAreKept) {
  const std::string pipe = scratch("pipe");
  const std::string gate = scratch("gate");
  for (const std::string& path : {pipe, gate}) ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  start_script(
      {"-n", "2"},
      concat("echo up; if [ $RANK = 1 ]; then exec 3> ", pipe, "; echo $$ >&3; read go < ", gate,
             "; exit 5; fi; exec 3< ", pipe,
             "; read pid <&3; read end <&3; while read -r stat 2> /dev/null < /proc/$pid/stat; do "
             "case \"$stat\" in *') Z '*) break;; esac; sleep 0.01; done; echo 'PeerError: rank 1 died' >&2; exit 9"));
  wait_for_output("up", 2);
  { std::ofstream(gate) << "go\n"; }
  const auto result = finish();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_TRUE(says(result, "[rank 0] PeerError: rank 1 died")) << result.err;
  EXPECT_TRUE(says(result, "rank 0: exit code 9")) << result.err;
}

TEST_F(LauncherEndTest, SigtermComesFirstAndItsHandlerMayReport) {
  const auto result = run_script(
      {"-n", "2", "--grace", "60"},
      concat("trap 'echo saved; exit 0' TERM; if [ $RANK = 1 ]; then while [ ! -e ", scratch("up"),
             " ]; do sleep 0.02; done; exit 5; fi; touch ", scratch("up"), "; while :; do sleep 0.05; done"));
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.out, "[rank 0] saved\n");
}

// ulimit -f 1: a kernel sends SIGXFSZ to who writes beyond it. The ranks write to pipes here. Who runs the tests may
// have other signals ignored: the rank looks at the bit of SIGXFSZ (25), which is the lowest of the seventh digit from
// the right.
TEST_F(LauncherEndTest, OutputInAFileThatMayNotGrowEndsNoJob) {
  start_program({"/bin/sh", "-c", "ulimit -f 1; exec \"$0\" \"$@\"", GRADWIRE_RUN_PROGRAM, "-n", "1", "/bin/sh", "-c",
                 "echo ignored: $(grep -c 'SigIgn:.*[13579bdf]......$' /proc/self/status); "
                 "for i in 1 2 3 4 5 6 7 8; do printf '%300s\\n' line; done"});
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("[rank 0] ignored: 0\n")) << result.out;
  EXPECT_EQ(result.err,
            "gradwire-run: stdout takes no more output (File too large); what the ranks write there is lost from here "
            "on\n");
}

TEST_F(LauncherEndTest, WhoIgnoresSigtermIsKilledAfterTheGrace) {
  const auto result =
      run_script({"-n", "3"}, concat("trap '' TERM; if [ $RANK = 0 ]; then while [ ! -e ", scratch("up-1"), " -o ! -e ",
                                     scratch("up-2"), " ]; do sleep 0.02; done; exit 7; fi; touch ", scratch("up-"),
                                     "$RANK; while :; do sleep 0.1; done"));
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_TRUE(says(result, "ranks 1, 2: killed by gradwire-run")) << result.err;
  EXPECT_GE(result.seconds, 1.0) << "the grace is a second";
  EXPECT_LT(result.seconds, kSlack);
  print_time("ranks that ignore SIGTERM, default grace", result);
  const auto hasty =
      run_script({"-n", "2", "--grace", "0"}, "trap '' TERM; [ $RANK = 0 ] && exit 7; while :; do sleep 0.1; done");
  EXPECT_EQ(hasty.exit_code, 7);
  print_time("ranks that ignore SIGTERM, no grace", hasty);
}

TEST_F(LauncherEndTest, StoppedRanksAreEndedToo) {
  const auto result = run_script({"-n", "2"}, "[ $RANK = 1 ] && { sleep 0.2; exit 4; }; kill -STOP $$");
  EXPECT_EQ(result.exit_code, 4);
}

TEST_F(LauncherEndTest, GrandchildrenGoWithTheJob) {
  // In the background, in a session of its own, deaf to signals, and two generations down.
  const std::string children =
      "(trap '' TERM INT HUP; sleep 300) & setsid sh -c 'trap \"\" TERM INT HUP; (sleep 301; sleep 302) & sleep 303' & "
      "sleep 0.2;";
  const auto good = run_script({"-n", "2"}, children + " exit 0");
  EXPECT_EQ(good.exit_code, 0) << good.err;
  print_time("ranks left with 0 and left children behind", good);
  const auto bad = run_script({"-n", "2"}, children + "[ $RANK = 0 ] && kill -9 $$; wait");
  EXPECT_EQ(bad.exit_code, 128 + SIGKILL);
  print_time("a rank was killed and left children behind", bad);
}

// Ranks with children, some of them in a session of their own, which the kernel does not end with the launcher.
const char* const kRankWithChildren =
    "(sleep 300; true) & setsid sh -c 'echo ready; (sleep 301; true); sleep 302' & wait";

TEST_F(LauncherEndTest, LauncherKilledTakesTheRanksAlong) {
  start_script({"-n", "4"}, kRankWithChildren);
  wait_for_output("ready", 4);
  signal_launcher(SIGKILL);
  const auto killed_at = std::chrono::steady_clock::now();
  EXPECT_EQ(finish_killed(), 128 + SIGKILL);
  wait_until_none_marked();
  const std::string said = read_file(scratch("stderr"));
  EXPECT_NE(said.find("somebody killed gradwire-run itself"), std::string::npos) << said;
  EXPECT_NE(said.find("ranks 0, 1, 2, 3: killed by gradwire-run"), std::string::npos) << said;
  EXPECT_EQ(said.find("died first"), std::string::npos) << said;
  std::cout << "launcher killed with SIGKILL: ranks and their children gone after "
            << std::chrono::duration<double>(std::chrono::steady_clock::now() - killed_at).count() << " s\n";
}

// The fixture looks for what is left in TMPDIR.
TEST_F(LauncherEndTest, ALauncherThatARankStartedRemovesItsFilesToo) {
  const std::string inner = concat("exec ", GRADWIRE_RUN_PROGRAM, " -n 2 -- sh -c 'echo ready; exec sleep 300'");
  for (const bool kills_keeper : {false, true}) {
    SCOPED_TRACE(kills_keeper ? "keeper" : "front");
    start_script({"-n", "1"}, concat("echo keeper-$PPID-; ", inner));
    wait_for_output("ready", 2);
    if (kills_keeper) {
      ASSERT_EQ(::kill(number_after(read_file(scratch("stdout")), "keeper-"), SIGKILL), 0);
      finish();
    } else {
      signal_launcher(SIGKILL);
      EXPECT_EQ(finish_killed(), 128 + SIGKILL);
      wait_until_none_marked();
    }
    // The outer launcher's own folder goes by its keeper, or else by its front.
    EXPECT_TRUE(std::filesystem::is_empty(scratch("tmp")));
  }
}

// Before the ranks start: the records would be wanted when it is too late.
TEST_F(LauncherEndTest, FoldersThatCannotBeWrittenToAreRefused) {
  std::ofstream(scratch("file")) << "no folder";
  for (const char* option : {"--flight-dir", "--record", "--log-dir"}) {
    for (const std::string& folder : {scratch("file"), scratch("file/below"), std::string("/proc/1/none")}) {
      const auto result = run_script({"-n", "1", option, folder}, "echo started");
      EXPECT_EQ(result.exit_code, 125) << option << " " << folder;
      EXPECT_EQ(result.out, "");
      EXPECT_TRUE(says(result, option)) << result.err;
    }
    EXPECT_EQ(run_script({"-n", "1", option, scratch("new/folder")}, "exit 0").exit_code, 0);
  }
}

TEST_F(LauncherEndTest, KeeperKilledTakesTheRanksAlong) {
  start_script({"-n", "4"}, std::string("echo keeper-$PPID-; ") + kRankWithChildren);
  wait_for_output("ready", 4);
  ASSERT_EQ(::kill(number_after(read_file(scratch("stdout")), "keeper-"), SIGKILL), 0);
  const auto result = finish();
  EXPECT_EQ(result.exit_code, 125);
  EXPECT_TRUE(says(result, "the process that watched the ranks died of signal 9 (SIGKILL)")) << result.err;
  print_time("keeper killed with SIGKILL", result);
}

TEST_F(LauncherEndTest, StopAndContinueReachTheRanks) {
  // No loop that starts programs: a shell whose vfork()ed child was stopped hangs in the kernel and is never seen as
  // stopped.
  start_script({"-n", "2"}, "trap 'echo continued; exit 0' CONT; sleep 300 & echo pid-$RANK-$$-; wait; wait");
  wait_for_output("pid-", 2);
  const std::string out = read_file(scratch("stdout"));
  signal_launcher(SIGTSTP);
  for (const int rank : {0, 1}) wait_for_state(number_after(out, concat("pid-", rank, "-")), 'T');
  wait_for_state(launcher(), 'T');
  signal_launcher(SIGCONT);
  const auto result = finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(count_of(result.out, "continued"), 2);
}

TEST_F(LauncherEndTest, SignalsArePassedOn) {
  start_script(
      {"-n", "3"},
      "trap 'echo got-usr1' USR1; trap 'echo got-usr2; exit 0' USR2; echo ready; while :; do sleep 0.05; done");
  wait_for_output("ready", 3);
  signal_launcher(SIGUSR1);
  wait_for_output("got-usr1", 3);
  signal_launcher(SIGUSR2);
  const auto result = finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(count_of(result.out, "got-usr2"), 3);
}

// nohup ignores SIGHUP, and a shell without job control SIGINT and SIGQUIT of what it starts in the background. SIGUSR1
// is read after them, because of the pending signals the one with the lowest number comes first.
TEST_F(LauncherEndTest, AnIgnoredSignalStaysIgnored) {
  const std::string ignoring = "trap '' HUP INT QUIT; exec \"$0\" \"$@\"";
  for (const std::string program : {"trap 'exit 0' USR1; echo ready; while :; do sleep 0.05; done",
                                    "[ $GRADWIRE_ATTEMPT = 1 ] && exit 0; trap 'exit 3' USR1; echo ready; "
                                    "while :; do sleep 0.05; done"}) {
    const bool restarts = program.starts_with("[");
    start_program(
        {"/bin/sh", "-c", ignoring, GRADWIRE_RUN_PROGRAM, "-n", "1", "--max-restarts", "1", "/bin/sh", "-c", program});
    wait_for_output("ready");
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGUSR1}) signal_launcher(signal);
    const auto result = finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(says(result, "all ranks start again (restart 1 of 1)"), restarts) << result.err;
    EXPECT_EQ(says(result, "gradwire-run: "), restarts) << result.err;
  }
}

TEST_F(LauncherEndTest, AnInterruptedJobEndsWith128PlusSignal) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    start_script({"-n", "2"}, "ulimit -c 0; echo ready; exec sleep 100");
    wait_for_output("ready", 2);
    signal_launcher(signal);
    const auto result = finish();
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_TRUE(says(result, "interrupted by SIG")) << result.err;
  }
}

TEST_F(LauncherEndTest, RanksThatHandleTheInterruptionTakeTheirTime) {
  // Longer than notice and grace together: none of them has ended badly, so nobody is hurried.
  start_script({"-n", "2"}, "trap 'sleep 2.5; echo checkpoint; exit 0' INT; echo ready; while :; do sleep 0.05; done");
  wait_for_output("ready", 2);
  signal_launcher(SIGINT);
  const auto result = finish();
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_EQ(count_of(result.out, "checkpoint"), 2);
}

TEST_F(LauncherEndTest, ASecondInterruptKills) {
  start_script({"-n", "2"}, "trap 'echo no' INT; trap '' TERM; echo ready; while :; do sleep 0.05; done");
  wait_for_output("ready", 2);
  signal_launcher(SIGINT);
  wait_for_output("no", 2);
  // One Ctrl-C may arrive twice (timeout(1) passes it on), so a repeat right behind the first does not count.
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  signal_launcher(SIGINT);
  const auto result = finish();
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_TRUE(says(result, "ranks 0, 1: killed by gradwire-run")) << result.err;
}

// A host of an elastic job over several, whose heartbeat timeout is far longer than the guards of these tests.
class ElasticHostEndTest : public LauncherEndTest {
 protected:
  std::vector<std::string> words(const std::vector<std::string>& options, const std::string& script) const {
    std::vector<std::string> words = options;
    for (const char* word : {"-n", "1", "--heartbeat-timeout", "1000", "/bin/sh", "-c"}) words.emplace_back(word);
    words.push_back(script);
    return words;
  }

  const std::string address_ = concat("127.0.0.1:", find_free_port(PortScope::loopback));
};

// Their records may be in one folder.
TEST_F(ElasticHostEndTest, RanksOfAHostThatJoinsHaveNumbersOfTheirOwn) {
  const std::string records = scratch("records");
  std::filesystem::create_directory(records);
  const auto script = [&](const char* name) {
    return concat("echo ", name, " > $GRADWIRE_RECORD/rank-$RANK.record; echo up $RANK of $WORLD_SIZE; while [ ! -e ",
                  scratch(name), " ]; do sleep 0.02; done");
  };
  start(words({"--elastic", "1:2", "--rendezvous", address_, "--record", records}, script("first")));
  wait_for_output("[rank 0] up 0 of 1\n");
  auto joined = launch("joined", words({"--join", address_, "--record", records}, script("second")));
  joined.wait_for("[rank 1] up 1 of 2\n");
  EXPECT_EQ(read_file(records + "/rank-0.record"), "first\n");
  EXPECT_EQ(read_file(records + "/rank-1.record"), "second\n");
  std::ofstream(scratch("second")) << "go";
  EXPECT_EQ(joined.finish().exit_code, 0);
  std::ofstream(scratch("first")) << "go";
  EXPECT_EQ(finish().exit_code, 0);
}

TEST_F(ElasticHostEndTest, AHostWhoseStoreDoesNotAnswerEndsAllTheSame) {
  const auto server =
      launch("server", {"--serve", address_, "--elastic", "1:2", "--membership-log", scratch("journal")});
  server.wait_for("hosts join with");
  start(words({"--join", address_}, "echo up; exec sleep 1000"));
  wait_for_output("up");
  server.signal(SIGSTOP);
  signal_launcher(SIGINT);
  EXPECT_EQ(finish_killed(), 128 + SIGINT);
  wait_for_error("interrupted by SIGINT");
}

TEST_F(ElasticHostEndTest, TheReportDoesNotWaitForHostsThatDoNotLeave) {
  start(words({"--elastic", "1:2", "--rendezvous", address_}, "echo up; exec sleep 1000"));
  wait_for_output("up");
  auto joined = launch("joined", words({"--join", address_}, "echo keeper-$PPID-; exec sleep 1000"));
  joined.wait_for("keeper-");
  const pid_t keeper = number_after(joined.out(), "keeper-");
  ASSERT_EQ(::kill(keeper, SIGSTOP), 0);
  signal_launcher(SIGINT);
  wait_for_error("interrupted by SIGINT");
  signal_launcher(SIGINT);
  EXPECT_EQ(finish_killed(), 128 + SIGINT);
  ASSERT_EQ(::kill(keeper, SIGKILL), 0);
  joined.finish();
}

TEST_F(LauncherEndTest, TimeoutEndsTheJob) {
  const auto result = run_script({"-n", "3", "--timeout", "6"}, "[ $RANK = 1 ] && exit 0; echo before; exec sleep 100");
  EXPECT_EQ(result.exit_code, 124);
  EXPECT_TRUE(says(result, "--timeout 6 s")) << result.err;
  EXPECT_TRUE(says(result, "ranks 0, 2 were still running")) << result.err;
  EXPECT_EQ(count_of(result.out, "before"), 2);
  EXPECT_EQ(run_script({"-n", "2", "--timeout", "50"}, "exit 0").exit_code, 0);
}

TEST_F(LauncherEndTest, AReaderThatStallsDoesNotKeepTheJobFromEnding) {
  // Rank 0 floods a pipe that nobody reads until the gate opens; the others' death must be dealt with all the same.
  const std::string gate = scratch("gate");
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  start_program(
      {"/bin/sh", "-c",
       concat("{ ", GRADWIRE_RUN_PROGRAM, " -n 2 /bin/sh -c '[ $RANK = 1 ] && { sleep 0.3; exit 5; }; echo $$ > ",
              scratch("pid"), "; exec yes flood'; echo left with $? >&2; } | { read line < ", gate, "; tail -n 1; }")});
  const pid_t flooding = wait_for_number(scratch("pid"));
  wait_until_gone(flooding);
  { std::ofstream(gate) << "go\n"; }
  const auto result = finish();
  EXPECT_TRUE(says(result, "rank 1 died first, of exit code 5")) << result.err;
  EXPECT_TRUE(says(result, "left with 5")) << result.err;
  EXPECT_EQ(result.out, "[rank 0] flood\n");
  print_time("a reader that stalled", result);
}

// The ranks are gone, and their output waits for its reader: an interruption ends the job for good then, too.
TEST_F(LauncherEndTest, AnInterruptionBetweenTwoAttemptsStartsNoOther) {
  const std::string gate = scratch("gate");
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  const std::string attempts = scratch("attempts");
  start_program({"/bin/sh", "-c",
                 concat("{ ", GRADWIRE_RUN_PROGRAM, " --max-restarts 3 -n 1 /bin/sh -c 'yes flood | head -n 200000; ",
                        "echo $$ > ", attempts, "-$GRADWIRE_ATTEMPT; exit 5' & echo $! > ", scratch("launcher"),
                        "; wait $!; echo left with $? >&2; } | { read line < ", gate, "; tail -n 1 > /dev/null; }")});
  const pid_t launcher = wait_for_number(scratch("launcher"));
  wait_until_gone(wait_for_number(attempts + "-0"));
  ::kill(launcher, SIGTERM);
  wait_until_gone(launcher);
  { std::ofstream(gate) << "go\n"; }
  const auto result = finish();
  EXPECT_TRUE(says(result, "left with 143")) << result.err;
  EXPECT_FALSE(std::filesystem::exists(attempts + "-1")) << "it started again";
}

TEST_F(LauncherEndTest, AReaderThatLeavesDoesNotEndTheJob) {
  start_program({"/bin/sh", "-c",
                 concat("{ ", GRADWIRE_RUN_PROGRAM,
                        " -n 2 /bin/sh -c 'for i in 1 2 3; do echo $i; sleep 0.1; done; echo end >&2';",
                        " echo left with $? >&2; } | head -n 1")});
  const auto result = finish();
  EXPECT_TRUE(says(result, "left with 0")) << result.err;
  EXPECT_EQ(count_of(result.err, "] end\n"), 2);
}

TEST_F(LauncherEndTest, ManyRanksDieAtOnce) {
  const auto result = run_script({"-n", "64"}, "[ $RANK = 63 ] && { sleep 0.3; exit 6; }; exec sleep 100");
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_TRUE(says(result, "rank 63 died first")) << result.err;
  print_time("64 ranks, one failed", result);
}

}  // namespace
}  // namespace gradwire::launch
