// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Jobs under gradwire-run --elastic whose processes are killed at random moments: they end with the bits of the serial
// program that does each step with the ranks of the journal, so no step is lost or counted twice.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "gradwire/base/strings.h"
#include "launch/free_port.h"
#include "launch/launch_error.h"
#include "launch/launcher_fixture_internal.h"
#include "tests/elastic/elastic_record.h"

namespace gradwire::testing {
namespace {

using Clock = ElasticRecord::Clock;

class ElasticLaunchTest : public launch::LauncherTest {
 protected:
  void start_job(const std::string& sizes, int ranks, std::int64_t steps, std::int64_t budget,
                 int deaths_per_minute = 100000, const std::string& program = ELASTIC_WORKER_PROGRAM) {
    steps_ = steps;
    record_ = std::make_unique<ElasticRecord>(scratch("job"), steps);
    page()->budget = budget;
    std::vector<std::string> words = {"--elastic",
                                      sizes,
                                      "-n",
                                      std::to_string(ranks),
                                      "--deaths-per-minute",
                                      std::to_string(deaths_per_minute),
                                      "--membership-log",
                                      record().journal(),
                                      "--env",
                                      concat("ELASTIC_OPTIMIZER=", optimizer_)};
    words.insert(words.end(), more_.begin(), more_.end());
    words.insert(words.end(), {program, std::to_string(steps), record().folder()});
    start(words);
  }
  const ElasticRecord& record() const { return *record_; }
  const SharedElasticPage& page() const { return record_->page(); }

  // The launcher plays the journal again, and ends with the same bits without a failure.
  void expect_same_replay(int ranks) {
    const ElasticRecord played(scratch("replayed"), steps_);
    played.page()->budget = steps_;
    const launch::Result result =
        run({"--elastic", concat("1:", ranks), "-n", std::to_string(ranks), "--replay", record().journal(),
             "--membership-log", played.journal(), "--env", concat("ELASTIC_OPTIMIZER=", optimizer_),
             ELASTIC_WORKER_PROGRAM, std::to_string(steps_), played.folder()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    played.expect_replay_of(record());
  }

  // The coordinator of this test's job.
  pid_t coordinator() const {
    for (const pid_t pid : marked_processes()) {
      if (launch::read_file(concat("/proc/", pid, "/cmdline")).find("--coordinate-elastic-job") != std::string::npos)
        return pid;
    }
    return -1;
  }

  void kill_at_random(int kills, unsigned seed);
  // The others wait for the rank that is stopped.
  void start_and_stop_one_of_three();
  // Of a job over diloco_worker.cc. Returns the outer parameters at the end, of each member.
  std::vector<std::vector<at::Tensor>> kill_a_worker_each_round(int rounds);

  std::string optimizer_ = "sgd";  // of the worker; or "zero", or for diloco_worker.cc "streaming"
  std::vector<std::string> more_;  // options of gradwire-run

  std::int64_t steps_ = 0;

 private:
  std::unique_ptr<ElasticRecord> record_;
};

void ElasticLaunchTest::start_and_stop_one_of_three() {
  start_job("1:3", 3, 300, 100);
  std::int64_t epoch = 0;
  const auto members = record().wait_for_epoch(3, epoch);
  ASSERT_EQ(members.size(), 3U);
  const auto stopped = static_cast<pid_t>(members[1]);
  ASSERT_EQ(::kill(stopped, SIGSTOP), 0);
  wait_for_state(stopped, 'T');
  page()->budget += 5;
}

void ElasticLaunchTest::kill_at_random(int kills, unsigned seed) {
  constexpr std::int64_t kBurst = 30;       // steps that the job does at full speed before a kill, and after one
  constexpr std::int64_t kAtTheEnd = 1000;  // steps at full speed, while the last processes come
  at::set_num_threads(1);
  std::mt19937 random(seed);
  start_job("2:4", 4, 2 * kBurst * kills + kAtTheEnd, 0);
  std::vector<std::pair<std::int64_t, std::int64_t>> killed;
  std::int64_t epoch = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const std::vector<std::int64_t> members = record().wait_for_epoch(3, epoch);
    if (members.empty()) return;
    const std::int64_t victim = members[random() % members.size()];
    // A moment anywhere in a step or between two.
    page()->budget += kBurst;
    const auto moment = Clock::now() + std::chrono::microseconds(random() % 5000);
    while (Clock::now() < moment) {
    }
    if (kill % 7 == 3) ::kill(coordinator(), SIGKILL);
    killed.emplace_back(victim, Clock::now().time_since_epoch().count());
    ::kill(static_cast<pid_t>(victim), SIGKILL);
    page()->budget += kBurst;
  }
  page()->budget = steps_;
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  record().expect_serial_bits(optimizer_ == "zero" ? adam() : SerialProgram());
  expect_same_replay(4);
  std::vector<double> times;
  for (const auto& [pid, moment] : killed) {
    if (const auto time = record().recovery_ms(pid, moment)) times.push_back(*time);
  }
  std::sort(times.begin(), times.end());
  ASSERT_FALSE(times.empty());
  std::printf(
      "%zu kills, from the kill to the step of the last survivor in the next epoch: median %.0f ms, "
      "99th percentile %.0f ms, longest %.0f ms\n",
      times.size(), times[times.size() / 2], times[times.size() * 99 / 100], times.back());
}

TEST_F(ElasticLaunchTest, AJobWithoutFailuresIsTheSerialProgram) {
  start_job("2:2", 2, 100, 100);
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  record().expect_serial_bits();
}

TEST_F(ElasticLaunchTest, TwentyKills) { kill_at_random(20, 1); }

// Members die while newcomers follow them, and newcomers die while they follow.
TEST_F(ElasticLaunchTest, TenKillsWhileNewcomersFollow) {
  more_ = {"--env", "ELASTIC_FOLLOW=1"};
  kill_at_random(10, 3);
  EXPECT_GT(page()->followed, 0);
  std::printf("newcomers did %lld steps while they followed\n", static_cast<long long>(page()->followed));
}

// The state of Adam is shared out among the ranks, and each killed one takes its part along.
TEST_F(ElasticLaunchTest, FiveKillsOverZero) {
  optimizer_ = "zero";
  kill_at_random(5, 2);
}

TEST_F(ElasticLaunchTest, ARankThatGetsSigtermLeavesInGoodOrder) {
  start_job("1:3", 3, 300, 100);
  std::int64_t epoch = 0;
  const auto members = record().wait_for_epoch(3, epoch);
  ASSERT_EQ(members.size(), 3U);
  ::kill(static_cast<pid_t>(members[1]), SIGTERM);
  EXPECT_EQ(record().wait_for_epoch(2, epoch).size(), 2U);
  page()->budget = 300;
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");  // nothing died, nothing was replaced
  EXPECT_EQ(launch::count_of(result.out, "left in good order"), 1);
  const std::vector<int> sizes = sizes_of(record().journal(), 300);
  EXPECT_EQ(sizes.front(), 3);
  EXPECT_EQ(sizes.back(), 2);
  record().expect_serial_bits();
}

// The launcher starts no process in its place, which would be as slow on the same host.
TEST_F(ElasticLaunchTest, ASlowRankIsNamedDroppedAndNotReplaced) {
  more_ = {"--drop-slow", "2:5", "--env", "ELASTIC_SLOW=1"};
  start_job("1:3", 3, 300, 50);
  std::int64_t epoch = 1;  // of three; it may end before this looks
  record().wait_for_epoch(2, epoch);
  page()->budget = 300;
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(launch::count_of(result.out, "left because it is slow"), 1);
  EXPECT_EQ(launch::count_of(result.err, "\n"), 1) << result.err;  // nothing died, nothing was replaced
  EXPECT_NE(result.err.find(") is slow: its own part of a step took 30 ms, and that of the other ranks 10 ms"),
            std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("; it leaves the job"), std::string::npos) << result.err;
  const std::vector<int> sizes = sizes_of(record().journal(), 300);
  EXPECT_EQ(sizes.front(), 3);
  EXPECT_EQ(sizes.back(), 2);
  EXPECT_EQ(record().finals().size(), 2U);
  record().expect_serial_bits();
}

// One rank blocks in a read, and later another one is stopped. Each is killed and replaced, and nobody else.
TEST_F(ElasticLaunchTest, RanksThatHangAreReplacedAndTheOthersGoOn) {
  more_ = {"--stall", "6", "--replace-stalled", "--env", "ELASTIC_BLOCK=50"};
  start_job("1:3", 3, 300, 100);
  const pid_t blocked = wait_for_number(record().folder() + "/blocked");
  std::int64_t epoch = 1;
  const auto members = record().wait_for_epoch(3, epoch);
  ASSERT_EQ(members.size(), 3U);
  const auto stopped = static_cast<pid_t>(members[1]);
  ASSERT_NE(stopped, blocked);
  ASSERT_EQ(::kill(stopped, SIGSTOP), 0);
  wait_for_state(stopped, 'T');
  page()->budget += 5;
  const auto next = record().wait_for_epoch(3, epoch);
  EXPECT_EQ(std::count(next.begin(), next.end(), members[1]), 0);
  page()->budget = steps_;
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto expect_kill = [&](pid_t process, const std::string& why) {
    const std::string words = concat(", process ", process, " on host ");
    const auto at = result.err.find(words);
    ASSERT_NE(at, std::string::npos) << result.err;
    const std::string line = result.err.substr(at, result.err.find('\n', at) - at);
    EXPECT_NE(line.find(concat(" keeps the others waiting (", why, "): no call has begun or ended for ")),
              std::string::npos)
        << line;
  };
  expect_kill(blocked, "blocked");
  expect_kill(stopped, "stopped");
  const int kills = launch::count_of(result.err, "; gradwire-run kills it, and the others go on");
  EXPECT_EQ(kills, 2) << result.err;
  EXPECT_EQ(launch::count_of(result.err, " died of signal 9 (SIGKILL), and a new process takes its place"), 2)
      << result.err;
  std::printf("2 ranks hung (1 blocked, 1 stopped), %d were killed\n", kills);
  record().expect_serial_bits();
  expect_same_replay(3);
}

// SIGTERM asks the ranks to leave after the step under way, to whose end a job that stands still does not come.
TEST_F(ElasticLaunchTest, AJobThatStandsStillEndsAtTheSecondSigterm) {
  start_and_stop_one_of_three();
  signal_launcher(SIGTERM);
  // One signal may arrive twice, so a repeat right behind the first does not count.
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  signal_launcher(SIGTERM);
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_NE(result.err.find("killed by gradwire-run"), std::string::npos) << result.err;
}

TEST_F(ElasticLaunchTest, AJobThatWasInterruptedAndStandsStillEndsAfterTheBound) {
  more_ = {"--stall", "2"};
  start_and_stop_one_of_three();
  signal_launcher(SIGTERM);
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_NE(result.err.find("the job stands still; they are ended"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("killed by gradwire-run"), std::string::npos) << result.err;
}

// Two of three ranks are stopped, so no rank alone is the cause. They are continued, and the job goes on.
TEST_F(ElasticLaunchTest, WhereTwoRanksHangNobodyIsKilled) {
  more_ = {"--stall", "6", "--replace-stalled"};
  start_job("1:3", 3, 300, 100);
  std::int64_t epoch = 0;
  const auto members = record().wait_for_epoch(3, epoch);
  ASSERT_EQ(members.size(), 3U);
  for (const std::size_t member : {0, 2}) {
    ASSERT_EQ(::kill(static_cast<pid_t>(members[member]), SIGSTOP), 0);
    wait_for_state(static_cast<pid_t>(members[member]), 'T');
  }
  page()->budget += 5;
  wait_for_error("--replace-stalled kills nobody: the diagnosis names ranks ");
  for (const std::size_t member : {0, 2}) ::kill(static_cast<pid_t>(members[member]), SIGCONT);
  page()->budget = steps_;
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(launch::count_of(result.err, " died of "), 0) << result.err;
  EXPECT_EQ(launch::count_of(result.err, "--replace-stalled kills nobody"), 1) << result.err;
  std::printf("2 ranks hung (2 stopped), 0 were killed\n");
  record().expect_serial_bits();
}

// Two launchers, as on two hosts. The one that has joined kills its own rank, which the ranks of both wait for.
TEST_F(ElasticLaunchTest, ALauncherKillsRanksOfItsOwnAlone) {
  const std::string address = concat("127.0.0.1:", launch::find_free_port(launch::PortScope::loopback));
  more_ = {"--stall", "6", "--replace-stalled", "--rendezvous", address};
  start_job("1:4", 2, 400, 0);
  auto joined = launch("joined", {"--join", address, "-n", "2", "--stall", "6", "--replace-stalled",
                                  ELASTIC_WORKER_PROGRAM, "400", record().folder()});
  std::int64_t epoch = 0;
  const auto members = record().wait_for_epoch(4, epoch);
  ASSERT_EQ(members.size(), 4U);
  const auto has_joined = [](std::int64_t pid) {
    return launch::read_file(concat("/proc/", pid, "/environ")).find("GRADWIRE_ELASTIC_HOST=") != std::string::npos;
  };
  const auto victim = std::find_if(members.begin(), members.end(), has_joined);
  ASSERT_NE(victim, members.end());
  ASSERT_EQ(::kill(static_cast<pid_t>(*victim), SIGSTOP), 0);
  wait_for_state(static_cast<pid_t>(*victim), 'T');
  page()->budget += 5;
  const auto next = record().wait_for_epoch(4, epoch);
  EXPECT_EQ(std::count(next.begin(), next.end(), *victim), 0);
  page()->budget = steps_;
  const launch::Result there = joined.finish();
  const launch::Result here = finish();
  EXPECT_EQ(there.exit_code, 0) << there.err;
  EXPECT_EQ(here.exit_code, 0) << here.err;
  EXPECT_NE(there.err.find(concat(", process ", *victim, " on host ")), std::string::npos) << there.err;
  EXPECT_EQ(launch::count_of(there.err, "; gradwire-run kills it, and the others go on"), 1) << there.err;
  EXPECT_EQ(launch::count_of(here.err, "; gradwire-run kills it"), 0) << here.err;
  std::printf("1 rank of 2 launchers hung (1 stopped), 1 was killed\n");
  EXPECT_EQ(record().finals().size(), 4U);
  // Both launchers are on one machine, where the group sums over all of their ranks.
  record().expect_serial_bits();
  expect_same_replay(4);
}

// The process that replaces a rank can open no file for the memory that it would share. It fails alone; another process
// comes then.
TEST_F(ElasticLaunchTest, ANewcomerWithoutDescriptorsTakesNobodyAlong) {
  start_job("1:3", 3, 300, 0);
  std::int64_t epoch = 0;
  const auto members = record().wait_for_epoch(3, epoch);
  ASSERT_EQ(members.size(), 3U);
  std::ofstream(record().folder() + "/few_descriptors");
  ::kill(static_cast<pid_t>(members.front()), SIGKILL);
  page()->budget += 5;
  const auto next = record().wait_for_epoch(3, epoch);
  ASSERT_EQ(next.size(), 3U);
  for (std::size_t i = 1; i < members.size(); ++i)
    EXPECT_EQ(std::count(next.begin(), next.end(), members[i]), 1) << "it went on";
  page()->budget = steps_;
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("descriptors more than"), std::string::npos) << result.err;
  record().expect_serial_bits();
}

// Batch normalization counts its batches in a buffer: a step that was done again counts once, also on a process that
// came.
TEST_F(ElasticLaunchTest, AConvolutionalNetLosesRanksAndItsBuffersCountEachStepOnce) {
  constexpr std::int64_t kSteps = 600;
  std::mt19937 random(3);
  start_job("1:3", 3, kSteps, 100, 100000, CONVOLUTION_WORKER_PROGRAM);
  std::int64_t epoch = 0;
  for (int kill = 0; kill < 4; ++kill) {
    const auto members = record().wait_for_epoch(3, epoch);
    ASSERT_EQ(members.size(), 3U);
    page()->budget += 20;
    const auto moment = Clock::now() + std::chrono::microseconds(random() % 10000);
    while (Clock::now() < moment) {
    }
    ::kill(static_cast<pid_t>(members[random() % 3]), SIGKILL);
  }
  record().wait_for_epoch(3, epoch);
  page()->budget = kSteps;
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto finals = record().finals();
  ASSERT_EQ(finals.size(), 3U);
  for (const auto& state : finals) {
    ASSERT_FALSE(state.empty());
    EXPECT_EQ(state.back().item<std::int64_t>(), kSteps) << "batches that batch normalization has seen";
    const std::vector<at::Tensor> parameters(state.begin(), state.end() - 3);
    expect_equal_bits(parameters, {finals.front().begin(), finals.front().end() - 3}, "a member against the first");
  }
}

std::vector<std::vector<at::Tensor>> ElasticLaunchTest::kill_a_worker_each_round(int rounds) {
  constexpr std::int64_t kRound = 24;  // steps
  std::mt19937 random(4);
  start_job("2:4", 4, kRound * rounds * 16, 0, 100000, DILOCO_WORKER_PROGRAM);  // it goes on while a process starts
  std::int64_t epoch = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto members = record().wait_for_epoch(3, epoch);
    if (members.empty()) break;
    // A moment anywhere in the steps of a round, in its exchange or after it.
    page()->budget += kRound;
    const auto moment = Clock::now() + std::chrono::microseconds(random() % 8000);
    while (Clock::now() < moment) {
    }
    if (round % 4 == 2) ::kill(coordinator(), SIGKILL);
    ::kill(static_cast<pid_t>(members[random() % members.size()]), SIGKILL);
  }
  page()->budget = steps_;
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return record().finals();
}

// See diloco_worker.cc: the outer parameters count the steps.
TEST_F(ElasticLaunchTest, AWorkerIsKilledInEachRoundOfDilocoAndEachExchangeCountsOnce) {
  const auto finals = kill_a_worker_each_round(8);
  ASSERT_FALSE(finals.empty());
  for (const auto& parameters : finals) {
    ASSERT_EQ(parameters.size(), 3U);
    for (const at::Tensor& parameter : parameters)
      EXPECT_TRUE(at::equal(parameter, at::full_like(parameter, static_cast<double>(steps_)))) << parameter[0];
  }
}

TEST_F(ElasticLaunchTest, AWorkerIsKilledInEachRoundOfStreamingDilocoAndTheOthersAgree) {
  optimizer_ = "streaming";
  const auto finals = kill_a_worker_each_round(8);
  ASSERT_FALSE(finals.empty());
  for (const auto& parameters : finals) {
    expect_equal_bits(parameters, finals.front(), "a member against the first");
    for (const at::Tensor& parameter : parameters) {
      // A worker that came had moved a fragment by less than a round.
      EXPECT_GT(parameter[0].item<float>(), static_cast<float>(steps_) / 2);
      EXPECT_LE(parameter[0].item<float>(), static_cast<float>(steps_));
    }
  }
}

TEST_F(ElasticLaunchTest, TooManyDeathsEndTheJob) {
  start_job("1:2", 2, 300, 100, 0);
  std::int64_t epoch = 0;
  const auto members = record().wait_for_epoch(2, epoch);
  ASSERT_EQ(members.size(), 2U);
  ::kill(static_cast<pid_t>(members[0]), SIGKILL);
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_NE(result.err.find("more than --deaths-per-minute 0, so the job ends"), std::string::npos) << result.err;
}

// A rank was replaced before, in an epoch whose calls failed. The report goes by the epoch of the rank that ends the
// job.
TEST_F(ElasticLaunchTest, TheReportOfAJobThatFailsGoesByItsLastEpoch) {
  more_ = {"--flight-dir", scratch("flight")};
  start_job("1:3", 3, 300, 50, 1);
  std::int64_t epoch = 0;
  const auto first = record().wait_for_epoch(3, epoch);
  ASSERT_EQ(first.size(), 3U);
  ::kill(static_cast<pid_t>(first[1]), SIGKILL);
  page()->budget += 5;
  const auto next = record().wait_for_epoch(3, epoch);
  ASSERT_EQ(next.size(), 3U);
  ::kill(static_cast<pid_t>(next[1]), SIGKILL);
  page()->budget += 5;
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_NE(result.err.find(" is the cause: killed\n"), std::string::npos) << result.err;
  const auto at = result.err.find("the others waited in ");
  ASSERT_NE(at, std::string::npos) << result.err;
  const std::string line = result.err.substr(at, result.err.find('\n', at) - at);
  EXPECT_EQ(line.find("group epoch 1"), std::string::npos) << line;
}

// The calls of an epoch that broke before had failed, and all others had ended well.
// The job trains on meanwhile, and a rank that dies is replaced when another coordinator is there.
TEST_F(ElasticLaunchTest, ACoordinatorThatHangsIsReplaced) {
  more_ = {"--heartbeat-timeout", "5"};
  start_job("2:3", 3, 300, 50);
  std::int64_t epoch = 0;
  const auto members = record().wait_for_epoch(3, epoch);
  ASSERT_EQ(members.size(), 3U);
  const pid_t hangs = coordinator();
  ASSERT_EQ(::kill(hangs, SIGSTOP), 0);
  wait_for_state(hangs, 'T');
  ::kill(static_cast<pid_t>(members[1]), SIGKILL);
  wait_for_error(
      "the coordinator gave no sign of life for 5 s, was killed, and goes on from its journal as a new process");
  ASSERT_EQ(record().wait_for_epoch(3, epoch).size(), 3U);
  page()->budget = steps_;
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  record().expect_serial_bits();
  expect_same_replay(3);
}

TEST_F(ElasticLaunchTest, NoRankIsTheCauseWhereTheCoordinatorEndsTooOften) {
  start_job("1:3", 3, 300, 50, 1);
  std::int64_t epoch = 0;
  const auto first = record().wait_for_epoch(3, epoch);
  ASSERT_EQ(first.size(), 3U);
  ::kill(static_cast<pid_t>(first[1]), SIGKILL);
  page()->budget += 5;
  ASSERT_EQ(record().wait_for_epoch(3, epoch).size(), 3U);
  ::kill(coordinator(), SIGKILL);
  wait_for_error("goes on from its journal as a new process");
  ::kill(coordinator(), SIGKILL);
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, launch::kLaunchFailedExit);
  EXPECT_NE(result.err.find("the coordinator of the elastic job ended more than 1 times"), std::string::npos)
      << result.err;
  EXPECT_EQ(result.err.find("is the cause"), std::string::npos) << result.err;
}

TEST_F(ElasticLaunchTest, BadCommandLinesAreRefusedInOneSentence) {
  const auto said = [&](const std::vector<std::string>& options) {
    std::vector<std::string> arguments = options;
    arguments.emplace_back("true");
    const launch::Result result = run(arguments);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_EQ(said({"--elastic", "3:2", "-n", "2"}),
            "gradwire-run: --elastic is '3:2'; MIN is larger than MAX, give the smaller number first\n");
  EXPECT_EQ(said({"--elastic", "2", "-n", "2"}), "gradwire-run: --elastic is '2'; it must read MIN:MAX\n");
  EXPECT_EQ(said({"--elastic", "2:3", "-n", "4"}),
            "gradwire-run: -n is 4; with --elastic 2:3 it must be a number from 2 to 3\n");
  EXPECT_EQ(said({"--elastic", "1:2", "-n", "2", "--max-restarts", "1"}),
            "gradwire-run: --max-restarts starts all ranks again, and --elastic the one that died; give one of them\n");
  EXPECT_EQ(said({"--membership-log", "x", "-n", "2"}),
            "gradwire-run: --deaths-per-minute, --drop-slow, --membership-log and --replay belong to --elastic; give "
            "--elastic "
            "MIN:MAX too\n");
  for (const std::string wrong : {"1:20", "3", "x:20", "nan:20", ":20"}) {
    EXPECT_EQ(said({"--elastic", "1:2", "-n", "2", "--drop-slow", wrong}),
              concat("gradwire-run: --drop-slow is '", wrong,
                     "'; it must read FACTOR:STEPS, a number above 1 and a number of steps in a row: 3:20\n"));
  }
  EXPECT_NE(said({"--elastic", "1:2", "-n", "2", "--drop-slow", "3:0"}).find("STEPS of --drop-slow is '0'"),
            std::string::npos);
  EXPECT_EQ(said({"--join", "a:1", "--drop-slow", "3:20", "-n", "2"}),
            "gradwire-run: --join brings this host into a job that runs; --drop-slow belongs to the host that began "
            "it\n");
  EXPECT_EQ(said({"-n", "2", "--stall", "5", "--replace-stalled"}),
            "gradwire-run: --replace-stalled replaces a rank of a job that goes on without it; give --elastic MIN:MAX "
            "or --join too\n");
  EXPECT_EQ(said({"--elastic", "1:2", "-n", "2", "--replace-stalled"}),
            "gradwire-run: --replace-stalled kills a rank for which the others have waited for the time of --stall; "
            "give --stall SECONDS too\n");
  EXPECT_EQ(said({"--elastic", "1:2", "-n", "2", "--stall", "5", "--replace-stalled", "--env",
                  "GRADWIRE_FLIGHT_RECORDER=off"}),
            "gradwire-run: --replace-stalled goes by the calls that the ranks record for gradwire-run; leave "
            "GRADWIRE_FLIGHT_RECORDER out of the environment and of --env\n");
  EXPECT_EQ(said({"--serve", "a:1", "--elastic", "1:2", "--membership-log", "x", "--replace-stalled"}),
            "gradwire-run: --serve holds a job for hosts that join it, and starts no ranks; leave --replace-stalled "
            "out\n");
  EXPECT_EQ(said({"--elastic", "1:2", "-n", "2", "--nnodes", "2", "--node-rank", "0", "--rendezvous", "a:1"}),
            "gradwire-run: --elastic begins on one host, and others come with --join, or with --hosts all at once; "
            "leave --nnodes and --node-rank out\n");
  EXPECT_EQ(said({"--elastic", "1:2", "-n", "2", "--hosts", "a,b", "--replay", "x"}),
            "gradwire-run: --replay plays a job on one host, also where the job had several; leave --hosts out\n");
  EXPECT_EQ(
      said({"--join", "a:1", "--elastic", "1:2", "-n", "2"}),
      "gradwire-run: --join brings this host into a job that runs; --elastic belongs to the host that began it\n");
  EXPECT_EQ(said({"--join", "nowhere", "-n", "2"}), "gradwire-run: --join is 'nowhere'; it must read HOST:PORT\n");
}

// For the label slow: a thousand kills.
class ElasticSlowLaunchTest : public ElasticLaunchTest, public ::testing::WithParamInterface<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, ElasticSlowLaunchTest, ::testing::Range(2U, 27U));
TEST_P(ElasticSlowLaunchTest, FortyKills) { kill_at_random(40, GetParam()); }

}  // namespace
}  // namespace gradwire::testing
