// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests gradwire-run as a user sees it: the environment of ranks, their output, and command lines that are refused.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>

#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "launch/cpu_share.h"
#include "launch/launcher_fixture_internal.h"

namespace gradwire::launch {
namespace {

// The lines of one rank, without their prefix.
std::vector<std::string> lines_of_rank(const std::string& text, int rank) {
  const std::string prefix = concat("[rank ", rank, "] ");
  std::vector<std::string> lines;
  for (const auto& line : lines_of(text)) {
    if (line.starts_with(prefix)) lines.push_back(line.substr(prefix.size()));
  }
  return lines;
}

// "0-2,5" as the kernel writes it.
std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto dash = part.find('-');
    const int last = std::stoi(dash == std::string::npos ? part : part.substr(dash + 1));
    for (int cpu = std::stoi(part); cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

TEST_F(LauncherTest, RanksFindTheirPlaceInTheEnvironment) {
  const auto result = run_script(
      {"-n", "3", "--env", "COLOUR=deep blue", "--env", "EMPTY="},
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR; echo $MASTER_PORT; echo "
      "$GRADWIRE_JOB_ID;"
      "echo $GRADWIRE_RENDEZVOUS; stat -c '%a %u' $(dirname $GRADWIRE_RENDEZVOUS); echo $COLOUR; echo ${EMPTY-unset}");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto first = lines_of_rank(result.out, 0);
  ASSERT_EQ(first.size(), 7U) << result.out;
  for (int rank = 0; rank < 3; ++rank) {
    const auto lines = lines_of_rank(result.out, rank);
    ASSERT_EQ(lines.size(), 7U) << result.out;
    EXPECT_EQ(lines[0], concat(rank, " ", rank, " 3 3 0 127.0.0.1"));
    const int port = std::stoi(lines[1]);
    EXPECT_GT(port, 0);
    EXPECT_LT(port, 65536);
    EXPECT_EQ(lines[2].size(), 16U);
    EXPECT_TRUE(lines[3].starts_with(scratch("tmp") + "/")) << lines[3];
    EXPECT_EQ(lines[4], concat("700 ", ::getuid()));
    EXPECT_EQ(lines[5], "deep blue");
    EXPECT_EQ(lines[6], "");
    for (const int shared : {1, 2, 3}) EXPECT_EQ(lines[shared], first[shared]) << "ranks must agree";
  }
}

TEST_F(LauncherTest, RecordsOfAnEarlierJobDoNotStayInTheFolder) {
  const std::filesystem::path records = std::filesystem::path(::testing::TempDir()) / "gradwire-earlier-records";
  std::filesystem::create_directories(records);
  for (const char* name : {"rank-0.record", "rank-1.record", "rank-7.record"}) std::ofstream(records / name) << "old";
  EXPECT_EQ(run_script({"-n", "2", "--record", records.string()}, "true").exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(records / "rank-0.record"));
  EXPECT_FALSE(std::filesystem::exists(records / "rank-1.record"));
  EXPECT_TRUE(std::filesystem::exists(records / "rank-7.record")) << "of no rank of this job";
  std::filesystem::remove_all(records);
}

// As the file of a rank of another launcher does.
TEST_F(LauncherTest, ARecordIntoWhichAProcessWritesStays) {
  const UniqueFd file(::open(scratch("rank-0.record").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  ASSERT_EQ(::fcntl(file.get(), F_SETLK, &lock), 0);
  std::ofstream(scratch("rank-1.record")) << "old";
  EXPECT_EQ(run_script({"-n", "2", "--record", scratch("")}, "true").exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(scratch("rank-0.record")));
  EXPECT_FALSE(std::filesystem::exists(scratch("rank-1.record")));
}

TEST_F(LauncherTest, RanksFindTheFolderForTheirSteps) {
  const std::string say = "echo \"[$GRADWIRE_RECORD]\"";
  EXPECT_EQ(run_script({"-n", "1"}, say).out, "[rank 0] []\n");
  // Also for a program that goes to another folder.
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(run_script({"-n", "1", "--record", "some/run"}, say).out, concat("[rank 0] [", here, "/some/run]\n"));
  EXPECT_EQ(run_script({"-n", "1", "--record", "/a/run", "--watch"}, say).out, "[rank 0] [/a/run]\n");
  // Who only watches has a private folder, which goes with the job.
  const auto watched = run_script({"-n", "1", "--watch"}, say);
  EXPECT_NE(watched.out.find("/records]"), std::string::npos) << watched.out;
  EXPECT_EQ(watched.err, "gradwire-run: no step has ended yet\n");
}

// The launcher of node 0 serves the store of all ranks.
TEST_F(LauncherTest, TheLauncherMayHaveMoreDescriptorsThanTheRanks) {
  start_program({"/bin/sh", "-c", "ulimit -Sn 64; exec \"$0\" \"$@\"", GRADWIRE_RUN_PROGRAM, "-n", "1", "--no-prefix",
                 "/bin/sh", "-c", "echo $(ulimit -Sn) $(ulimit -Hn); grep 'Max open files' /proc/$PPID/limits"});
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::istringstream out(result.out);
  std::string soft;
  std::string hard;
  std::string max;
  std::string open;
  std::string files;
  std::string of_launcher;
  out >> soft >> hard >> max >> open >> files >> of_launcher;
  EXPECT_EQ(soft, "64");
  EXPECT_EQ(of_launcher, hard == "unlimited" ? "8192" : std::to_string(std::min(std::stol(hard), 8192L))) << result.out;
}

TEST_F(LauncherTest, TwoJobsHaveDifferentNames) {
  const std::string script = "echo $GRADWIRE_JOB_ID $GRADWIRE_RENDEZVOUS";
  EXPECT_NE(run_script({"-n", "1"}, script).out, run_script({"-n", "1"}, script).out);
}

TEST_F(LauncherTest, AJobHasTheNameAndThePortThatTheUserGives) {
  EXPECT_EQ(
      run_script({"-n", "1", "--job-id", "night.7", "--master-port", "23456"}, "echo $GRADWIRE_JOB_ID $MASTER_PORT")
          .out,
      "[rank 0] night.7 23456\n");
}

// The program's file is gone at the moment at which a rank is replaced.
TEST_F(LauncherTest, ARankThatCannotBeReplacedLeavesTheOthersOfAnElasticJobAlone) {
  const std::string program = scratch("program");
  std::ofstream(program) << "#!/bin/sh\n"
                            "if [ $RANK = 1 ]; then while [ ! -e $0.up ]; do sleep 0.02; done; rm $0; exit 5; fi\n"
                            "touch $0.up; while [ ! -e $0.go ]; do sleep 0.02; done; echo done\n";
  ASSERT_EQ(::chmod(program.c_str(), 0700), 0);
  BackgroundProgram job = launch("job", {"--elastic", "1:2", "-n", "2", program});
  job.wait_for("the job goes on without this rank");
  { const std::ofstream go(program + ".go"); }
  const Result result = job.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[rank 0] done\n");
  EXPECT_NE(result.err.find("the job goes on without this rank"), std::string::npos) << result.err;
}

TEST_F(LauncherTest, ThreadsAreSharedOutUnlessSomebodySaidOtherwise) {
  const auto cores = allowed_cpus();
  ::unsetenv("OMP_NUM_THREADS");
  const std::string script = "echo $OMP_NUM_THREADS";
  EXPECT_EQ(run_script({"-n", "1"}, script).out, concat("[rank 0] ", cores.size(), "\n"));
  EXPECT_EQ(lines_of_rank(run_script({"-n", "64"}, script).out, 63),
            std::vector{std::to_string(std::max<std::size_t>(1, cores.size() / 64))});
  EXPECT_EQ(run_script({"-n", "1", "--env", "OMP_NUM_THREADS=17"}, script).out, "[rank 0] 17\n");
  ::setenv("OMP_NUM_THREADS", "19", 1);
  EXPECT_EQ(run_script({"-n", "1"}, script).out, "[rank 0] 19\n");
  ::unsetenv("OMP_NUM_THREADS");
}

TEST_F(LauncherTest, LinesOfRanksNeverMix) {
  // Each line is written in two pieces; it must still come out whole, and in order.
  const auto result = run_script({"-n", "4"},
                                 "i=0; while [ $i -lt 300 ]; do printf 'a%sa' $RANK; printf 'b%db%d\\n' $RANK $i;"
                                 "printf 'e%s' $RANK >&2; printf '%d\\n' $i >&2; i=$((i+1)); done");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(lines_of(result.out).size(), 1200U);
  EXPECT_EQ(lines_of(result.err).size(), 1200U);
  for (int rank = 0; rank < 4; ++rank) {
    const auto out = lines_of_rank(result.out, rank);
    const auto err = lines_of_rank(result.err, rank);
    ASSERT_EQ(out.size(), 300U);
    ASSERT_EQ(err.size(), 300U);
    for (int i = 0; i < 300; ++i) {
      EXPECT_EQ(out[i], concat("a", rank, "ab", rank, "b", i));
      EXPECT_EQ(err[i], concat("e", rank, i));
    }
  }
}

TEST_F(LauncherTest, LongLinesStayWholeAndUnfinishedOnesAreEnded) {
  // Longer than a pipe holds, so it comes in many pieces.
  const auto result = run_script({"-n", "2"}, "head -c 300000 /dev/zero | tr '\\0' $RANK; echo; printf 'no end'");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(lines_of(result.out).size(), 4U);
  for (int rank = 0; rank < 2; ++rank) {
    const auto lines = lines_of_rank(result.out, rank);
    ASSERT_EQ(lines.size(), 2U);
    EXPECT_EQ(lines[0], std::string(300000, static_cast<char>('0' + rank)));
    EXPECT_EQ(lines[1], "no end");
  }
  EXPECT_TRUE(result.out.ends_with("\n"));
}

TEST_F(LauncherTest, NoPrefixPassesBytesThrough) {
  const auto result = run_script({"-n", "1", "--no-prefix"}, "printf 'a\\rb\\n\\nno end'; printf err >&2");
  EXPECT_EQ(result.out, "a\rb\n\nno end");
  EXPECT_EQ(result.err, "err");
}

TEST_F(LauncherTest, ColourIsThereWhenAskedForAndNotInAFile) {
  EXPECT_EQ(run_script({"-n", "1"}, "echo x").out, "[rank 0] x\n");
  EXPECT_EQ(run_script({"-n", "1", "--color", "always"}, "echo x").out, "\x1b[36m[rank 0]\x1b[0m x\n");
}

TEST_F(LauncherTest, ColourIsThereOnATerminal) {
  // script(1) runs a command on a terminal of its own and copies what it shows.
  const std::string command = concat(GRADWIRE_RUN_PROGRAM, " -n 1 echo x");
  start_program({"env", "-u", "NO_COLOR", "TERM=xterm", "script", "-qec", command, "/dev/null"});
  EXPECT_NE(finish().out.find("\x1b[36m[rank 0]\x1b[0m x"), std::string::npos);
  start_program({"env", "NO_COLOR=1", "TERM=xterm", "script", "-qec", command, "/dev/null"});
  EXPECT_NE(finish().out.find("[rank 0] x"), std::string::npos);
}

TEST_F(LauncherTest, LogFolderHoldsAFileForEachRankAndStream) {
  const std::string folder = scratch("new/logs");
  const auto result = run_script({"-n", "2", "--log-dir", folder}, "echo out $RANK; echo err $RANK >&2; exit $RANK");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(read_file(concat(folder, "/rank-", rank, ".out")), concat("out ", rank, "\n"));
    EXPECT_EQ(read_file(concat(folder, "/rank-", rank, ".err")), concat("err ", rank, "\n"));
  }
  EXPECT_NE(result.err.find("  | err 1\n"), std::string::npos) << "the report quotes the file: " << result.err;
  EXPECT_NE(result.err.find(folder + "/rank-1.err"), std::string::npos) << result.err;
}

TEST_F(LauncherTest, AReportQuotesTheProcessThatFailed) {
  const std::string script =
      "if [ $GRADWIRE_ATTEMPT = 0 ]; then echo out of memory >&2; else echo no samples >&2; fi; exit 3";
  for (const bool logs : {true, false}) {
    std::vector<std::string> options = {"-n", "1", "--max-restarts", "1"};
    if (logs) options.insert(options.end(), {"--log-dir", scratch("restarted")});
    const auto result = run_script(options, script);
    EXPECT_EQ(result.exit_code, 3);
    const std::size_t second = result.err.find("restart 1 of 1");
    ASSERT_NE(second, std::string::npos) << result.err;
    EXPECT_NE(result.err.find("its last line of stderr", second), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("  | no samples\n", second), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("  | out of memory\n", second), std::string::npos) << result.err;
  }
}

TEST_F(LauncherTest, StandardInputGoesToRankZeroOrNobody) {
  const std::string script = "cat";
  EXPECT_EQ(run_script({"-n", "3"}, script, "one\ntwo\n").out, "[rank 0] one\n[rank 0] two\n");
  EXPECT_EQ(run_script({"-n", "3", "--stdin", "none"}, script, "one\n").out, "");
}

TEST_F(LauncherTest, PinnedRanksRunOnTheirShareOfTheCores) {
  const auto cores = allowed_cpus();
  for (const int ranks : {1, 2, 3, static_cast<int>(cores.size()) + 1}) {
    if (ranks > 64) continue;
    const auto result = run_script({"-n", std::to_string(ranks), "--pin"}, "grep Cpus_allowed_list /proc/self/status");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(static_cast<int>(lines_of(result.out).size()), ranks);
    for (const auto& line : lines_of(result.out)) {
      const int rank = std::stoi(line.substr(6));
      EXPECT_EQ(parse_cpu_list(line.substr(line.find('\t') + 1)), share_of_rank(cores, rank, ranks)) << line;
    }
  }
}

TEST_F(LauncherTest, SixtyFourRanks) {
  const auto result = run_script({"-n", "64"}, "echo $RANK of $WORLD_SIZE");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto lines = lines_of(result.out);
  std::set<std::string> seen(lines.begin(), lines.end());
  EXPECT_EQ(lines.size(), 64U);
  EXPECT_EQ(seen.size(), 64U);
  EXPECT_TRUE(seen.count("[rank  7] 7 of 64")) << "prefixes are of one width";
  EXPECT_TRUE(seen.count("[rank 63] 63 of 64"));
  std::cout << "64 ranks of a shell started, ran and ended in " << result.seconds << " s\n";
}

TEST_F(LauncherTest, RanksThatLeaveEarlyAreNoError) {
  const auto result = run_script({"-n", "3"}, "[ $RANK = 1 ] || sleep 0.4; echo done");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(count_of(result.out, "done"), 3);
  EXPECT_EQ(result.err, "");
}

TEST_F(LauncherTest, ArgumentsOfTheProgramAreLeftAlone) {
  EXPECT_EQ(run({"-n", "1", "/bin/echo", "--help", "-n", "7", "--", "*"}).out, "[rank 0] --help -n 7 -- *\n");
  EXPECT_EQ(run({"-n", "1", "--", "/bin/echo", "--pin"}).out, "[rank 0] --pin\n");
}

TEST_F(LauncherTest, HelpAndVersion) {
  const auto help = run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("Usage: gradwire-run [OPTIONS] PROGRAM [ARGUMENTS]\n"), std::string::npos) << help.out;
  for (const auto* option :
       {"-n", "--pin", "--env", "--log-dir", "--no-prefix", "--stdin", "--timeout", "--grace", "Exit code"}) {
    EXPECT_NE(help.out.find(option), std::string::npos) << option;
  }
  const auto version = run({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_TRUE(version.out.starts_with("gradwire-run ")) << version.out;
}

TEST_F(LauncherTest, BadCommandLinesGetOneClearSentence) {
  const std::string no_program = scratch("plain-file");
  std::filesystem::copy_file("/etc/passwd", no_program);
  const std::string bad_interpreter = scratch("script");
  { std::ofstream(bad_interpreter) << "#!/no/such/interpreter\n"; }
  std::filesystem::permissions(bad_interpreter, std::filesystem::perms::owner_all);
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string part;
  };
  const std::vector<Case> cases = {
      {{}, 2, "which program to run"},
      {{"-n", "2"}, 2, "which program to run"},
      {{"-n", "2", "--"}, 2, "which program to run"},
      {{"-n", "2", ""}, 2, "which program to run"},
      {{"/bin/true"}, 2, "how many ranks"},
      {{"-n"}, 2, "--ranks"},
      {{"-n", "0", "/bin/true"}, 2, "from 1 to 64"},
      {{"-n", "-3", "/bin/true"}, 2, "from 1 to 64"},
      {{"-n", "two", "/bin/true"}, 2, "'two'"},
      {{"-n", "2x", "/bin/true"}, 2, "'2x'"},
      {{"-n", "2.5", "/bin/true"}, 2, "'2.5'"},
      {{"-n", "2", "--stall", "0", "/bin/true"}, 2, "--stall is '0'"},
      {{"-n", "2", "--stall", "soon", "/bin/true"}, 2, "--stall is 'soon'"},
      {{"-n", "2", "--watch-port", "http", "/bin/true"}, 2, "--watch-port"},
      {{"-n", "2", "--watch-port", "65536", "/bin/true"}, 2, "from 0 to 65535"},
      {{"--serve", "node0:29400"}, 2, "give --elastic MIN:MAX too"},
      {{"--serve", "node0:29400", "--elastic", "1:2"}, 2, "--serve wants --membership-log"},
      {{"--serve", "node0", "--elastic", "1:2", "--membership-log", "log"}, 2, "--serve is 'node0'"},
      {{"--serve", "node0:29400", "--elastic", "2", "--membership-log", "log"}, 2, "MIN:MAX"},
      {{"--serve", "node0:29400", "--elastic", "2:4", "-n", "1", "--membership-log", "log"}, 2, "from 2 to 4"},
      {{"--serve", "node0:29400", "--elastic", "1:2", "--membership-log", "log", "/bin/true"}, 2, "starts no program"},
      {{"--serve", "node0:29400", "--elastic", "1:2", "--replay", "log"}, 2, "leave --replay out"},
      {{"--serve", "node0:29400", "--elastic", "1:2", "--membership-log", "log", "--watch"}, 2, "leave --watch out"},
      {{"--serve", "node0:29400", "--elastic", "1:2", "--membership-log", "log", "--grace", "5"},
       2,
       "leave --grace out"},
      {{"--serve", "node0:29400", "--elastic", "1:2", "--membership-log", "log", "--no-prefix"},
       2,
       "leave --no-prefix"},
      {{"--join", "node0:29400", "-n", "2", "--serve", "node0:29400", "/bin/true"}, 2, "leave --join out"},
      {{"--serve", "192.0.2.1:29400", "--elastic", "1:2", "--membership-log", no_program}, 125, "is no journal"},
      {{"--serve", "192.0.2.1:29400", "--elastic", "1:2", "--membership-log", "/"},
       125,
       "the journal / of the elastic job: cannot be read: Is a directory"},
      {{"-n", "1", "--elastic", "1:2", "--replay", "/", "/bin/true"},
       2,
       "--replay: the journal / of the elastic job: cannot be read: Is a directory"},
      {{"-n", "65", "/bin/true"}, 2, "'65'"},
      {{"-n", "99999999999999999999", "/bin/true"}, 2, "from 1 to 64"},
      {{"-n", "2", "-n", "3", "/bin/true"}, 2, "--ranks"},
      {{"-n", "2", "--bogus", "/bin/true"}, 2, "'--bogus'; see"},
      {{"-n", "2", "--flightdir=x", "/bin/true"}, 2, "unknown option '--flightdir'; did you mean '--flight-dir'?; see"},
      {{"--nproc_per_nod", "2", "/bin/true"}, 2, "did you mean '--nproc-per-node'?"},
      {{"-n", "2", "--env", "NOVALUE", "/bin/true"}, 2, "NAME=VALUE"},
      {{"-n", "2", "--env", "=x", "/bin/true"}, 2, "NAME=VALUE"},
      {{"-n", "2", "--env", "RANK=1", "/bin/true"}, 2, "RANK"},
      {{"-n", "2", "--timeout", "soon", "/bin/true"}, 2, "--timeout is 'soon'"},
      {{"-n", "2", "--timeout", "0", "/bin/true"}, 2, "--timeout"},
      {{"-n", "2", "--timeout", "nan", "/bin/true"}, 2, "--timeout"},
      {{"-n", "2", "--grace", "-1", "/bin/true"}, 2, "--grace"},
      {{"-n", "2", "--stdin", "all", "/bin/true"}, 2, "--stdin is 'all'"},
      {{"-n", "2", "--color", "red", "/bin/true"}, 2, "--color is 'red'"},
      {{"-n", "2", "--log-dir", "/dev/null/logs", "/bin/true"}, 125, "/dev/null/logs"},
      {{"-n", "2", "--log-dir", "/proc", "/bin/true"}, 125, "/proc/rank-0.out"},
      {{"-n", "2", "no-such-program-anywhere"}, 127, "not in PATH"},
      {{"-n", "2", "./no/such/program"}, 127, "does not exist"},
      {{"-n", "2", "/etc"}, 126, "'/etc'"},
      {{"-n", "2", no_program}, 126, "Permission denied"},
      {{"-n", "2", bad_interpreter}, 126, "interpreter"},
  };
  for (const auto& bad : cases) {
    const auto result = run(bad.arguments);
    const std::string what = join(bad.arguments, " ") + " -> " + result.err;
    EXPECT_EQ(result.exit_code, bad.exit_code) << what;
    EXPECT_EQ(result.out, "") << what;
    EXPECT_EQ(lines_of(result.err).size(), 1U) << what;
    EXPECT_TRUE(result.err.starts_with("gradwire-run: ")) << what;
    EXPECT_NE(result.err.find(bad.part), std::string::npos) << what;
  }
}

TEST_F(LauncherTest, NoPlaceForTheRendezvousIsSaid) {
  start_program({"/usr/bin/env", "TMPDIR=/no/such/folder", GRADWIRE_RUN_PROGRAM, "-n", "2", "/bin/true"});
  const auto result = finish();
  EXPECT_EQ(result.exit_code, 125);
  EXPECT_NE(result.err.find("/no/such/folder"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace gradwire::launch
