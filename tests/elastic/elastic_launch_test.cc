// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Jobs under gradwire-run --elastic whose processes are killed at random moments: they end with the bits of the serial
// program that does each step with the ranks of the journal, so no step is lost or counted twice.
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/serialize.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "gradwire/elastic/elastic_test_support.h"
#include "launch/launcher_fixture_internal.h"
#include "tests/elastic/elastic_page.h"

namespace gradwire::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Entry {
  std::int64_t pid = 0;
  std::int64_t epoch = 0;
  std::int64_t size = 0;
  std::int64_t nanoseconds = 0;
};

class ElasticLaunchTest : public launch::LauncherTest {
 protected:
  void SetUp() override {
    LauncherTest::SetUp();
    folder_ = scratch("job");
    std::filesystem::create_directory(folder_);
    page_ = std::make_unique<SharedElasticPage>(folder_ + "/page");
  }

  void start_job(const std::string& sizes, int ranks, std::int64_t steps, int deaths_per_minute = 100000) {
    steps_ = steps;
    start({"--elastic", sizes, "-n", std::to_string(ranks), "--deaths-per-minute", std::to_string(deaths_per_minute),
           "--membership-log", journal(), ELASTIC_WORKER_PROGRAM, std::to_string(steps), folder_});
  }
  std::string journal() const { return folder_ + "/memberships"; }
  SharedElasticPage& page() { return *page_; }

  std::vector<Entry> entries() const {
    std::vector<Entry> all;
    for (std::int64_t i = 0; i < (*page_)->entry_count; ++i) {
      const ElasticPage::Entry& entry = (*page_)->entries[static_cast<std::size_t>(i)];
      if (entry.pid != 0) all.push_back({entry.pid, entry.epoch, entry.size, entry.nanoseconds});
    }
    return all;
  }

  // Waits until all members of an epoch of at least `size` members do its first step, and returns their processes. The
  // epoch is newer than `after`, which becomes its number. Meanwhile the job goes on slowly, so that it has steps left.
  std::vector<std::int64_t> wait_for_epoch(std::int64_t size, std::int64_t& after) const {
    const auto guard = Clock::now() + kGuard;
    while (Clock::now() < guard) {
      std::map<std::int64_t, std::set<std::int64_t>> members;  // by epoch
      std::map<std::int64_t, std::int64_t> sizes;
      for (const Entry& entry : entries()) {
        members[entry.epoch].insert(entry.pid);
        sizes[entry.epoch] = entry.size;
      }
      if (!sizes.empty()) {
        const auto [newest, its_size] = *sizes.rbegin();
        const auto& there = members[newest];
        if (newest > after && its_size >= size && static_cast<std::int64_t>(there.size()) == its_size) {
          after = newest;
          return {there.begin(), there.end()};
        }
      }
      (*page_)->budget = std::min((*page_)->budget + 1, steps_ - 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "no epoch of " << size << " members comes after epoch " << after;
    return {};
  }

  // The time from a kill until the last of the others begins a step of the next epoch; nothing when there is none.
  std::optional<double> recovery_ms(std::int64_t killed, std::int64_t at_nanoseconds) const {
    std::map<std::int64_t, std::int64_t> epoch_of;
    const std::vector<Entry> all = entries();
    for (const Entry& entry : all) {
      if (entry.nanoseconds <= at_nanoseconds) epoch_of[entry.pid] = entry.epoch;
    }
    const std::int64_t broken = epoch_of[killed];
    std::int64_t next = 0;
    for (const Entry& entry : all) {
      if (entry.nanoseconds > at_nanoseconds && entry.epoch > broken && (next == 0 || entry.epoch < next))
        next = entry.epoch;
    }
    std::int64_t last = 0;
    for (const Entry& entry : all) {
      if (entry.epoch == next && epoch_of[entry.pid] == broken) last = std::max(last, entry.nanoseconds);
    }
    if (next == 0 || last == 0) return std::nullopt;
    return static_cast<double>(last - at_nanoseconds) / 1e6;
  }

  void expect_serial_bits() const {
    const std::vector<int> sizes = sizes_of(journal(), steps_);
    EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 0), 0);
    const auto expected = serial_parameters(sizes);
    const auto finals = finals_in(folder_);
    EXPECT_FALSE(finals.empty());
    for (const auto& parameters : finals) expect_equal_bits(parameters, expected, "a member's parameters at the end");
  }

  // The parameters that the members in `folder` ended with.
  static std::vector<std::vector<at::Tensor>> finals_in(const std::string& folder) {
    std::vector<std::vector<at::Tensor>> finals;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (!file.path().filename().string().starts_with("final-")) continue;
      torch::load(finals.emplace_back(), file.path());
    }
    return finals;
  }

  // The launcher plays the journal again, and ends with the same bits without a failure.
  void expect_same_replay(int ranks) {
    const std::string played = folder_ + "/replayed";
    std::filesystem::create_directory(played);
    SharedElasticPage(played + "/page")->budget = steps_;
    const launch::Result result =
        run({"--elastic", concat("1:", ranks), "-n", std::to_string(ranks), "--replay", journal(), "--membership-log",
             played + "/memberships", ELASTIC_WORKER_PROGRAM, std::to_string(steps_), played});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(sizes_of(played + "/memberships", steps_), sizes_of(journal(), steps_));
    const auto original = finals_in(folder_);
    const auto again = finals_in(played);
    ASSERT_FALSE(original.empty());
    ASSERT_FALSE(again.empty());
    for (const auto& parameters : again) expect_equal_bits(parameters, original.front(), "the replay");
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

 private:
  std::string folder_;
  std::unique_ptr<SharedElasticPage> page_;
  std::int64_t steps_ = 0;
};

void ElasticLaunchTest::kill_at_random(int kills, unsigned seed) {
  constexpr std::int64_t kStepsPerKill = 300;
  constexpr std::int64_t kBurst = 30;  // steps that the job does at full speed while a member is killed
  at::set_num_threads(1);
  std::mt19937 random(seed);
  start_job("2:4", 4, kStepsPerKill * (kills + 1));
  std::vector<std::pair<std::int64_t, std::int64_t>> killed;
  std::int64_t epoch = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const std::vector<std::int64_t> members = wait_for_epoch(3, epoch);
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
  expect_serial_bits();
  expect_same_replay(4);
  std::vector<double> times;
  for (const auto& [pid, moment] : killed) {
    if (const auto time = recovery_ms(pid, moment)) times.push_back(*time);
  }
  std::sort(times.begin(), times.end());
  ASSERT_FALSE(times.empty());
  std::printf(
      "%zu kills, from the kill to the step of the last survivor in the next epoch: median %.0f ms, "
      "99th percentile %.0f ms, longest %.0f ms\n",
      times.size(), times[times.size() / 2], times[times.size() * 99 / 100], times.back());
}

TEST_F(ElasticLaunchTest, AJobWithoutFailuresIsTheSerialProgram) {
  page()->budget = 100;
  start_job("2:2", 2, 100);
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  expect_serial_bits();
}

TEST_F(ElasticLaunchTest, TwentyKills) { kill_at_random(20, 1); }

TEST_F(ElasticLaunchTest, ARankThatGetsSigtermLeavesInGoodOrder) {
  page()->budget = 100;
  start_job("1:3", 3, 300);
  std::int64_t epoch = 0;
  const auto members = wait_for_epoch(3, epoch);
  ASSERT_EQ(members.size(), 3U);
  ::kill(static_cast<pid_t>(members[1]), SIGTERM);
  page()->budget = 300;
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");  // nothing died, nothing was replaced
  EXPECT_EQ(launch::count_of(result.out, "left in good order"), 1);
  const std::vector<int> sizes = sizes_of(journal(), 300);
  EXPECT_EQ(sizes.front(), 3);
  EXPECT_EQ(sizes.back(), 2);
  expect_serial_bits();
}

TEST_F(ElasticLaunchTest, TooManyDeathsEndTheJob) {
  page()->budget = 100;
  start_job("1:2", 2, 300, 0);
  std::int64_t epoch = 0;
  const auto members = wait_for_epoch(2, epoch);
  ASSERT_EQ(members.size(), 2U);
  ::kill(static_cast<pid_t>(members[0]), SIGKILL);
  const launch::Result result = finish();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_NE(result.err.find("more than --deaths-per-minute 0, so the job ends"), std::string::npos) << result.err;
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
  EXPECT_EQ(
      said({"--membership-log", "x", "-n", "2"}),
      "gradwire-run: --deaths-per-minute, --membership-log and --replay belong to --elastic; give --elastic MIN:MAX "
      "too\n");
  EXPECT_EQ(said({"--elastic", "1:2", "-n", "2", "--hosts", "a,b"}),
            "gradwire-run: --elastic is for one host so far; leave --hosts, --nnodes and --rendezvous out\n");
}

// For the label slow: a thousand kills.
class ElasticSlowLaunchTest : public ElasticLaunchTest, public ::testing::WithParamInterface<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, ElasticSlowLaunchTest, ::testing::Range(2U, 27U));
TEST_P(ElasticSlowLaunchTest, FortyKills) { kill_at_random(40, GetParam()); }

}  // namespace
}  // namespace gradwire::testing
