// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_environment.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gradwire::launch {
namespace {

std::vector<std::string> values(const std::vector<std::string>& environment, const std::string& name) {
  std::vector<std::string> found;
  for (const auto& entry : environment) {
    if (entry.starts_with(name + "=")) found.push_back(entry.substr(name.size() + 1));
  }
  return found;
}

TEST(RankEnvironment, ReplacesWhatIsInheritedAndKeepsTheRest) {
  const char* inherited[] = {"RANK=9", "RANKING=kept", "HOME=/h", "WORLD_SIZE=100", "A=1", "NOVALUE", nullptr};
  JobVariables job;
  job.ranks = job.world = 4;
  job.rendezvous = "/t/store";
  job.master_port = 1234;
  job.threads = 3;
  job.extra = {{"A", "2"}, {"B", "x=y"}, {"A", "3"}, {"MASTER_PORT", "99"}};
  const auto environment = rank_environment(job, 2, inherited);
  using Values = std::vector<std::string>;
  EXPECT_EQ(values(environment, "RANK"), Values{"2"});
  EXPECT_EQ(values(environment, "RANKING"), Values{"kept"});
  EXPECT_EQ(values(environment, "WORLD_SIZE"), Values{"4"});
  EXPECT_EQ(values(environment, "HOME"), Values{"/h"});
  EXPECT_EQ(values(environment, "A"), Values{"3"}) << "the last --env wins";
  EXPECT_EQ(values(environment, "B"), Values{"x=y"});
  EXPECT_EQ(values(environment, "MASTER_PORT"), Values{"99"}) << "--env goes over the launcher's own";
  EXPECT_EQ(values(environment, "OMP_NUM_THREADS"), Values{"3"});
  EXPECT_EQ(std::count(environment.begin(), environment.end(), "NOVALUE"), 1);
}

TEST(RankEnvironment, ThreadsThatTheUserChoseStay) {
  const char* inherited[] = {"OMP_NUM_THREADS=8", nullptr};
  EXPECT_EQ(values(rank_environment(JobVariables(), 0, inherited), "OMP_NUM_THREADS"), std::vector<std::string>{"8"});
}

TEST(RankEnvironment, ARankOnAnotherHostCountsFromItsHostsFirst) {
  JobVariables job;
  job.ranks = 2;
  job.first_rank = 3;
  job.world = 8;
  job.node = 1;
  job.nodes = 3;
  job.attempt = 2;
  job.master_address = "10.0.0.1";
  job.secret_file = "/t/secret";
  const char* inherited[] = {"GRADWIRE_SECRET_FILE=/other", nullptr};
  const auto environment = rank_environment(job, 1, inherited);
  using Values = std::vector<std::string>;
  EXPECT_EQ(values(environment, "RANK"), Values{"4"});
  EXPECT_EQ(values(environment, "LOCAL_RANK"), Values{"1"});
  EXPECT_EQ(values(environment, "WORLD_SIZE"), Values{"8"});
  EXPECT_EQ(values(environment, "LOCAL_WORLD_SIZE"), Values{"2"});
  EXPECT_EQ(values(environment, "GROUP_RANK"), Values{"1"});
  EXPECT_EQ(values(environment, "GROUP_WORLD_SIZE"), Values{"3"});
  EXPECT_EQ(values(environment, "MASTER_ADDR"), Values{"10.0.0.1"});
  EXPECT_EQ(values(environment, "GRADWIRE_ATTEMPT"), Values{"2"});
  EXPECT_EQ(values(environment, "GRADWIRE_SECRET_FILE"), Values{"/t/secret"});
}

TEST(RankEnvironment, ARankBelongsToNoElasticJobButItsOwn) {
  const char* inherited[] = {"GRADWIRE_ELASTIC=/outer", "GRADWIRE_ELASTIC_HOST=2", nullptr};
  using Values = std::vector<std::string>;
  JobVariables job;
  EXPECT_EQ(values(rank_environment(job, 0, inherited), "GRADWIRE_ELASTIC"), Values{});
  EXPECT_EQ(values(rank_environment(job, 0, inherited), "GRADWIRE_ELASTIC_HOST"), Values{});
  job.elastic = "/own";
  EXPECT_EQ(values(rank_environment(job, 0, inherited), "GRADWIRE_ELASTIC"), Values{"/own"});
  EXPECT_EQ(values(rank_environment(job, 0, inherited), "GRADWIRE_ELASTIC_HOST"), Values{});
}

TEST(RankEnvironment, ARankHasTheRunOfItsLauncherOrNone) {
  const char* inherited[] = {"GRADWIRE_RUN_ID=outer", nullptr};
  using Values = std::vector<std::string>;
  JobVariables job;
  EXPECT_EQ(values(rank_environment(job, 0, inherited), "GRADWIRE_RUN_ID"), Values{});
  job.run_id = "own";
  EXPECT_EQ(values(rank_environment(job, 0, inherited), "GRADWIRE_RUN_ID"), Values{"own"});
}

TEST(RankEnvironment, JobIdsDiffer) { EXPECT_NE(random_job_id(), random_job_id()); }

}  // namespace
}  // namespace gradwire::launch
