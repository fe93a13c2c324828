// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/live_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "gradwire/base/strings.h"

namespace gradwire::launch::live_source_test {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t nanoseconds_of(Deadline::Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// A line without its end, as the launcher that started the other one gets it.
std::string without_end(const std::string& line) { return line.substr(0, line.size() - 1); }

observe::RunSums some_sums() {
  observe::RunSums sums;
  sums.rank = 1;
  sums.world = 4;
  sums.opened = 5;
  sums.phase = observe::StepPhase::wait;
  sums.phase_begin = 90 * kSecond;
  sums.begin = 10 * kSecond;
  sums.end = 80 * kSecond;
  sums.totals = {.steps = 6,
                 .whole = 70,
                 .forward = 8,
                 .backward = 9,
                 .wait = 10,
                 .rest = 11,
                 .hook = 12,
                 .split = {13, 14, 15},
                 .sent = std::uint64_t{1} << 60,
                 .call_bytes = 17};
  sums.loss = 0.1;
  return sums;
}

TEST(HostReports, KeepWhatALauncherReports) {
  HostReports reports;
  reports.follow(0, 4);
  EXPECT_FALSE(reports.look(2));
  // The other host's clock says 100 s now; a moment there is as long ago here.
  const observe::RunSums sent = some_sums();
  const auto before = Deadline::Clock::now();
  EXPECT_EQ(reports.take(without_end(report_line(2, sent, 100 * kSecond))), std::nullopt);
  const auto after = Deadline::Clock::now();
  EXPECT_FALSE(reports.look(1));
  const auto look = reports.look(2);
  ASSERT_TRUE(look);
  EXPECT_GE(look->time, before);
  EXPECT_LE(look->time, after);
  const observe::RunSums& got = look->sums;
  const std::int64_t now = nanoseconds_of(look->time);
  EXPECT_EQ(now - got.phase_begin, 10 * kSecond);
  EXPECT_EQ(now - got.begin, 90 * kSecond);
  EXPECT_EQ(now - got.end, 20 * kSecond);
  EXPECT_EQ(got.world, 4);
  EXPECT_EQ(got.opened, 5) << "it only tells two processes apart";
  EXPECT_EQ(got.phase, sent.phase);
  EXPECT_EQ(got.totals.steps, sent.totals.steps);
  EXPECT_EQ(got.totals.whole, sent.totals.whole);
  EXPECT_EQ(got.totals.forward, sent.totals.forward);
  EXPECT_EQ(got.totals.backward, sent.totals.backward);
  EXPECT_EQ(got.totals.wait, sent.totals.wait);
  EXPECT_EQ(got.totals.rest, sent.totals.rest);
  EXPECT_EQ(got.totals.hook, sent.totals.hook);
  EXPECT_EQ(got.totals.split.compute, 13);
  EXPECT_EQ(got.totals.split.communication, 14);
  EXPECT_EQ(got.totals.split.hook, 15);
  EXPECT_EQ(got.totals.sent, sent.totals.sent);
  EXPECT_EQ(got.totals.call_bytes, sent.totals.call_bytes);
  EXPECT_EQ(got.loss, 0.1);
}

TEST(HostReports, ATimeThatDidNotComeStaysZeroAndALossIsWhatWasTold) {
  HostReports reports;
  reports.follow(0, 1);
  observe::RunSums sums;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const std::optional<double> loss :
       {std::optional<double>(), std::optional(0.5), std::optional(kInfinity), std::optional(-kInfinity),
        std::optional(std::numeric_limits<double>::quiet_NaN())}) {
    sums.loss = loss;
    reports.take(without_end(report_line(0, sums, 7)));
    const auto look = reports.look(0);
    ASSERT_TRUE(look);
    EXPECT_EQ(look->sums.phase_begin, 0);
    EXPECT_EQ(look->sums.end, 0);
    if (loss && std::isnan(*loss)) {
      EXPECT_TRUE(look->sums.loss && std::isnan(*look->sums.loss));
    } else {
      EXPECT_EQ(look->sums.loss, loss);
    }
  }
}

TEST(HostReports, LeaveTheLinesOfProgramsAsTheyAre) {
  HostReports reports;
  reports.follow(0, 1);
  const std::string report = without_end(report_line(0, some_sums(), 1));
  const std::string cut = report.substr(0, report.size() - 1);
  const std::string other = "\x1egradwire-run report {\"rank\": 0}";
  for (const std::string& line : {std::string("a line"), std::string(), std::string("\x1e"), cut, other})
    EXPECT_EQ(reports.take(line), line);
  EXPECT_FALSE(reports.look(0));
  // A program that has not ended its line, with --no-prefix.
  EXPECT_EQ(reports.take("loading 3 of 5" + report), "loading 3 of 5");
  EXPECT_TRUE(reports.look(0));
}

TEST(HostReports, RanksThatTheJobDoesNotHaveAreNotKept) {
  HostReports reports;
  reports.follow(0, 2);
  for (const int rank : {-1, 2, 1000000})
    EXPECT_EQ(reports.take(without_end(report_line(rank, some_sums(), 1))), std::nullopt);
  EXPECT_FALSE(reports.look(0));
  EXPECT_FALSE(reports.look(1));
}

TEST(HostReports, AReportIsOneShortLine) {
  observe::RunSums sums = some_sums();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  sums.phase_begin = sums.begin = sums.end = sums.opened = kMost;
  sums.totals = {.steps = std::numeric_limits<std::uint64_t>::max(),
                 .whole = kMost,
                 .forward = kMost,
                 .backward = kMost,
                 .wait = kMost,
                 .rest = kMost,
                 .hook = kMost,
                 .split = {kMost, kMost, kMost},
                 .sent = std::numeric_limits<std::uint64_t>::max(),
                 .call_bytes = std::numeric_limits<std::uint64_t>::max()};
  sums.loss = -1.2345678901234567e-300;
  const std::string line = report_line(1'000'000, sums, kMost);
  EXPECT_LE(line.size(), 1024U);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
}

// The rates are those of the steps, not of the ways that the reports take.
TEST(HostReports, TheTimeBetweenTwoReportsIsThatBetweenTheirMaking) {
  HostReports reports;
  reports.follow(0, 4);
  observe::RunSums sums = some_sums();
  reports.take(without_end(report_line(1, sums, 100 * kSecond)));
  const auto first = reports.look(1)->time;
  // Made 5 s later there, but here at once: the first one has taken its time.
  reports.take(without_end(report_line(1, sums, 105 * kSecond)));
  const auto second = reports.look(1)->time;
  EXPECT_LE(second, Deadline::Clock::now());
  // The next takes longer than the second, which is known to be possible in less.
  reports.take(without_end(report_line(1, sums, 104 * kSecond)));
  EXPECT_EQ(second - reports.look(1)->time, std::chrono::seconds(1));
  EXPECT_LT(first, second + std::chrono::seconds(1));
}

// Stands for the files of this host's ranks: rank r has taken 100 + r steps.
class SomeFiles final : public LiveSource {
 public:
  void follow(int first_rank, int count) override {
    first_rank_ = first_rank;
    count_ = count;
  }
  std::optional<LiveLook> look(std::size_t index) override {
    EXPECT_LT(index, static_cast<std::size_t>(count_));
    LiveLook look{some_sums(), Deadline::Clock::now()};
    look.sums.totals.steps = 100 + first_rank_ + static_cast<std::int64_t>(index);
    return look;
  }

 private:
  int first_rank_ = 0;
  int count_ = 0;
};

TEST(NodeReports, HaveTheRanksOfThisNodeAndWhatTheOthersHaveTold) {
  std::vector<std::string> told(3);
  NodeReports reports(std::make_unique<SomeFiles>(), 2, [&] { return told; });
  reports.follow(0, 5);
  reports.refresh();
  EXPECT_EQ(reports.look(1)->sums.totals.steps, 101);
  EXPECT_FALSE(reports.look(2));
  observe::RunSums sums = some_sums();
  told[1] = report_line(2, sums, kSecond);
  sums.totals.steps = 7;
  told[1] += report_line(3, sums, kSecond);
  told[2] = "nonsense\n" + report_line(4, sums, kSecond) + report_line(9, sums, kSecond) + "no end";
  reports.refresh();
  EXPECT_EQ(reports.look(2)->sums.totals.steps, 6);
  EXPECT_EQ(reports.look(3)->sums.totals.steps, 7);
  EXPECT_EQ(reports.look(4)->sums.totals.steps, 7);
  // What a node has told before says nothing of now.
  const auto before = reports.look(3)->time;
  reports.refresh();
  EXPECT_EQ(reports.look(3)->time, before);
  reports.follow(0, 5);
  EXPECT_FALSE(reports.look(3)) << "another attempt";
}

}  // namespace
}  // namespace gradwire::launch::live_source_test
