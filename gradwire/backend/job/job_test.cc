// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A program without torch becomes a rank by what its launcher has set, alone or with others, again and again.
#include "gradwire/backend/job/job.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "gradwire/backend/job/find_rendezvous.h"
#include "gradwire/base/error.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/tcp_store.h"
#include "tests/support/ranks.h"
#include "tests/support/secrets.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::job_test {
namespace {

using test_support::run_ranks;
using test_support::TemporaryFolder;

constexpr Milliseconds kLong = std::chrono::minutes(2);

// Sets variables for the life of a test's child process; a rank is a process of its own.
void launched_as(int rank, int size, const std::string& rendezvous) {
  ::setenv("RANK", concat(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", concat(size).c_str(), 1);
  ::setenv("GRADWIRE_RENDEZVOUS", rendezvous.c_str(), 1);
}

float sum_of_ranks(Job& job) {
  auto mine = static_cast<float>(job.rank() + 1);
  job.channel().all_reduce(&mine, 1, DType::f32, ReduceOp::sum(), {});
  return mine;
}

TEST(Job, RanksOfGradwireRunMeetAgainAndAgain) {
  const TemporaryFolder folder;
  run_ranks("shm", 3, [&](int rank, const std::shared_ptr<Store>&) {
    launched_as(rank, 3, folder.path() + "/store");
    for (int round = 0; round < 3; ++round) {
      Job job({.timeout = kLong});
      EXPECT_EQ(job.rank(), rank);
      EXPECT_EQ(job.size(), 3);
      EXPECT_EQ(job.backend_name(), "shm");
      EXPECT_EQ(sum_of_ranks(job), 6);
      if (rank == 0) job.store()->set("round", concat(round));
      EXPECT_EQ(job.store()->get("round"), concat(round)) << "the keys of an earlier job are not seen";
      job.channel().barrier({});
    }
  });
}

TEST(Job, RanksOfOtherHostsUseUcx) {
  const TemporaryFolder folder;
  run_ranks("shm", 2, [&](int rank, const std::shared_ptr<Store>&) {
    launched_as(rank, 2, "file://" + folder.path() + "/store");
    ::setenv("GRADWIRE_HOST", rank == 0 ? "a" : "b", 1);
    try {
      Job job({.timeout = kLong});
      EXPECT_EQ(job.backend_name(), "ucx");
      EXPECT_EQ(sum_of_ranks(job), 3);
    } catch (const UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find("UCX"), std::string::npos) << error.what();
    }
  });
}

TEST(Job, RanksThatAreThreadsShareAStore) {
  run_ranks("threads", 2, [](int rank, const std::shared_ptr<Store>& store) {
    Job job({.backend = "threads", .store = store, .rank = rank, .world_size = 2, .timeout = kLong});
    EXPECT_EQ(sum_of_ranks(job), 3);
  });
}

// Rank 0 ends while rank 1 waits for the others: rank 1 looks for rank 0's next job, and takes no longer in all than it
// may.
TEST(Job, ALateRankWithAnotherSecretIsToldOfByTheServer) {
  if (!test_support::has_secrets()) GTEST_SKIP() << test_support::kNoSecrets;
  JobOptions options;
  options.method = concat("tcp://127.0.0.1:", TcpStore({.is_server = true}).port());
  options.world_size = 2;
  run_ranks("processes", 2, [&](int rank, const std::shared_ptr<Store>&) {
    ::setenv("GRADWIRE_SECRET", rank == 0 ? "the job's" : "another", 1);
    options.rank = rank;
    options.timeout = rank == 0 ? std::chrono::seconds(3) : kLong;
    try {
      Job job(options);
      ADD_FAILURE() << "rank " << rank << " came in";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(rank, 0) << error.what();
      EXPECT_EQ(error.peers(), std::vector<int>{1}) << error.what();
      EXPECT_NE(std::string(error.what()).find("a client at 127.0.0.1 was refused: its secret"), std::string::npos)
          << error.what();
    } catch (const StoreError& error) {
      EXPECT_EQ(rank, 1) << error.what();
    }
  });
}

TEST(Job, LookingForTheNextServerTakesWhatIsLeftOfTheTime) {
  TcpStoreOptions served;
  served.port = 0;
  served.is_server = true;
  auto server = std::make_unique<TcpStore>(served);
  JobOptions options;
  options.method = concat("tcp://127.0.0.1:", server->port());
  options.rank = 1;
  options.world_size = 2;
  options.timeout = std::chrono::seconds(8);
  std::thread ending([&] {
    const std::string came = "gradwire//g0/rank/1";
    server->wait(std::span(&came, 1), kLong);
    const std::string never = "never";
    EXPECT_THROW(server->wait(std::span(&never, 1), std::chrono::seconds(5)), TimeoutError);
    server.reset();
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(Job job(options), TimeoutError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(12));
  ending.join();
}

TEST(Job, BadInputIsRefused) {
  const auto refusal = [](const JobOptions& options) -> std::string {
    try {
      const Job job(options);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_EQ(refusal({.backend = "pigeon"}).find("Job: unknown backend 'pigeon'; known are auto, "), 0U);
  EXPECT_EQ(refusal({.timeout = Milliseconds(0)}).find("Job: a timeout of 0 ms"), 0U);
  EXPECT_EQ(refusal({.method = "file:///x"}).find("Job: the world size is missing: WORLD_SIZE is not set"), 0U);
  EXPECT_EQ(refusal({.store = std::make_shared<HashStore>(), .rank = 0}),
            "Job: the world size is missing: give "
            "JobOptions::world_size with a store");
}

TEST(FindRendezvous, BadInputIsRefused) {
  const auto refusal = [](const RendezvousOptions& options) -> std::string {
    try {
      find_rendezvous(options);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_EQ(refusal({.timeout = Milliseconds(0)}).find("find_rendezvous: a timeout of 0 ms"), 0U);
  EXPECT_EQ(refusal({.method = "pigeon://"}).find("find_rendezvous: unknown method 'pigeon://'"), 0U);
  EXPECT_EQ(
      refusal({.method = "file:///x", .rank = 2, .world_size = 2}).find("find_rendezvous: rank 2 in a world of 2"), 0U);
  EXPECT_EQ(refusal({.method = "tcp://127.0.0.1?rank=0&world_size=1"}).find("find_rendezvous: the method"), 0U);
}

}  // namespace
}  // namespace gradwire::job_test
