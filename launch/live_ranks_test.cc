// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/live_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>

#include "gradwire/base/strings.h"

namespace gradwire::launch::live_ranks_test {
namespace {

constexpr std::int64_t kMilli = 1'000'000;

// A rank whose steps each take 100 ms, of which it computes `compute` ms; as long a pause lies before each step.
observe::RunSums run(std::uint64_t steps, std::int64_t compute, std::optional<double> loss = std::nullopt) {
  observe::RunSums sums;
  const auto count = static_cast<std::int64_t>(steps);
  if (steps > 0) sums.begin = 7 * kMilli;
  sums.end = sums.begin + 200 * kMilli * count;
  sums.totals.steps = steps;
  sums.totals.whole = 100 * kMilli * count;
  sums.totals.split = {compute * kMilli * count, (100 - compute) * kMilli * count, 0};
  sums.totals.sent = 1000 * steps;
  sums.totals.hook = 10 * kMilli * count;
  sums.phase = observe::StepPhase::backward;
  sums.phase_begin = 5;
  sums.loss = loss;
  return sums;
}

LiveRank live(int rank, std::int64_t compute) { return live_rank(rank, run(10, compute), run(20, compute)); }

TEST(LiveRank, ShowsWhatHappenedBetweenTwoLooks) {
  observe::RunSums now = run(20, 40);
  now.totals.sent = 10 * 1000 + 10 * 3000;
  const LiveRank rank = live_rank(3, run(10, 90), now);
  EXPECT_DOUBLE_EQ(rank.steps_per_second, 5);
  EXPECT_DOUBLE_EQ(rank.step, 0.1);
  // 10 steps in which it computed 20 * 40 - 10 * 90 ms.
  EXPECT_NEAR(rank.compute, (800 - 900) * 1e-3 / 10, 1e-12);
  EXPECT_EQ(rank.sent, 3000);
  EXPECT_TRUE(rank.any_steps);
}

TEST(LiveRank, WithoutAnEarlierLookIsTheMeanOfTheRun) {
  const LiveRank rank = live_rank(0, std::nullopt, run(10, 60));
  EXPECT_DOUBLE_EQ(rank.steps_per_second, 5);
  EXPECT_DOUBLE_EQ(rank.compute, 0.06);
}

// Of PyTorch's DistributedDataParallel neither buckets nor hooks are known.
observe::RunSums run_without_buckets(std::uint64_t steps) {
  observe::RunSums sums = run(steps, 50);
  sums.totals.sent = 0;
  sums.totals.hook = 0;
  return sums;
}

TEST(LiveRank, WithoutBucketsNothingIsSaidOfWhatIsSentForThem) {
  observe::RunSums now = run_without_buckets(20);
  now.phase = observe::StepPhase::wait;
  const LiveRank rank = live_rank(0, run_without_buckets(10), now);
  EXPECT_EQ(rank.sent, std::nullopt);
  EXPECT_EQ(line_of_job({rank}), "step 20, 5.00 steps/s, 50% waiting");
  // Of the ranks of which it is known, the mean.
  EXPECT_EQ(line_of_job({rank, live(1, 50)}), "step 20, 5.00 steps/s, 50% waiting, 1 kB sent a step");
  const std::string table = table_of_ranks({rank}, 7, 200, 100);
  EXPECT_NE(table.find("50%            -  waiting for averages\n"), std::string::npos) << table;
  EXPECT_NE(page_of_ranks({rank}, 7).find("<td>-</td><td>waiting for averages</td>"), std::string::npos);
  const std::string metrics = metrics_of_ranks({rank});
  for (const char* name : {"gradwire_sent_bytes_total", "gradwire_hook_seconds_total"}) {
    EXPECT_EQ(metrics.find(concat(name, "{")), std::string::npos) << metrics;
    EXPECT_NE(metrics_of_ranks({live(0, 50)}).find(concat(name, "{")), std::string::npos) << name;
  }
}

TEST(LiveRank, WithoutAStepThereIsNothingToSay) {
  EXPECT_FALSE(live_rank(0, std::nullopt, run(0, 50)).any_steps);
  EXPECT_FALSE(live_rank(0, run(5, 50), run(5, 50)).any_steps);
}

TEST(SlowRanks, AreThoseThatComputeLongerThanTheMedian) {
  EXPECT_EQ(slow_ranks({live(0, 50), live(1, 95), live(2, 52)}), std::vector<int>{1});
  EXPECT_EQ(slow_ranks({live(0, 50), live(1, 95)}), std::vector<int>{1});
  EXPECT_EQ(slow_ranks({live(0, 90), live(1, 95), live(2, 88)}), std::vector<int>());
  EXPECT_EQ(slow_ranks({live(0, 90)}), std::vector<int>());
  EXPECT_EQ(slow_ranks({live(0, 90), LiveRank{.rank = 1}}), std::vector<int>());
}

TEST(LineOfJob, SaysStepSpeedWaitsBytesLossAndWhoIsSlow) {
  std::vector<LiveRank> ranks{live(0, 50), live(1, 98), live(2, 50)};
  ranks[0].now->loss = 2.25;
  EXPECT_EQ(line_of_job(ranks),
            "step 20, 5.00 steps/s, 34% waiting, 1 kB sent a step, loss 2.25; the others wait for rank 1");
  // A loss that is not finite is told before one that is.
  for (const double nan : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::quiet_NaN()}) {
    ranks[2].now->loss = nan;
    EXPECT_NE(line_of_job(ranks).find(", loss nan;"), std::string::npos) << line_of_job(ranks);
  }
  ranks[0].now->loss = -std::numeric_limits<double>::infinity();
  EXPECT_NE(line_of_job(ranks).find(", loss -inf;"), std::string::npos) << line_of_job(ranks);
  EXPECT_EQ(line_of_job({LiveRank{}}), "no step has ended yet");
  EXPECT_EQ(line_of_job({live_rank(0, run(5, 50), run(5, 50))}), "step 5, and no step has ended lately");
  // Ranks that have not begun send nothing, and do not make it less for the others.
  EXPECT_EQ(line_of_job({live(0, 50), LiveRank{.rank = 1}, live(2, 50), live_rank(3, run(20, 50), run(20, 50))}),
            "step 20, 5.00 steps/s, 50% waiting, 1 kB sent a step");
}

TEST(TableOfRanks, HasALineForEachRankWithinTheTerminal) {
  std::vector<LiveRank> ranks;
  for (int rank = 0; rank < 40; ++rank) ranks.push_back(live(rank, 50));
  ranks[1].now->phase_begin = 5 * kMilli;
  const auto lines_of = [](const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  };
  const auto whole = lines_of(table_of_ranks(ranks, 7'000'000'000 + 5 * kMilli, 200, 100));
  ASSERT_EQ(whole.size(), 42U);
  EXPECT_NE(whole[3].find("backward for 7 s"), std::string::npos) << whole[3];
  const auto clipped = lines_of(table_of_ranks(ranks, 7, 30, 12));
  EXPECT_EQ(clipped.size(), 12U);
  EXPECT_EQ(clipped.back(), "and 31 more ranks");
  for (const std::string& line : clipped) EXPECT_LE(line.size(), 30U);
}

TEST(PageOfRanks, LoadsNothingElseAndNamesTheSlow) {
  const std::string page = page_of_ranks({live(0, 50), live(1, 98), live(2, 50)}, 7);
  EXPECT_EQ(page.find("http://"), std::string::npos);
  EXPECT_EQ(page.find("https://"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(page.find("<tr class=\"slow\"><td>1</td>"), std::string::npos) << page;
  EXPECT_EQ(page.find("<tr class=\"slow\"><td>0</td>"), std::string::npos);
}

TEST(MetricsOfRanks, HaveASampleForEachRankThatRecords) {
  const std::string text = metrics_of_ranks({live_rank(4, std::nullopt, run(20, 50, 1.5)), LiveRank{.rank = 5}});
  EXPECT_NE(text.find("# TYPE gradwire_steps_total counter\ngradwire_steps_total{rank=\"4\"} 20\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("gradwire_loss{rank=\"4\"} 1.5\n"), std::string::npos);
  EXPECT_EQ(text.find("rank=\"5\""), std::string::npos);
  EXPECT_EQ(metrics_of_ranks({live(0, 50)}).find("gradwire_loss{"), std::string::npos) << "no loss was told";
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [loss, said] : std::vector<std::pair<double, const char*>>{
           {kNaN, "NaN"}, {-kNaN, "NaN"}, {kInfinity, "+Inf"}, {-kInfinity, "-Inf"}}) {
    EXPECT_NE(metrics_of_ranks({live_rank(0, std::nullopt, run(20, 50, loss))})
                  .find(concat("gradwire_loss{rank=\"0\"} ", said, "\n")),
              std::string::npos)
        << said;
  }
}

}  // namespace
}  // namespace gradwire::launch::live_ranks_test
