// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests gradwire-run with several nodes on this one host: each launcher is a node, and the launchers connect through
// loopback. tests/network has hosts with separate networks.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gradwire/base/strings.h"
#include "gradwire/store/tcp_store.h"
#include "launch/free_port.h"
#include "launch/launch_error.h"
#include "launch/launcher_fixture_internal.h"
#include "launch/node_store.h"
#include "tests/support/secrets.h"

namespace gradwire::launch {
namespace {

using Words = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class NodesTest : public LauncherTest {
 protected:
  // The command line of a node that runs a shell script on `ranks` ranks.
  Words node(int node, int nodes, const std::string& script, const Words& more = {}, int ranks = 2) const {
    Words words = {"-n",
                   std::to_string(ranks),
                   "--nnodes",
                   std::to_string(nodes),
                   "--node-rank",
                   std::to_string(node),
                   "--rendezvous",
                   concat("127.0.0.1:", port_),
                   "--heartbeat-timeout",
                   heartbeat_};
    words.insert(words.end(), more.begin(), more.end());
    for (const char* word : {"/bin/sh", "-c"}) words.emplace_back(word);
    words.push_back(script);
    return words;
  }
  // Waits until a node has a place in the store on this test's port.
  void wait_for_place(int node) const {
    TcpStore store({.port = port_});
    store.get(concat("gradwire-run/node/", node));
  }
  // Two hosts with a rank each. The shell that stands for ssh does not become the launcher, which has a session of its
  // own; signals end the shell.
  Words two_hosts() const {
    std::ofstream(scratch("ssh")) << "setsid -w sh -c \"$1\"\nexit $?\n";
    return {"--hosts",
            "a,b",
            "--ssh",
            concat("/bin/sh ", scratch("ssh"), " {command} {host}"),
            "--rendezvous",
            concat("127.0.0.1:", port_),
            "-n",
            "1",
            "--heartbeat-timeout",
            "20"};
  }
  std::string secret_file(const std::string& name, const std::string& secret) const {
    std::ofstream(scratch(name)) << secret << "\n";
    std::filesystem::permissions(scratch(name), std::filesystem::perms::owner_read);
    return scratch(name);
  }

  const std::uint16_t port_ = find_free_port(PortScope::loopback);
  // In seconds. Long, but where a launcher is missed: a machine may be silent for a while itself.
  std::string heartbeat_ = "20";
};

TEST_F(NodesTest, RanksOfAllNodesMakeOneWorld) {
  const std::string script =
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $GRADWIRE_ATTEMPT "
      "$MASTER_ADDR; echo same $MASTER_PORT $GRADWIRE_JOB_ID $GRADWIRE_RENDEZVOUS; read x; echo read $x";
  auto first = launch("0", node(0, 2, script, {}, 1));
  auto second = launch("1", node(1, 2, script, {}, 2));
  const Result results[] = {first.finish(), second.finish()};
  EXPECT_EQ(results[0].exit_code, 0) << results[0].err;
  EXPECT_EQ(results[1].exit_code, 0) << results[1].err;
  EXPECT_EQ(results[0].err + results[1].err, "");
  EXPECT_TRUE(contains(results[0].out, "[rank 0] 0 0 3 1 0 2 0 127.0.0.1\n")) << results[0].out;
  EXPECT_TRUE(contains(results[1].out, "[rank 1] 1 0 3 2 1 2 0 127.0.0.1\n")) << results[1].out;
  EXPECT_TRUE(contains(results[1].out, "[rank 2] 2 1 3 2 1 2 0 127.0.0.1\n")) << results[1].out;
  const auto shared = [](const std::string& out, const std::string& rank) {
    const auto at = out.find("[rank " + rank + "] same ");
    return at == std::string::npos ? "nothing for rank " + rank : out.substr(at + 9, out.find('\n', at) - at - 9);
  };
  EXPECT_EQ(shared(results[0].out, "0"), shared(results[1].out, "1"));
  EXPECT_EQ(shared(results[0].out, "0"), shared(results[1].out, "2"));
  EXPECT_TRUE(contains(shared(results[0].out, "0"), concat("tcp://127.0.0.1:", port_, "?"))) << results[0].out;
}

TEST_F(NodesTest, ARankThatDiesEndsTheJobOnAllNodesWithItsCode) {
  auto first = launch("0", node(0, 2, "sleep 1000"));
  auto second = launch("1", node(1, 2, "[ $RANK = 3 ] && kill -SEGV $$; sleep 1000"));
  const Result results[] = {first.finish(), second.finish()};
  for (const Result& result : results) {
    EXPECT_EQ(result.exit_code, 128 + SIGSEGV) << result.err;
    EXPECT_TRUE(contains(result.err, "gradwire-run: rank 3 on node 1 (")) << result.err;
    EXPECT_TRUE(contains(result.err, "died of signal 11 (SIGSEGV)")) << result.err;
  }
  EXPECT_TRUE(contains(results[0].err, "failed on another host")) << results[0].err;
  EXPECT_TRUE(contains(results[1].err, "rank 3 died first")) << results[1].err;
}

// Rank 2 does not end when it is asked to, but when the ranks of node 0 were asked.
TEST_F(NodesTest, TheOtherNodesStopBeforeTheNodeOfTheFailedRankHasEnded) {
  const auto until = [&](const std::string& file) {
    return concat("while [ ! -e ", scratch(file), " ]; do sleep 0.02; done; ");
  };
  const std::string quick = concat("trap 'touch ", scratch("stopped"), "; exit 0' TERM; touch ", scratch("up"),
                                   "-$RANK; while true; do sleep 0.02; done");
  const std::string slow =
      concat("trap '' TERM; if [ $RANK = 3 ]; then ", until("up-0"), until("up-1"), "exit 7; fi; ", until("stopped"));
  auto first = launch("0", node(0, 2, quick, {"--grace", "600"}));
  auto second = launch("1", node(1, 2, slow, {"--grace", "600"}));
  for (const Result& result : {first.finish(), second.finish()}) {
    EXPECT_EQ(result.exit_code, 7) << result.err;
    EXPECT_FALSE(contains(result.err, "SIGKILL")) << result.err;
  }
}

TEST_F(NodesTest, RestartsBeginAllRanksAnewOnAllNodes) {
  const std::string script =
      "echo attempt $GRADWIRE_ATTEMPT rank $RANK $GRADWIRE_RENDEZVOUS; [ $GRADWIRE_ATTEMPT = 2 ] && exit 0;"
      "if [ $RANK = $GRADWIRE_ATTEMPT ]; then while [ ! -e $UP-$GRADWIRE_ATTEMPT ]; do sleep 0.02; done; exit 7; fi;"
      "touch $UP-$GRADWIRE_ATTEMPT; sleep 1000";
  ::setenv("UP", scratch("up").c_str(), 1);
  auto first = launch("0", node(0, 2, script, {"--max-restarts", "2", "--grace", "0"}, 1));
  auto second = launch("1", node(1, 2, script, {"--grace", "0"}, 1));  // node 0 says how many restarts there are
  const Result results[] = {first.finish(), second.finish()};
  for (const Result& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const char* attempt : {"attempt 0", "attempt 1", "attempt 2"}) EXPECT_EQ(count_of(result.out, attempt), 1);
    EXPECT_TRUE(contains(result.err, "died of exit code 7; all ranks start again (restart 2 of 2)")) << result.err;
  }
}

TEST_F(NodesTest, RestartsOnOneHostToo) {
  const auto result = run_script(
      {"-n", "2", "--max-restarts", "3", "--grace", "0"},
      concat("echo $GRADWIRE_ATTEMPT; [ $GRADWIRE_ATTEMPT = 1 ] && exit 0; if [ $RANK = 1 ]; then ", "while [ ! -e ",
             scratch("up"), " ]; do sleep 0.02; done; exit 5; fi; touch ", scratch("up"), "; sleep 1000"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "] 0\n") + count_of(result.out, "] 1\n"), 4) << result.out;
  EXPECT_TRUE(contains(result.err, "restart 1 of 3")) << result.err;
  EXPECT_EQ(run_script({"-n", "1", "--max-restarts", "2"}, "exit 5").exit_code, 5);
}

// Attempt 0 finds its folder locked against cleaners, removes it all the same, and fails; attempt 1 finds a new one.
constexpr const char* kRemovesItsFolder =
    "d=$FOLDER; if [ $GRADWIRE_ATTEMPT = 1 ]; then stat -c 'mode %a' $d; exit 0; fi;"
    "flock -xn $d true && exit 9; rm -rf $d; exit 3";

TEST_F(NodesTest, AnAttemptFindsItsFolderThoughSomebodyRemovedThatOfTheLast) {
  const std::string script = std::string("FOLDER=$(dirname $GRADWIRE_RENDEZVOUS);") + kRemovesItsFolder;
  const auto result = run_script({"-n", "1", "--max-restarts", "1"}, script);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[rank 0] mode 700\n");
  EXPECT_TRUE(contains(result.err, "exit code 3")) << result.err;
}

TEST_F(NodesTest, AnAttemptFindsTheSecretThoughSomebodyRemovedThatOfTheLast) {
  if (!test_support::has_secrets()) GTEST_SKIP() << test_support::kNoSecrets;
  const std::string script = std::string("FOLDER=$(dirname $GRADWIRE_SECRET_FILE);") + kRemovesItsFolder;
  const Words secret = {"--secret-file", secret_file("secret", "the job's"), "--max-restarts", "1"};
  auto first = launch("0", node(0, 2, script, secret, 1));
  auto second = launch("1", node(1, 2, "[ $GRADWIRE_ATTEMPT = 1 ] || sleep 1000", secret, 1));
  const Result result = first.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[rank 0] mode 700\n");
  EXPECT_EQ(second.finish().exit_code, 0);
}

// Something takes the name of a launcher's folder while the launcher waits for the other node.
TEST_F(NodesTest, ANodeThatCannotKeepTheSecretSaysSoToTheOthers) {
  if (!test_support::has_secrets()) GTEST_SKIP() << test_support::kNoSecrets;
  const Words secret = {"--secret-file", secret_file("secret", "the job's"), "--max-restarts", "1"};
  auto first = launch("0", node(0, 2, "sleep 1000", secret, 1));
  TcpStore({.port = port_, .secret = "the job's"}).get("gradwire-run/node/0");
  for (const auto& folder : std::filesystem::directory_iterator(scratch("tmp"))) {
    std::filesystem::remove_all(folder.path());
    std::ofstream(folder.path()) << "a file";
  }
  auto second = launch("1", node(1, 2, "sleep 1000", secret, 1));
  for (const Result& result : {first.finish(), second.finish()}) {
    EXPECT_EQ(result.exit_code, kLaunchFailedExit) << result.err;
    EXPECT_TRUE(contains(result.err, "gradwire-run: node 0 (")) << result.err;
    EXPECT_TRUE(contains(result.err, "is not the private folder any more")) << result.err;
  }
}

TEST_F(NodesTest, AnotherSecretIsRefusedAndHarmsNobody) {
  if (!test_support::has_secrets()) GTEST_SKIP() << test_support::kNoSecrets;
  const Words right = {"--secret-file", secret_file("right", "the job's")};
  const std::string script =
      "[ $(cat $GRADWIRE_SECRET_FILE) = \"the job's\" ] || [ \"$(cat $GRADWIRE_SECRET_FILE)\" = "
      "\"the job's\" ] && stat -c %a $GRADWIRE_SECRET_FILE";
  auto first = launch("0", node(0, 2, script, right, 1));
  const Result wrong = launch("w", node(1, 2, "true", {"--secret-file", secret_file("wrong", "mine")}, 1)).finish();
  EXPECT_EQ(wrong.exit_code, kHostsFailedExit);
  EXPECT_TRUE(contains(wrong.err, "refused this program's secret")) << wrong.err;
  launch("w", node(1, 2, "true", {"--secret-file", scratch("wrong")}, 1)).finish();
  const Result none = launch("n", node(1, 2, "true", {}, 1)).finish();
  EXPECT_EQ(none.exit_code, kHostsFailedExit);
  EXPECT_TRUE(contains(none.err, "asks for a secret")) << none.err;
  const Result second = launch("1", node(1, 2, script, right, 1)).finish();
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.out, "[rank 1] 600\n");
  const Result served = first.finish();
  EXPECT_EQ(served.exit_code, 0);
  EXPECT_EQ(count_of(served.err, "gradwire-run: a client at 127.0.0.1 was refused: its secret is another"), 1)
      << served.err;
  EXPECT_EQ(count_of(served.err, "was refused"), 1) << served.err;
}

TEST_F(NodesTest, ASecondJobIsRefusedAndHarmsNobody) {
  const std::string script = concat("echo up; while [ ! -e ", scratch("go"), " ]; do sleep 0.02; done");
  const Words id = {"--job-id", "one"};
  auto first = launch("0", node(0, 2, script, id, 1));
  auto second = launch("1", node(1, 2, script, id, 1));
  second.wait_for("up");
  const Result zero = launch("a", node(0, 2, "true", id, 1)).finish();
  EXPECT_EQ(zero.exit_code, kHostsFailedExit);
  EXPECT_TRUE(contains(zero.err, concat("port ", port_, " is in use"))) << zero.err;
  const Result one = launch("b", node(1, 2, "true", id, 1)).finish();
  EXPECT_EQ(one.exit_code, kHostsFailedExit);
  EXPECT_TRUE(contains(one.err, "node 1 is there already: gradwire-run on ")) << one.err;
  const Result other = launch("c", node(1, 2, "true", {"--job-id", "two"}, 1)).finish();
  EXPECT_EQ(other.exit_code, kHostsFailedExit);
  EXPECT_TRUE(contains(other.err, "belongs to job 'one', not to job 'two'")) << other.err;
  const Result third = launch("d", node(1, 3, "true", id, 1)).finish();
  EXPECT_TRUE(contains(third.err, "node 0 says --nnodes 2, node 1 says --nnodes 3")) << third.err;
  std::ofstream(scratch("go")) << "";
  EXPECT_EQ(first.finish().exit_code, 0);
  EXPECT_EQ(second.finish().exit_code, 0);
}

TEST_F(NodesTest, AnotherVersionIsRefusedAndBothAreNamed) {
  TcpStore store({.port = port_, .is_server = true});
  store.set("gradwire-run/job", encode(JobRecord{kLauncherProtocol, "99.1.2", "", 2}));
  const Result other = launch("v", node(1, 2, "true")).finish();
  EXPECT_EQ(other.exit_code, kHostsFailedExit);
  EXPECT_TRUE(contains(
      other.err, concat("node 0 runs gradwire 99.1.2 (launcher protocol ", kLauncherProtocol, "), node 1 gradwire ")))
      << other.err;
  store.set("gradwire-run/job", "{\"protocol\": 99, \"version\": \"99.1.2\"}");
  const Result newer = launch("p", node(1, 2, "true")).finish();
  EXPECT_TRUE(contains(newer.err, "(launcher protocol 99)")) << newer.err;
}

TEST_F(NodesTest, NodesThatDoNotComeAreNamed) {
  auto first = launch("0", node(0, 3, "true", {"--rendezvous-timeout", "8"}));
  auto second = launch("1", node(1, 3, "true"));
  const Result results[] = {first.finish(), second.finish()};
  EXPECT_TRUE(contains(results[0].err, "waiting for node 2 of 3 to join\n")) << results[0].err;
  for (const Result& result : results) {
    EXPECT_EQ(result.exit_code, kHostsFailedExit);
    EXPECT_TRUE(contains(result.err, "node 2 of 3 had not joined after 8 s")) << result.err;
  }
  const Result alone = launch("a", node(1, 2, "true", {"--rendezvous-timeout", "0.3"})).finish();
  EXPECT_EQ(alone.exit_code, kHostsFailedExit);
  EXPECT_TRUE(contains(alone.err, concat("did not find node 0 at 127.0.0.1:", port_))) << alone.err;
  const Result at_ipv6 = run_script({"-n", "1", "--nnodes", "2", "--node-rank", "1", "--rendezvous",
                                     concat("[::1]:", port_), "--rendezvous-timeout", "0.3"},
                                    "true");
  EXPECT_EQ(at_ipv6.exit_code, kHostsFailedExit);
  EXPECT_TRUE(contains(at_ipv6.err, concat("did not find node 0 at [::1]:", port_))) << at_ipv6.err;
}

TEST_F(NodesTest, TheTimeLimitOfTheJobCountsWhileNodesAreMissing) {
  const Result alone = launch("0", node(0, 2, "true", {"--timeout", "1"})).finish();
  EXPECT_EQ(alone.exit_code, kTimeoutExit) << alone.err;
  EXPECT_TRUE(contains(alone.err, "--timeout passed on node 0, which waited for the other nodes")) << alone.err;
}

TEST_F(NodesTest, ALauncherThatIsKilledIsMissedByTheOthers) {
  heartbeat_ = "4";
  for (const int victim : {0, 1}) {
    auto first = launch("0", node(0, 2, "echo up; sleep 1000", {"--grace", "0"}));
    auto second = launch("1", node(1, 2, "echo up; sleep 1000", {"--grace", "0"}));
    first.wait_for("up", 2);
    second.wait_for("up", 2);
    // The keeper: its child, and the one that keeps in touch. Its ranks die with it.
    (victim == 0 ? first : second).kill_children();
    const Result left = (victim == 0 ? second : first).finish();
    EXPECT_EQ(left.exit_code, kHostLostExit) << left.err;
    EXPECT_TRUE(contains(left.err, concat("node ", victim, " ("))) << left.err;
    EXPECT_TRUE(contains(left.err, victim == 0 ? "has not answered for 4 s" : "has not been heard of for 4 s"))
        << left.err;
    EXPECT_TRUE(contains(left.err, victim == 0 ? ", ranks 0, 1)" : ", ranks 2, 3)")) << left.err;
    (victim == 0 ? first : second).finish();
  }
}

// The store of a node 0 that is replaced sooner than it would be missed answers again, and is another one.
TEST_F(NodesTest, ANodeZeroThatIsReplacedAtOnceIsNoticed) {
  const std::string script = "echo up; [ $GRADWIRE_ATTEMPT = 0 ] && sleep 1000; true";
  const Words restarts = {"--max-restarts", "2", "--grace", "0"};
  auto first = launch("0", node(0, 2, script, restarts, 1));
  auto second = launch("1", node(1, 2, script, restarts, 1));
  first.wait_for("up");
  second.wait_for("up");
  first.kill_children();
  auto next = launch("next", node(0, 2, script, restarts, 1));
  EXPECT_EQ(next.finish().exit_code, 0);
  const Result result = second.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.err, "has ended: another gradwire-run has taken its place")) << result.err;
  first.finish();
}

TEST_F(NodesTest, AnInterruptionOfOneNodeEndsAll) {
  for (const bool waiting : {true, false}) {
    auto first = launch("0", node(0, waiting ? 3 : 2, "echo up; sleep 1000", {"--max-restarts", "5"}, 1));
    auto second = launch("1", node(1, waiting ? 3 : 2, "echo up; sleep 1000", {}, 1));
    if (!waiting) second.wait_for("up");
    if (waiting) wait_for_place(1);
    second.signal(SIGTERM);
    const Result results[] = {first.finish(), second.finish()};
    for (const Result& result : results) {
      EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
      EXPECT_TRUE(contains(result.err, "interrupted by SIGTERM")) << result.err;
    }
  }
}

// The launcher's stderr is a pipe that is full, and nobody reads. dd writes until nothing goes in any more, whatever
// the size of the pipe.
TEST_F(NodesTest, ANodeWhoseStderrNobodyReadsIsInterruptedAllTheSame) {
  const std::string gate = scratch("gate");
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  std::string command = GRADWIRE_RUN_PROGRAM;
  for (const std::string& word : node(0, 2, "true")) command += concat(" ", word);
  start_program({"/bin/sh", "-c",
                 concat("{ dd if=/dev/zero of=/dev/fd/3 bs=4096 oflag=nonblock 3>&2 2> /dev/null; ", command,
                        " & echo $! > ", scratch("launcher"), "; wait $!; echo $? > ", scratch("code"),
                        "; } 2>&1 | { read line < ", gate, "; cat > /dev/null; }")});
  const pid_t launcher = wait_for_number(scratch("launcher"));
  wait_for_place(0);
  ::kill(launcher, SIGTERM);
  EXPECT_EQ(wait_for_number(scratch("code")), 128 + SIGTERM);
  { std::ofstream(gate) << "go\n"; }
  finish();
}

TEST_F(NodesTest, AProgramThatIsNotThereEndsTheJob) {
  Words missing = node(1, 2, "", {"--rendezvous-timeout", "20"}, 1);
  missing.resize(missing.size() - 3);
  missing.emplace_back("/no/such/program");
  auto first = launch("0", node(0, 2, "sleep 1000", {"--max-restarts", "3"}, 1));
  auto second = launch("1", missing);
  EXPECT_EQ(second.finish().exit_code, 127);
  const Result result = first.finish();
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_TRUE(contains(result.err, "'/no/such/program' does not exist")) << result.err;
}

TEST_F(NodesTest, HostsAreStartedThroughAShell) {
  const Words options = {"--hosts",
                         "a,b",
                         "--ssh",
                         "/bin/sh -c {command} {host}",
                         "--rendezvous",
                         concat("127.0.0.1:", port_),
                         "-n",
                         "2",
                         "--env",
                         "WORD=it's \"so\"",
                         "--heartbeat-timeout",
                         "20"};
  const auto result = run_script(options, "echo $GROUP_RANK $WORLD_SIZE $WORD $(wc -c < $GRADWIRE_SECRET_FILE); pwd");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(contains(result.out, concat("[rank ", rank, "] ", rank / 2, " 4 it's \"so\" 64\n"))) << result.out;
    EXPECT_TRUE(contains(result.out, concat("[rank ", rank, "] ", std::filesystem::current_path().string(), "\n")));
  }
  EXPECT_EQ(run_script(options, "[ $RANK = 2 ] && exit 9; sleep 1000").exit_code, 9);
}

// Of three hosts one cannot be reached. The first begins the job, and the other joins it. The ranks wait for each
// other.
TEST_F(NodesTest, AnElasticJobIsStartedOnHostsAndGoesOnWithoutOneThatIsLost) {
  std::ofstream(scratch("ssh")) << "[ $2 = b ] && exit 255\nsetsid -w sh -c \"$1\"\nexit $?\n";
  const std::string script =
      concat("touch ", scratch("up"), "-$RANK; for r in 0 1 2 3; do while [ ! -e ", scratch("up"),
             "-$r ]; do sleep 0.02; done; done; echo host [$GRADWIRE_ELASTIC_HOST]");
  const auto result =
      run_script({"--hosts", "a,b,c", "--ssh", concat("/bin/sh ", scratch("ssh"), " {command} {host}"), "--rendezvous",
                  concat("127.0.0.1:", port_), "-n", "2", "--elastic", "1:8", "--drop-slow", "3.5:20",
                  "--membership-log", scratch("journal"), "--deaths-per-minute", "3", "--heartbeat-timeout", "20"},
                 script);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const int rank : {0, 1}) EXPECT_TRUE(contains(result.out, concat("[rank ", rank, "] host []\n"))) << result.out;
  for (const int rank : {2, 3}) EXPECT_TRUE(contains(result.out, concat("[rank ", rank, "] host [1]\n"))) << result.out;
  EXPECT_TRUE(contains(result.err,
                       "the launcher on host b has ended (exit code 255); the job lives as long as that on host a\n"))
      << result.err;
  EXPECT_TRUE(std::filesystem::exists(scratch("journal")));
}

// Its end is that of the job on all hosts.
TEST_F(NodesTest, AnElasticJobOnHostsEndsWithItsFirstHost) {
  Words options = two_hosts();
  for (const char* word : {"--elastic", "1:8", "--deaths-per-minute", "0"}) options.emplace_back(word);
  const auto result = run_script(options, concat("touch ", scratch("up"),
                                                 "-$RANK; [ $RANK = 1 ] && exec sleep 1000; "
                                                 "while [ ! -e ",
                                                 scratch("up"), "-1 ]; do sleep 0.02; done; exit 7"));
  EXPECT_EQ(result.exit_code, 7) << result.err;
  EXPECT_TRUE(contains(result.err, "more than --deaths-per-minute 0, so the job ends")) << result.err;
  EXPECT_TRUE(contains(result.err, concat("the job at 127.0.0.1:", port_, " has ended: "))) << result.err;
}

TEST_F(NodesTest, SignalsReachTheRanksOfAllHosts) {
  start_script(two_hosts(),
               concat("trap 'echo got-usr1' USR1; trap 'sleep 1; echo checkpoint; touch ", scratch("saved"),
                      "-$RANK; for r in 0 1; do while [ ! -e ", scratch("saved"),
                      "-$r ]; do sleep 0.05; done; done; exit 7' INT; echo up; while :; do sleep 0.05; done"));
  wait_for_output("up", 2);
  signal_launcher(SIGUSR1);
  wait_for_output("got-usr1", 2);
  signal_launcher(SIGINT);
  const auto result = finish();
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  EXPECT_EQ(count_of(result.out, "checkpoint"), 2) << result.out;
  for (const int rank : {0, 1}) EXPECT_TRUE(contains(result.err, concat("rank ", rank, ": exit code 7"))) << result.err;
  EXPECT_FALSE(contains(result.err, "as ssh has it")) << result.err;
}

TEST_F(NodesTest, ASecondInterruptKillsTheRanksOfAllHosts) {
  start_script(two_hosts(), "trap 'echo no' INT; trap '' TERM; echo up; while :; do sleep 0.05; done");
  wait_for_output("up", 2);
  signal_launcher(SIGINT);
  wait_for_output("no", 2);
  // A repeat right behind the first does not count, on each of the three launchers by its own clock.
  const auto has_killed = [&] { return count_of(read_file(scratch("stderr")), ": killed by gradwire-run") == 2; };
  for (int tries = 0; tries < 3 && !has_killed(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    signal_launcher(SIGINT);
    for (const Deadline soon = Deadline::after(kGuard / 3); !has_killed() && !soon.expired();)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const auto result = finish();
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  EXPECT_EQ(count_of(result.err, ": killed by gradwire-run"), 2) << result.err;
}

TEST_F(NodesTest, TheEndOfTheStarterIsTheEndOfAll) {
  start_script({"--hosts", "a,b", "--ssh", "/bin/sh -c {command} {host}", "--rendezvous", concat("127.0.0.1:", port_),
                "-n", "1"},
               "echo up; sleep 1000");
  wait_for_output("up", 2);
  signal_launcher(SIGKILL);
  finish_killed();
  wait_until_none_marked();
}

TEST_F(NodesTest, AHostThatCannotBeReachedIsNamed) {
  std::ofstream(scratch("fails")) << "exit 255\n";
  const auto result = run_script({"--hosts", "a", "--ssh", "/bin/sh " + scratch("fails"), "-n", "1"}, "true");
  EXPECT_EQ(result.exit_code, 255);
  EXPECT_TRUE(contains(result.err, "host a: exit code 255")) << result.err;
}

TEST_F(NodesTest, OutputWithoutPrefixesPassesThroughHostsUnchanged) {
  const auto result = run_script({"--hosts", "a", "--ssh", "/bin/sh -c {command} {host}", "--rendezvous",
                                  concat("127.0.0.1:", port_), "-n", "1", "--no-prefix"},
                                 "printf 'a\\rb\\r\\nc'");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "a\rb\r\nc");
}

// Rank 0 saves a checkpoint; rank 1 has nothing to save, and ends at once.
TEST_F(NodesTest, AnInterruptionOfAllHostsLeavesRanksTheTimeToSave) {
  start_script(
      {"--hosts", "a,b", "--ssh", "/bin/sh -c {command} {host}", "--rendezvous", concat("127.0.0.1:", port_), "-n", "1",
       "--grace", "1"},
      "trap 'if [ $RANK = 0 ]; then sleep 6; echo saved; fi; exit 0' TERM; echo up; while :; do sleep 0.1; done");
  wait_for_output("up", 2);
  signal_launcher(SIGTERM);
  const auto result = finish();
  EXPECT_TRUE(contains(result.out, "saved")) << result.err;
  EXPECT_EQ(count_of(result.err, "killed by gradwire-run"), 0) << result.err;
}

// A job that trained nothing is no success.
TEST_F(NodesTest, AShellThatStartsNoLauncherIsToldOf) {
  for (const auto& [shell, code] : {std::pair("true", 0), std::pair("echo {host}", 0), std::pair("false", 1)}) {
    const auto result = run_script({"--hosts", "a,b", "--ssh", shell, "-n", "1"}, "true");
    EXPECT_EQ(result.exit_code, kHostsFailedExit) << result.err;
    for (const char* host : {"a", "b"}) {
      EXPECT_TRUE(contains(
          result.err, concat("host ", host, ": the command of --ssh ended with ", code, ", and ran no gradwire-run")))
          << result.err;
    }
  }
}

TEST_F(NodesTest, CommandLinesThatMakeNoSenseAreRefused) {
  const auto refused = [&](Words options, const std::string& part) {
    const auto result = run_script(std::move(options), "true");
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(contains(result.err, part)) << result.err;
  };
  refused({"-n", "1", "--nnodes", "2"}, "--node-rank");
  refused({"-n", "1", "--nnodes", "2", "--node-rank", "1"}, "--rendezvous");
  refused({"-n", "1", "--nnodes", "2", "--node-rank", "2", "--rendezvous", "a:1"}, "from 0 to 1");
  refused({"-n", "1", "--rendezvous", "a"}, "HOST:PORT");
  refused({"-n", "1", "--rendezvous", "a:0"}, "from 1 to 65535");
  refused({"-n", "1", "--rendezvous", "a:1", "--job-id", "a b"}, "--job-id");
  refused({"-n", "1", "--hosts", "a,,b"}, "--hosts");
  refused({"-n", "1", "--hosts", "-oProxyCommand=x"}, "--hosts");
  refused({"-n", "1", "--hosts", "a", "--nnodes", "1"}, "--hosts starts");
  refused({"-n", "1", "--ssh", "rsh"}, "--hosts");
  refused({"-n", "1", "--max-restarts", "-1"}, "--max-restarts");
  refused({"-n", "1", "--log-dir", ""}, "--log-dir: the value is empty");
  refused({"-n", "1", "--env", "GRADWIRE_ATTEMPT=1"}, "GRADWIRE_ATTEMPT");
  refused({"-n", "1", "--rendezvous", "127.0.0.1:1", "--secret-file", scratch("missing")}, "missing");
  refused({"-n", "1", "--secret-file", scratch("missing")}, "missing");
}

}  // namespace
}  // namespace gradwire::launch
