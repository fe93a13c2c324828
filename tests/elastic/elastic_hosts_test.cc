// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Elastic jobs over hosts with separate networks: ranks, launchers and cables are lost, hosts come and leave, and the
// job ends with the bits of the serial program that does each step with the ranks of the journal.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "bench/network_hosts.h"
#include "gradwire/base/environment.h"
#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/launcher_fixture_internal.h"
#include "tests/elastic/elastic_record.h"
#include "tests/support/secrets.h"

namespace gradwire::testing {
namespace {

using bench::NetworkHosts;
using launch::BackgroundProgram;
using launch::Result;
using Words = std::vector<std::string>;
using Pids = std::vector<std::int64_t>;

constexpr std::int64_t kSteps = 1000;

class ElasticHostsTest : public launch::LauncherTest {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    at::set_num_threads(1);
    network_ = std::make_unique<NetworkHosts>(3);
    LauncherTest::SetUp();
    record_ = std::make_unique<ElasticRecord>(scratch("job"), kSteps);
  }
  void TearDown() override {
    if (network_ == nullptr) return;
    LauncherTest::TearDown();
    for (int host = 0; host < network_->count(); ++host) EXPECT_EQ(network_->processes(host).size(), 1U);
  }

  // Host 0 begins the job and serves its store.
  BackgroundProgram begin(const std::string& sizes, int ranks, const Words& more = {}) const {
    Words words = {"--elastic",       sizes, "-n", std::to_string(ranks), "--rendezvous", address(), "--membership-log",
                   record_->journal()};
    return on_host(0, "0", std::move(words), more);
  }
  // Host 0 holds the job, and has no ranks.
  BackgroundProgram serve(const std::string& sizes, int first) const {
    return launch("0",
                  {"--elastic", sizes, "-n", std::to_string(first), "--serve", address(), "--membership-log",
                   record_->journal(), "--heartbeat-timeout", heartbeat_},
                  network_->enter(0));
  }
  // Host 1 joins, or another one.
  BackgroundProgram join(const std::string& name, int ranks, const Words& more = {}, int host = 1) const {
    return on_host(host, name, {"--join", address(), "-n", std::to_string(ranks)}, more);
  }
  std::string address() const { return network_->address(0) + ":29400"; }
  std::string secret_file(const std::string& secret) const {
    const std::string path = scratch("secret-" + secret);
    std::ofstream(path) << secret << "\n";
    EXPECT_EQ(::chmod(path.c_str(), 0600), 0);
    return path;
  }

  // Those of `pids` that run on a host.
  Pids on(int host, const Pids& pids) const {
    const std::vector<pid_t> there = network_->processes(host);
    Pids found;
    for (const std::int64_t pid : pids) {
      if (std::find(there.begin(), there.end(), pid) != there.end()) found.push_back(pid);
    }
    return found;
  }
  Pids wait_for_epoch(std::int64_t size) { return record_->wait_for_epoch(size, epoch_, pace_); }
  // One rank on each of two hosts holds so many MB of state, and a rank of a third host joins. Returns the newcomer's
  // word on what it got.
  std::string join_with_state(int megabytes, bool follows = false) {
    return join_with({"--env", concat("ELASTIC_STATE=", megabytes)}, follows);
  }
  std::string join_with(Words more, bool follows) {
    more.insert(more.end(), {"--env", "GRADWIRE_LOG=info"});
    if (follows) more.insert(more.end(), {"--env", "ELASTIC_FOLLOW=1"});
    auto first = begin("1:3", 1, more);
    wait_for_epoch(1);
    auto second = join("1", 1, more);
    wait_for_epoch(2);
    const auto before = sent_by_hosts();
    auto third = join("2", 1, more, 2);
    wait_for_epoch(3);
    const auto after = sent_by_hosts();
    for (int host = 0; host < 2; ++host) sent_[static_cast<std::size_t>(host)] = after[host] - before[host];
    pause_ = record_->pause_before(epoch_);
    lost_ = record_->lost_before(epoch_);
    go_to_the_end();
    for (BackgroundProgram* program : {&third, &second, &first}) EXPECT_EQ(program->finish().exit_code, 0);
    const auto finals = record_->finals();
    EXPECT_EQ(finals.size(), 3U);
    for (const auto& parameters : finals) expect_equal_bits(parameters, finals.front(), "a member against the first");
    return what_it_got(third.err());
  }
  // A newcomer's word on that, in what it said.
  static std::string what_it_got(const std::string& said) {
    const auto place = said.find("this member got ");
    EXPECT_NE(place, std::string::npos) << said;
    return place == std::string::npos ? "" : said.substr(place, said.find('\n', place) - place);
  }
  std::array<std::uint64_t, 2> sent_{};  // by the hosts that held the state, while the newcomer came
  double pause_ = 0;                     // of the members that held the state, in seconds
  std::pair<double, double> lost_;       // what such a member lost in all, and the time of a step, in seconds

  // A member leaves at the end of a step, so the job must have steps left.
  Result finish_while_the_job_goes_on(BackgroundProgram& program) const {
    const auto guard = ElasticRecord::Clock::now() + kGuard;
    while (!program.ends_within(pace_) && ElasticRecord::Clock::now() < guard) record_->go_on();
    return program.finish();
  }

  void go_to_the_end() const { record_->page()->budget = steps_; }
  // A job of one rank on the third host does so many steps of the same program.
  void do_steps_beside(std::int64_t steps, const Words& more) const {
    const ElasticRecord record(scratch("beside"), steps);
    record.page()->budget = steps;
    Words words = {"--elastic", "1:1", "-n", "1"};
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {worker_, std::to_string(steps), record.folder()});
    EXPECT_EQ(launch("beside", words, network_->enter(2)).finish().exit_code, 0);
  }
  static std::int64_t now() { return ElasticRecord::Clock::now().time_since_epoch().count(); }
  void say_recovery(const char* what, std::int64_t pid, std::int64_t moment) const {
    const auto time = record_->recovery_ms(pid, moment);
    ASSERT_TRUE(time);
    std::printf("%s: %.0f ms until the last of the others began its next step\n", what, *time);
  }

  std::unique_ptr<NetworkHosts> network_;
  std::unique_ptr<ElasticRecord> record_;
  // In seconds. Long, but in tests in which a host is silent: a machine may be silent for a while itself.
  std::string heartbeat_ = "20";
  std::chrono::milliseconds pace_{10};
  std::string worker_ = ELASTIC_WORKER_PROGRAM;
  std::int64_t steps_ = kSteps;

 private:
  BackgroundProgram on_host(int host, const std::string& name, Words words, const Words& more) const {
    words.insert(words.end(),
                 {"--heartbeat-timeout", heartbeat_, "--env", "GLOO_SOCKET_IFNAME=eth0"});  // where ucx is not built
    if (std::find(more.begin(), more.end(), "--deaths-per-minute") == more.end())
      words.insert(words.end(), {"--deaths-per-minute", "1000"});
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), {worker_, std::to_string(steps_), record_->folder()});
    return launch(name, words, network_->enter(host));
  }

  std::array<std::uint64_t, 2> sent_by_hosts() const { return {network_->traffic(0).sent, network_->traffic(1).sent}; }

  std::int64_t epoch_ = 0;
};

TEST_F(ElasticHostsTest, AHostJoinsARankDiesAndTheHostLeavesInGoodOrder) {
  auto first = begin("1:4", 2);
  wait_for_epoch(2);
  auto second = join("1", 2);
  Pids members = wait_for_epoch(4);
  ASSERT_EQ(on(1, members).size(), 2U);
  EXPECT_GT(network_->traffic(1).sent, 1000U);

  const std::int64_t there = on(1, members).front();
  std::int64_t moment = now();
  ::kill(static_cast<pid_t>(there), SIGKILL);
  members = wait_for_epoch(4);  // the new process has joined
  say_recovery("a rank of the host that joined was killed", there, moment);

  const std::int64_t here = on(0, members).front();
  moment = now();
  ::kill(static_cast<pid_t>(here), SIGKILL);
  members = wait_for_epoch(4);
  say_recovery("a rank of the host with the coordinator was killed", here, moment);

  second.signal(SIGTERM);
  const Result left = finish_while_the_job_goes_on(second);
  EXPECT_EQ(left.exit_code, 0) << left.err;
  EXPECT_EQ(launch::count_of(left.err, "this host has left the job in good order"), 1) << left.err;
  wait_for_epoch(2);
  go_to_the_end();
  const Result result = first.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(launch::count_of(result.err, concat("other hosts join with: gradwire-run --join ", address())), 1);
  record_->expect_serial_bits();

  // Played again by ranks of one host.
  const ElasticRecord played(scratch("replayed"), kSteps);
  played.page()->budget = kSteps;
  const Result replay = run({"--elastic", "1:4", "-n", "4", "--replay", record_->journal(), "--membership-log",
                             played.journal(), ELASTIC_WORKER_PROGRAM, std::to_string(kSteps), played.folder()});
  EXPECT_EQ(replay.exit_code, 0) << replay.err;
  EXPECT_EQ(replay.err, "");
  played.expect_replay_of(*record_);
}

TEST_F(ElasticHostsTest, ANewcomerTakesItsStateFromAllHostsThatHoldIt) {
  const std::string said = join_with_state(48);
  EXPECT_NE(said.find(" MB of state from 2 of 2 members in "), std::string::npos) << said;
  for (const std::uint64_t bytes : sent_) {
    EXPECT_GE(bytes, 20'000'000U);
    EXPECT_LE(bytes, 36'000'000U) << "each host sends half, and nothing to the other one";
  }
}

TEST_F(ElasticHostsTest, ANewcomerFollowsAndTakesItsStateFromAllHostsThatHoldIt) {
  const std::string said = join_with_state(48, /*follows=*/true);
  EXPECT_NE(said.find(" MB of state from 2 of 2 members in "), std::string::npos) << said;
  EXPECT_NE(said.find(" while the members trained"), std::string::npos) << said;
  for (const std::uint64_t bytes : sent_) {
    EXPECT_GE(bytes, 20'000'000U);
    EXPECT_LE(bytes, 36'000'000U) << "each host sends half, once, and nothing to the other one";
  }
}

// For the label slow: the links carry 1 Gbit/s. ELASTIC_STATE says how many MB of state the job has.
class ElasticGigabitTest : public ElasticHostsTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Newcomer, ElasticGigabitTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Follows" : "IsWaitedFor"; });

TEST_P(ElasticGigabitTest, ANewcomerOverAGigabitLink) {
  const int megabytes = std::stoi(environment("ELASTIC_STATE").value_or("200"));
  network_->shape("1gbit");
  pace_ = std::chrono::milliseconds(100);
  const std::string said = join_with_state(megabytes, GetParam());
  EXPECT_NE(said.find(" MB of state from 2 of 2 members in "), std::string::npos) << said;
  std::printf(
      "%d MB of state over 1 Gbit/s: the others waited %.2f s, and lost %.2f s in all (a step takes %.1f ms); %s\n",
      megabytes, pause_, lost_.first, lost_.second * 1e3, said.c_str());
}

// When the steps of a member began, by step, in nanoseconds (wide_worker.cc).
using StepTimes = std::map<std::int64_t, std::int64_t>;

// Of all members of a job.
std::vector<StepTimes> step_times(const std::string& folder) {
  std::vector<StepTimes> all;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (!file.path().filename().string().starts_with("times-")) continue;
    std::ifstream lines(file.path());
    StepTimes& times = all.emplace_back();
    for (std::int64_t step = 0, begin = 0, end = 0; lines >> step >> begin >> end;) times[step] = begin;
  }
  return all;
}

// Of the steps that ended before `moment`, but for the first ones of the job, the median, in seconds.
double median_step(const StepTimes& member, std::int64_t moment) {
  constexpr std::int64_t kSettled = 5;
  std::vector<double> steps;
  for (auto step = member.begin(), next = std::next(step); next != member.end(); step = next++) {
    if (next->second < moment && step->first >= kSettled)
      steps.push_back(static_cast<double>(next->second - step->second) / 1e9);
  }
  std::sort(steps.begin(), steps.end());
  return steps.at(steps.size() / 2);
}

std::int64_t last_step_before(const StepTimes& member, std::int64_t moment) {
  std::int64_t last = -1;
  for (const auto& [step, begin] : member) {
    if (begin < moment) last = step;
  }
  return last;
}

struct Loss {
  double lost = 0;         // in seconds
  double longest = 0;      // of the steps, in seconds
  std::int64_t steps = 0;  // how many
};

// What a member whose steps take `median` lost by those that ended after `moment`, up to the step `last`.
Loss loss_of(const StepTimes& member, double median, std::int64_t moment, std::int64_t last) {
  Loss loss;
  for (auto step = member.begin(), next = std::next(step); next != member.end(); step = next++) {
    if (next->second < moment || step->first > last) continue;
    const double seconds = static_cast<double>(next->second - step->second) / 1e9;
    loss.lost += seconds - median;
    loss.longest = std::max(loss.longest, seconds);
    ++loss.steps;
  }
  return loss;
}

// The same with a model that trains at full speed: its steps share the links with what goes to the newcomer. All hosts
// share the cores of this machine, so a job of its own on the third host shows what the newcomer's steps cost by that.
// ELASTIC_HOOK and ELASTIC_STEPS say with which hook, and how many steps; a newcomer must be there before the last one.
TEST_P(ElasticGigabitTest, ANewcomerToAJobAtFullSpeedOverAGigabitLink) {
  network_->shape("1gbit");
  worker_ = WIDE_WORKER_PROGRAM;
  steps_ = std::stoll(environment("ELASTIC_STEPS").value_or("120"));
  record_ = std::make_unique<ElasticRecord>(scratch("wide"), steps_);
  const std::string megabytes = environment("ELASTIC_STATE").value_or("200");
  const std::string hook = environment("ELASTIC_HOOK").value_or("allreduce");
  Words more;
  for (const std::string& setting :
       {concat("WIDE_STATE=", megabytes), concat("ELASTIC_HOOK=", hook), std::string("WIDE_GRADIENTS=20"),
        std::string("WIDE_COMPUTE=200"), std::string("GRADWIRE_LOG=info"), std::string("ELASTIC_FOLLOW=1")}) {
    if (setting.starts_with("ELASTIC_FOLLOW") && !GetParam()) continue;
    more.insert(more.end(), {"--env", setting});
  }
  auto first = begin("1:3", 1, more);
  wait_for_epoch(1);
  auto second = join("1", 1, more);
  wait_for_epoch(2);
  go_to_the_end();
  const auto wait_for_step = [&](std::int64_t step) {
    const std::int64_t begun = now();
    while (record_->page()->newest_step < step && now() - begun < 100e9)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  wait_for_step(steps_ / 6);
  const std::int64_t alone_until = now();
  do_steps_beside(steps_ / 6, more);
  const std::int64_t beside_until = now();
  wait_for_step(record_->page()->newest_step + 3);
  const std::int64_t moment = now();
  auto third = join("2", 1, more, 2);
  EXPECT_TRUE(first.ends_within(std::chrono::minutes(5)));
  for (BackgroundProgram* program : {&third, &second, &first}) EXPECT_EQ(program->finish().exit_code, 0);
  const auto finals = record_->finals();
  EXPECT_EQ(finals.size(), 3U);
  for (const auto& parameters : finals) expect_equal_bits(parameters, finals.front(), "a member against the first");

  const std::vector<StepTimes> times = step_times(record_->folder());
  ASSERT_EQ(times.size(), 3U);
  const auto newcomer = std::find_if(times.begin(), times.end(), [&](const StepTimes& member) {
    return !member.empty() && member.begin()->second > moment;
  });
  ASSERT_NE(newcomer, times.end()) << "the job ended before the newcomer took part";
  for (const StepTimes& member : times) {
    if (&member == &*newcomer) continue;
    const double step = median_step(member, alone_until);
    const Loss beside = loss_of(member, step, alone_until, last_step_before(member, beside_until));
    const Loss loss = loss_of(member, step, moment, newcomer->begin()->first);
    std::printf(
        "%s MB of state over 1 Gbit/s, hook %s: a member lost %.2f s in %lld steps, the longest of %.2f s; a step "
        "takes %.2f s, and %.0f ms more while another job computes on the third host\n",
        megabytes.c_str(), hook.c_str(), loss.lost, static_cast<long long>(loss.steps), loss.longest, step,
        1e3 * beside.lost / static_cast<double>(beside.steps));
  }
  std::printf("%s\n", what_it_got(third.err()).c_str());
}

// Hosts of two ranks, between which the hook runs: what it does there is one call on the newcomer's tape.
TEST_F(ElasticHostsTest, ANewcomerFollowsRanksWhoseHookRunsBetweenHosts) {
  const Words more = {
      "--env", "ELASTIC_HOOK=int8:memory=error_feedback", "--env", "ELASTIC_FOLLOW=1", "--env", "GRADWIRE_LOG=info"};
  auto first = begin("1:5", 2, more);
  wait_for_epoch(2);
  auto second = join("1", 2, more);
  wait_for_epoch(4);
  auto third = join("2", 1, more, 2);
  wait_for_epoch(5);
  go_to_the_end();
  for (BackgroundProgram* program : {&third, &second, &first}) EXPECT_EQ(program->finish().exit_code, 0);
  EXPECT_NE(third.err().find(" while the members trained"), std::string::npos) << third.err();
  EXPECT_EQ(third.err().find("follows no longer"), std::string::npos) << third.err();
  const auto finals = record_->finals();
  EXPECT_EQ(finals.size(), 5U);
  for (const auto& parameters : finals) expect_equal_bits(parameters, finals.front(), "a member against the first");
}

// SIGTERM ends a program that does not handle it yet, and no member is lost with it.
TEST_F(ElasticHostsTest, AHostLeavesBeforeItsRanksHaveJoined) {
  auto first = begin("1:3", 1);
  wait_for_epoch(1);
  const std::string started = scratch("started");
  auto second = join("1", 1, {"sh", "-c", concat("touch ", started, "; exec sleep 1000")});
  while (!std::filesystem::exists(started)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  second.signal(SIGTERM);
  const Result left = second.finish();
  EXPECT_EQ(left.exit_code, 0) << left.err;
  EXPECT_EQ(launch::count_of(left.err, "this host has left the job; SIGTERM ended rank 1 at once"), 1) << left.err;
  go_to_the_end();
  EXPECT_EQ(first.finish().exit_code, 0);
}

TEST_F(ElasticHostsTest, BothHostsWorkUntilTheEndAndTheRanksOfTheFirstMayEndBefore) {
  auto first = begin("1:3", 2);
  wait_for_epoch(2);
  auto second = join("1", 1);
  const Pids members = wait_for_epoch(3);
  for (const std::int64_t pid : on(0, members)) ::kill(static_cast<pid_t>(pid), SIGTERM);  // they leave in good order
  while (wait_for_epoch(1).size() > 1) {                                                   // they may leave one by one
  }
  go_to_the_end();
  const Result result = second.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Result served = first.finish();
  EXPECT_EQ(served.exit_code, 0) << served.err;
  EXPECT_EQ(record_->finals().size(), 1U);
  record_->expect_serial_bits();
}

TEST_F(ElasticHostsTest, AHostWhoseLauncherIsKilledIsOutOfTheNextEpoch) {
  heartbeat_ = "2";
  auto first = begin("1:4", 2);
  wait_for_epoch(2);
  auto second = join("1", 2);
  const Pids members = wait_for_epoch(4);
  const std::int64_t moment = now();
  const std::int64_t there = on(1, members).front();
  for (const pid_t pid : network_->processes(1)) {
    const std::string name = launch::read_file(concat("/proc/", pid, "/comm"));
    if (name.starts_with("gradwire-")) ::kill(pid, SIGKILL);
  }
  second.finish();
  wait_for_epoch(2);
  say_recovery("the launcher of a host was killed", there, moment);
  go_to_the_end();
  const Result result = first.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  record_->expect_serial_bits();
  // Nobody is left on that host to remove them.
  for (const auto& left : std::filesystem::directory_iterator(scratch("tmp"))) std::filesystem::remove_all(left);
}

// Gloo does not notice that a host is gone; the coordinator tells the members.
class ElasticCableTest : public ElasticHostsTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, ElasticCableTest, ::testing::Values("hybrid", "hybrid/gloo"),
                         [](const auto& info) { return std::string(info.param) == "hybrid" ? "hybrid" : "gloo"; });

// The side without the coordinator stops and says so; the other side goes on without it, and takes the host again.
TEST_P(ElasticCableTest, APulledCableStopsTheSideWithoutTheCoordinator) {
  heartbeat_ = "2";
  const Words backend = {"--env", concat("ELASTIC_BACKEND=", GetParam())};
  auto first = begin("1:4", 2, backend);
  wait_for_epoch(2);
  auto second = join("1", 2, backend);
  const Pids members = wait_for_epoch(4);
  const std::int64_t moment = now();
  network_->set_link(1, false);
  const Result cut = second.finish();
  EXPECT_EQ(cut.exit_code, launch::kHostLostExit) << cut.err;
  EXPECT_NE(cut.err.find("has not answered for 2 s"), std::string::npos) << cut.err;
  EXPECT_NE(cut.err.find("a part of the job that is cut off does not train on"), std::string::npos) << cut.err;
  wait_for_epoch(2);
  say_recovery("the cable was pulled", on(0, members).front(), moment);
  network_->set_link(1, true);
  auto again = join("2", 1, backend);
  wait_for_epoch(3);
  go_to_the_end();
  EXPECT_EQ(again.finish().exit_code, 0);
  const Result result = first.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  record_->expect_serial_bits();
}

// The path between two hosts breaks, while both still reach the host with the coordinator.
TEST_F(ElasticHostsTest, OfTwoHostsThatDoNotReachEachOtherTheLastOneLeaves) {
  auto first = begin("1:5", 1);
  wait_for_epoch(1);
  auto second = join("1", 2);
  wait_for_epoch(3);
  auto third = join("2", 2, {"--env", "GRADWIRE_LOG=warn"}, 2);
  const Pids members = wait_for_epoch(5);
  const std::int64_t moment = now();
  network_->cut(1, 2);
  wait_for_epoch(3);
  say_recovery("the path between two hosts was cut", on(0, members).front(), moment);
  const Result left = third.finish();
  EXPECT_EQ(left.exit_code, 0) << left.err;
  for (const char* said : {"this member leaves, because it and member ", " do not reach each other",
                           "gradwire-run: this host has left the job: member ", " had to leave, because it and member ",
                           "; bring it back with --join when the path between the two is mended"})
    EXPECT_NE(left.err.find(said), std::string::npos) << said << left.err;
  go_to_the_end();
  EXPECT_EQ(second.finish().exit_code, 0);
  const Result result = first.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find(" do not reach each other; the job goes on without members "), std::string::npos)
      << result.err;
  record_->expect_serial_bits();
}

// At random moments, now and then two ranks one shortly after the other, so that the second dies on its way into the
// next epoch.
TEST_F(ElasticHostsTest, RanksThatAreKilledAtRandomMoments) {
  constexpr int kKills = 12;
  std::mt19937 random(7);
  auto first = begin("1:4", 2);
  wait_for_epoch(2);
  auto second = join("1", 2);
  std::vector<std::pair<std::int64_t, std::int64_t>> killed;
  const auto wait_up_to = [&](unsigned milliseconds) {
    const auto moment = ElasticRecord::Clock::now() + std::chrono::microseconds(random() % (milliseconds * 1000));
    while (ElasticRecord::Clock::now() < moment) {
    }
  };
  for (int kill = 0; kill < kKills; ++kill) {
    Pids members = wait_for_epoch(4);
    if (members.size() != 4) return;
    std::shuffle(members.begin(), members.end(), random);
    record_->page()->budget += 30;
    wait_up_to(5);
    const std::int64_t moment = now();
    ::kill(static_cast<pid_t>(members[0]), SIGKILL);
    if (kill % 3 == 2) {
      wait_up_to(120);
      ::kill(static_cast<pid_t>(members[1]), SIGKILL);
    } else {
      killed.emplace_back(members[0], moment);
    }
    record_->page()->budget += 30;
  }
  wait_for_epoch(4);
  go_to_the_end();
  EXPECT_EQ(second.finish().exit_code, 0);
  const Result result = first.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  record_->expect_serial_bits();
  std::vector<double> times;
  for (const auto& [pid, moment] : killed) {
    if (const auto time = record_->recovery_ms(pid, moment)) times.push_back(*time);
  }
  std::sort(times.begin(), times.end());
  ASSERT_FALSE(times.empty());
  std::printf(
      "%zu kills of single ranks on two hosts, until the last of the others began its next step: median %.0f ms, "
      "longest %.0f ms\n",
      times.size(), times[times.size() / 2], times.back());
}

// Between hosts, the first rank of each host keeps a hook's memory. When it dies, another rank takes its place: the
// memory has to reach that rank, or replicas come apart.
TEST_F(ElasticHostsTest, AHookWithMemoryKeepsTheReplicasAlikeWhenTheFirstRankOfAHostDies) {
  const Words hook = {"--env", "ELASTIC_HOOK=int8:memory=ef21"};
  auto first = begin("1:4", 2, hook);
  wait_for_epoch(2);
  auto second = join("1", 2, hook);
  for (const int host : {1, 0, 1, 0}) {
    const Pids members = wait_for_epoch(4);
    if (members.size() != 4) return;
    record_->page()->budget += 20;
    // Of two, one is the first of its host; the other one becomes it.
    for (const std::int64_t pid : on(host, members)) {
      ::kill(static_cast<pid_t>(pid), SIGKILL);
      break;
    }
    record_->page()->budget += 20;
  }
  wait_for_epoch(4);
  go_to_the_end();
  EXPECT_EQ(second.finish().exit_code, 0) << second.err();
  const Result result = first.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto finals = record_->finals();
  ASSERT_EQ(finals.size(), 4U);
  for (const auto& parameters : finals) expect_equal_bits(parameters, finals.front(), "a member against the first");
}

TEST_F(ElasticHostsTest, WithoutTheHostThatBeganItTheJobEndsEverywhere) {
  auto first = begin("1:4", 1);
  wait_for_epoch(1);
  auto second = join("1", 1);
  wait_for_epoch(2);
  first.signal(SIGINT);
  EXPECT_EQ(first.finish().exit_code, 128 + SIGINT);
  const Result result = second.finish();
  EXPECT_EQ(result.exit_code, launch::kHostLostExit);
  EXPECT_NE(result.err.find("has ended: interrupted by SIGINT"), std::string::npos) << result.err;
}

// Without the store all ranks of the other host die again and again, once their patience has ended, which says nothing
// of them.
TEST_F(ElasticHostsTest, RanksThatDieBecauseTheStoreIsGoneDoNotHideThatTheStoreIsGone) {
  heartbeat_ = "12";
  steps_ = 2 * kSteps;  // the job must not end before its ranks ask the store
  record_ = std::make_unique<ElasticRecord>(scratch("long"), steps_);
  auto first = begin("1:4", 1);
  wait_for_epoch(1);
  auto second = join("1", 2, {"--deaths-per-minute", "0", "--env", "ELASTIC_TIMEOUT=6000"});
  wait_for_epoch(3);
  for (const pid_t pid : network_->processes(0)) {
    if (launch::read_file(concat("/proc/", pid, "/comm")).starts_with("gradwire-")) ::kill(pid, SIGKILL);
  }
  go_to_the_end();  // in a step that waits for the test, nobody asks the store
  first.finish();
  const Result result = second.finish();
  EXPECT_EQ(result.exit_code, launch::kHostLostExit) << result.err;
  EXPECT_NE(result.err.find("the store did not come back within 6 s"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("has not answered for 12 s"), std::string::npos) << result.err;
  for (const auto& left : std::filesystem::directory_iterator(scratch("tmp"))) std::filesystem::remove_all(left);
}

TEST_F(ElasticHostsTest, OnlyAHostWithTheSecretJoins) {
  if (!test_support::has_secrets()) GTEST_SKIP() << test_support::kNoSecrets;
  const std::string secret = secret_file("right");
  auto first = begin("1:3", 1, {"--secret-file", secret});
  wait_for_epoch(1);
  const Result none = join("none", 1).finish();
  EXPECT_EQ(none.exit_code, launch::kHostsFailedExit);
  EXPECT_NE(none.err.find("this host cannot join the job at"), std::string::npos) << none.err;
  const Result wrong = join("wrong", 1, {"--secret-file", secret_file("wrong")}).finish();
  EXPECT_EQ(wrong.exit_code, launch::kHostsFailedExit);
  EXPECT_NE(wrong.err.find("the server refused this program's secret"), std::string::npos) << wrong.err;
  auto second = join("1", 1, {"--secret-file", secret});
  wait_for_epoch(2);
  go_to_the_end();
  EXPECT_EQ(second.finish().exit_code, 0);
  const Result served = first.finish();
  EXPECT_EQ(served.exit_code, 0);
  const std::string said = concat("gradwire-run: a client at ", network_->address(1), " was refused: ");
  EXPECT_EQ(launch::count_of(served.err, said), 1) << served.err;
  record_->expect_serial_bits();
}

TEST_F(ElasticHostsTest, WithoutAJobThereAHostDoesNotWaitForever) {
  const Result result = join("1", 1, {"--rendezvous-timeout", "1"}).finish();
  EXPECT_EQ(result.exit_code, launch::kHostsFailedExit);
  EXPECT_NE(result.err.find("no elastic job was found at"), std::string::npos) << result.err;
}

// No host that trains has to stay: the job is held by a launcher without ranks. That one may be killed again and again,
// with its store; each time it goes on from its journal, and no process of a rank ends.
TEST_F(ElasticHostsTest, TheLauncherThatHoldsTheJobMayBeKilledAndStartedAgain) {
  heartbeat_ = "30";
  auto server = std::make_unique<BackgroundProgram>(serve("1:4", 2));
  auto first = join("1", 1);
  auto second = join("2", 1, {}, 2);
  Pids members = wait_for_epoch(2);
  for (int kill = 0; kill < 3; ++kill) {
    const std::int64_t moment = now();
    server->signal(SIGKILL);
    server->finish();
    server = std::make_unique<BackgroundProgram>(serve("1:4", 2));
    EXPECT_EQ(wait_for_epoch(2), members);
    say_recovery("the launcher that holds the job was killed and started again", members.front(), moment);
  }
  ::kill(static_cast<pid_t>(members.front()), SIGKILL);
  members = wait_for_epoch(2);
  // The host on which the job began leaves.
  first.signal(SIGTERM);
  wait_for_epoch(1);
  EXPECT_EQ(first.finish().exit_code, 0);
  auto third = join("3", 1);
  wait_for_epoch(2);
  go_to_the_end();
  EXPECT_EQ(second.finish().exit_code, 0);
  EXPECT_EQ(third.finish().exit_code, 0);
  const Result held = server->finish();
  EXPECT_EQ(held.exit_code, 0) << held.err;
  EXPECT_NE(held.err.find("goes on from its journal"), std::string::npos) << held.err;
  EXPECT_NE(held.err.find("its last step was counted, and all hosts have left"), std::string::npos) << held.err;
  record_->expect_serial_bits();
  auto again = serve("1:4", 2);
  const Result refused = again.finish();
  EXPECT_EQ(refused.exit_code, launch::kUsageExit);
  EXPECT_NE(refused.err.find("has ended"), std::string::npos) << refused.err;
}

TEST_F(ElasticHostsTest, HostsStopWhenTheLauncherThatHoldsTheJobDoesNotComeBack) {
  heartbeat_ = "2";
  auto server = serve("1:2", 1);
  auto host = join("1", 1);
  wait_for_epoch(1);
  server.signal(SIGKILL);
  server.finish();
  const Result stopped = host.finish();
  EXPECT_EQ(stopped.exit_code, launch::kHostLostExit) << stopped.err;
  EXPECT_EQ(launch::count_of(stopped.err, "does not answer; this host's ranks wait up to 2 s for it"), 1)
      << stopped.err;
  EXPECT_EQ(launch::count_of(stopped.err, "has not answered for 2 s"), 1) << stopped.err;
}

TEST_F(ElasticHostsTest, TheEndOfTheLauncherThatHoldsTheJobEndsTheJob) {
  auto server = serve("1:2", 1);
  auto host = join("1", 1);
  wait_for_epoch(1);
  server.signal(SIGTERM);
  const Result ended = server.finish();
  EXPECT_EQ(ended.exit_code, 128 + SIGTERM) << ended.err;
  const Result stopped = host.finish();
  EXPECT_EQ(stopped.exit_code, launch::kHostLostExit) << stopped.err;
  EXPECT_NE(stopped.err.find("gradwire-run --serve was ended by SIGTERM"), std::string::npos) << stopped.err;
}

}  // namespace
}  // namespace gradwire::testing
