// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How processes and threads become ranks, and stop being ranks: every method, every launcher's environment, again and
// again.
#include "gradwire/process_group/init.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "gradwire/backend/job/find_rendezvous.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/process_group/backend_names.h"
#include "gradwire/process_group/user_backends.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::init_test {
namespace {

using test_support::collect_ranks;
using test_support::RankEnd;
using test_support::run_ranks;
using test_support::TemporaryFolder;

constexpr Milliseconds kLong = std::chrono::minutes(2);

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

InitOptions through(const std::shared_ptr<Store>& store, int rank, int world, const std::string& backend) {
  InitOptions options;
  options.backend = backend;
  options.store = store;
  options.rank = rank;
  options.world_size = world;
  options.timeout = kLong;
  return options;
}

void expect_sum_works(ProcessGroup& group) {
  at::Tensor tensor = at::full({3}, group.rank() + 1, at::kFloat);
  group.all_reduce({tensor})->wait();
  EXPECT_TRUE(at::equal(tensor, at::full({3}, group.size() * (group.size() + 1) / 2, at::kFloat)));
}

// A port nobody listens at.
std::uint16_t free_port() {
  TcpStoreOptions options;
  options.is_server = true;
  options.world_size = 1;
  return TcpStore(options).port();
}

// Returns when `ranks` ranks have called it. A rank that ends early takes with it what late ones should hear.
void end_together(Store& store, int rank, int ranks) {
  store.set(concat("ends/", rank), "1");
  std::vector<std::string> keys;
  for (int each = 0; each < ranks; ++each) keys.push_back(concat("ends/", each));
  store.wait(keys, kLong);
}

class Init : public ::testing::TestWithParam<const char*> {};

TEST_P(Init, SeveralTimesInOneProcessOverOneStore) {
  run_ranks(GetParam(), 3, [](int rank, const std::shared_ptr<Store>& store) {
    EXPECT_FALSE(is_initialized());
    EXPECT_TRUE(is_available());
    EXPECT_THROW(default_group(), InvalidArgument);
    destroy_process_group();  // nothing to destroy
    for (int round = 0; round < 4; ++round) {
      const auto group = init_process_group(through(store, rank, 3, GetParam()));
      EXPECT_TRUE(is_initialized());
      EXPECT_EQ(default_group(), group);
      EXPECT_EQ(group->name(), GetParam());
      EXPECT_EQ(group->group_name(), "default");
      EXPECT_EQ(group->timeout(), kLong);
      EXPECT_THROW(init_process_group(through(store, rank, 3, GetParam())), InvalidArgument);
      expect_sum_works(*group);
      if (round % 2 == 0) {
        destroy_process_group();
      } else {
        destroy_process_group(group);  // the same
      }
      EXPECT_FALSE(is_initialized());
      EXPECT_THROW(group->barrier(), InvalidArgument);
    }
  });
}

TEST_P(Init, NewGroupsAreOrderedAsAskedAndEndWithTheDefault) {
  run_ranks(GetParam(), 3, [](int rank, const std::shared_ptr<Store>& store) {
    init_process_group(through(store, rank, 3, GetParam()));
    const auto all = new_group();
    expect_sum_works(*all);
    const auto pair = new_group({2, 0}, "", "ends", std::chrono::minutes(1));
    EXPECT_EQ(pair == nullptr, rank == 1);
    if (pair != nullptr) {
      EXPECT_EQ(pair->rank(), rank == 2 ? 0 : 1);
      EXPECT_EQ(pair->group_desc(), "ends");
      EXPECT_EQ(pair->timeout(), std::chrono::minutes(1));
      expect_sum_works(*pair);
    }
    EXPECT_THROW(new_group({0, 0}), InvalidArgument);
    EXPECT_THROW(new_group({0, 3}), InvalidArgument);
    EXPECT_THROW(new_group({0}, "carrier-pigeon"), InvalidArgument);
    destroy_process_group(all);
    EXPECT_THROW(all->barrier(), InvalidArgument);
    EXPECT_TRUE(is_initialized());
    default_group()->barrier()->wait();
    destroy_process_group();
    if (pair != nullptr) {
      EXPECT_THROW(pair->barrier(), InvalidArgument);
    }
  });
}

TEST_P(Init, NewGroupsThatDifferAreAMismatch) {
  run_ranks(GetParam(), 2, [](int rank, const std::shared_ptr<Store>& store) {
    init_process_group(through(store, rank, 2, GetParam()));
    EXPECT_THROW(new_group(rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0}), MismatchError);
    expect_sum_works(*new_group());  // a mismatch of this kind breaks nothing
    destroy_process_group();
  });
}

// Rank 1 has agreed to the group, and does not come to make it.
TEST(InitProcesses, AnAbortOfTheDefaultGroupEndsANewGroupUnderWay) {
  for (const char* const inner : {"shm", "gloo"}) {
    if (!is_backend_built(inner)) continue;
    SCOPED_TRACE(inner);
    run_ranks("processes", 3, [&](int rank, const std::shared_ptr<Store>& store) {
      const auto group = init_process_group(through(store, rank, 3, "shm"));
      std::thread aborter;
      register_backend("waiting", [&](const std::shared_ptr<Store>& place, int, int size, Milliseconds timeout) {
        if (rank == 0) aborter = std::thread([&] { group->abort("enough of it"); });
        if (rank == 1) {
          end_together(*store, 1, 3);
          throw PeerError("the others have ended", {0});
        }
        return make_process_group(inner, place, rank, size, timeout);
      });
      try {
        new_group({}, "waiting");
        ADD_FAILURE() << "nothing was thrown";
      } catch (const AbortedError& error) {
        EXPECT_EQ(rank, 0) << error.what();
        EXPECT_TRUE(has(error.what(), "enough of it")) << error.what();
      } catch (const PeerError& error) {
        EXPECT_NE(rank, 0) << error.what();
        EXPECT_EQ(error.peers(), std::vector<int>{0}) << error.what();
      }
      if (aborter.joinable()) aborter.join();
      if (rank != 1) end_together(*store, rank, 3);
    });
  }
}

TEST_P(Init, ProgramsHaveKeysOfTheirOwnInTheStoreOfTheDefaultGroup) {
  run_ranks(GetParam(), 2, [](int rank, const std::shared_ptr<Store>& store) {
    EXPECT_THROW(default_store(), InvalidArgument);
    init_process_group(through(store, rank, 2, GetParam()));
    if (rank == 0) default_store()->set("key", "value");
    EXPECT_EQ(default_store()->get("key"), "value");
    EXPECT_EQ(default_store()->timeout(), default_group()->timeout());
    default_group()->barrier()->wait();
    destroy_process_group();
  });
}

TEST_P(Init, GroupsAmongSomeRanksNeedNoOthers) {
  run_ranks(GetParam(), 3, [](int rank, const std::shared_ptr<Store>& store) {
    init_process_group(through(store, rank, 3, GetParam()));
    if (rank == 1) {
      EXPECT_EQ(new_group_among({2, 0}), nullptr);
      expect_sum_works(*new_group_among({1}));
    } else {
      const auto first = new_group_among({2, 0}, "", "ends", std::chrono::minutes(1));
      const auto second = new_group_among({2, 0});
      EXPECT_EQ(first->rank(), rank == 2 ? 0 : 1);
      EXPECT_EQ(first->group_desc(), "ends");
      EXPECT_EQ(first->timeout(), std::chrono::minutes(1));
      EXPECT_NE(first->group_name(), second->group_name());
      expect_sum_works(*second);
      expect_sum_works(*first);
      destroy_process_group(first);
      EXPECT_THROW(first->barrier(), InvalidArgument);
      expect_sum_works(*second);
    }
    EXPECT_THROW(new_group_among({0, 0}), InvalidArgument);
    EXPECT_THROW(new_group_among({0, 3}), InvalidArgument);
    expect_sum_works(*new_group());
    destroy_process_group();
  });
}

TEST_P(Init, GroupsAmongSomeRanksOverDifferentBackendsAreAMismatch) {
  run_ranks(GetParam(), 2, [](int rank, const std::shared_ptr<Store>& store) {
    init_process_group(through(store, rank, 2, GetParam()));
    if (rank == 0) {
      EXPECT_THROW(new_group_among({0, 1}, "shm", "", Milliseconds(100)), TimeoutError);
    }
    default_group()->barrier()->wait();
    if (rank == 1) {
      EXPECT_THROW(new_group_among({0, 1}, "gloo"), MismatchError);
    }
    expect_sum_works(*new_group_among({0, 1}));  // a mismatch of this kind breaks nothing
    destroy_process_group();
  });
}

TEST_P(Init, WorldSizesThatDifferAreAMismatchOnAllRanks) {
  run_ranks(GetParam(), 3, [](int rank, const std::shared_ptr<Store>& store) {
    try {
      init_process_group(through(store, rank, rank == 1 ? 4 : 3, GetParam()));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const MismatchError& error) {
      EXPECT_TRUE(has(error.what(), "3") && has(error.what(), "4")) << error.what();
    }
    EXPECT_FALSE(is_initialized());
    end_together(*store, rank, 3);
    if (rank == 0) {
      // The first to arrive of a later job, over the same store: the old failure is known to this rank and does not
      // count.
      InitOptions next = through(store, rank, 1, GetParam());
      expect_sum_works(*init_process_group(next));
      destroy_process_group();
    }
  });
}

TEST_P(Init, TwoRanksOfOneNumberAreAMismatchOnAllRanks) {
  run_ranks(GetParam(), 3, [](int rank, const std::shared_ptr<Store>& store) {
    try {
      init_process_group(through(store, rank == 2 ? 1 : rank, 3, GetParam()));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const MismatchError& error) {
      EXPECT_TRUE(has(error.what(), "number 1")) << error.what();
    }
    end_together(*store, rank, 3);
  });
}

TEST(InitProcesses, AnotherVersionIsAMismatchThatNamesBoth) {
  const auto store = std::make_shared<HashStore>();
  store->set("gradwire//g0/version", "99.1.2");
  try {
    init_process_group(through(store, 0, 1, "shm"));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const MismatchError& error) {
    EXPECT_TRUE(has(error.what(), "rank 0 has gradwire ") && has(error.what(), "another rank 99.1.2")) << error.what();
  }
}

TEST_P(Init, RanksThatDoNotComeAreNamed) {
  run_ranks(GetParam(), 2, [](int rank, const std::shared_ptr<Store>& store) {
    InitOptions options = through(store, rank, 4, GetParam());
    options.timeout = Milliseconds(1500);
    // The first to give up says so to the other.
    try {
      init_process_group(options);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const TimeoutError& error) {
      // The other rank may be late, too.
      ASSERT_GE(error.peers().size(), 2U) << error.what();
      EXPECT_EQ(std::vector<int>(error.peers().end() - 2, error.peers().end()), (std::vector<int>{2, 3}));
    } catch (const PeerError& error) {
      EXPECT_TRUE(has(error.what(), "2, 3 of 4")) << error.what();
    }
    end_together(*store, rank, 2);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Init, ::testing::Values("threads", "shm"),
                         [](const auto& info) { return std::string(info.param); });

TEST(InitProcesses, AFileServesSeveralJobsOneAfterAnother) {
  const TemporaryFolder folder;
  for (int job = 0; job < 3; ++job) {
    run_ranks("shm", 2, [&](int rank, const std::shared_ptr<Store>&) {
      InitOptions options;
      options.method = concat("file://", folder.path(), "/store");
      options.rank = rank;
      options.world_size = 2;
      expect_sum_works(*init_process_group(options));
      if (job != 1) destroy_process_group();  // a program may forget it
    });
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/store"));  // it is its maker's to remove
}

TEST(InitProcesses, AJobThatDiedInItsRendezvousDoesNotHoldUpTheNext) {
  const TemporaryFolder folder;
  const auto options_of = [&](int rank) {
    InitOptions options;
    options.method = concat("file://", folder.path(), "/store?world_size=2&rank=", rank);
    options.timeout = kLong;
    return options;
  };
  const pid_t child = ::fork();
  if (child == 0) {
    init_process_group(options_of(0));  // waits for rank 1, which never comes
    ::_exit(0);
  }
  FileStore store(folder.path() + "/store");
  const std::string claim = "gradwire//g0/rank/0";
  store.wait(std::span(&claim, 1), kLong);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  run_ranks("shm", 2, [&](int rank, const std::shared_ptr<Store>&) {
    expect_sum_works(*init_process_group(options_of(rank)));
    destroy_process_group();
  });
}

TEST(InitProcesses, ARankThatDiesInTheRendezvousIsNoticedAtOnce) {
  const auto began = std::chrono::steady_clock::now();
  const std::vector<RankEnd> ends = collect_ranks("shm", 3, [](int rank, const std::shared_ptr<Store>& store) {
    if (rank == 1) return;  // comes never; so the others wait
    if (rank == 2) {
      const std::string other = "gradwire//g0/rank/0";
      store->wait(std::span(&other, 1), kLong);
      store->set("gradwire//g0/rank/2", process_identity());  // joins, and dies at once
      ::raise(SIGKILL);
    }
    try {
      init_process_group(through(store, rank, 3, "shm"));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.peers(), std::vector<int>{2}) << error.what();
    }
  });
  EXPECT_FALSE(ends[0].failed) << ends[0].message;
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong);
}

TEST(InitProcesses, RankZeroServesATcpStoreAgainAndAgain) {
  const std::uint16_t port = free_port();
  run_ranks("shm", 2, [&](int rank, const std::shared_ptr<Store>&) {
    for (int round = 0; round < 3; ++round) {
      InitOptions options;
      options.method = concat("tcp://127.0.0.1:", port);
      options.rank = rank;
      options.world_size = 2;
      options.timeout = kLong;
      expect_sum_works(*init_process_group(options));
      destroy_process_group();
    }
  });
}

// The store goes with rank 0, which is told too: all the others hear of it first.
TEST(InitProcesses, TwoRanksOfOneNumberAreToldByTheServerOnRankZero) {
  const std::uint16_t port = free_port();
  run_ranks("shm", 4, [&](int rank, const std::shared_ptr<Store>& outside) {
    // Together: rank 0 does not keep the store for one that is seconds late.
    outside->set(concat("here/", rank), "");
    const std::vector<std::string> all{"here/0", "here/1", "here/2", "here/3"};
    outside->wait(all, kLong);
    InitOptions options;
    options.method = concat("tcp://127.0.0.1:", port);
    options.rank = rank == 3 ? 1 : rank;
    options.world_size = 4;
    options.timeout = kLong;
    try {
      init_process_group(options);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const MismatchError& error) {
      EXPECT_TRUE(has(error.what(), "number 1")) << error.what();
    }
  });
}

// One that comes when all ranks are there is refused, and harms nobody.
TEST(InitProcesses, ARankTooManyIsLeftOutside) {
  const std::uint16_t port = free_port();
  run_ranks("shm", 3, [&](int rank, const std::shared_ptr<Store>& outside) {
    InitOptions options;
    options.method = concat("tcp://127.0.0.1:", port);
    options.rank = std::min(rank, 1);
    options.world_size = 2;
    options.timeout = kLong;
    if (rank == 2) {
      const std::string ready = "ready";
      outside->wait(std::span(&ready, 1), kLong);
      try {
        init_process_group(options);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const MismatchError& error) {
        EXPECT_TRUE(has(error.what(), "rank 1 is taken")) << error.what();
      }
      outside->set("refused", "");
      return;
    }
    const auto group = init_process_group(options);
    expect_sum_works(*group);
    if (rank == 0) outside->set("ready", "");
    const std::string refused = "refused";
    outside->wait(std::span(&refused, 1), kLong);
    expect_sum_works(*group);
    destroy_process_group();
  });
}

TEST(InitProcesses, APortInUseIsAStoreError) {
  TcpStoreOptions other;
  other.is_server = true;
  other.world_size = 1;
  const TcpStore taken(other);
  InitOptions options;
  options.method = concat("tcp://127.0.0.1:", taken.port());
  options.rank = 0;
  options.world_size = 1;
  EXPECT_THROW(init_process_group(options), StoreError);
  EXPECT_FALSE(is_initialized());
}

TEST(InitProcesses, BadOptionsAreRefused) {
  InitOptions options;
  options.store = std::make_shared<HashStore>();
  EXPECT_THROW(init_process_group(options), InvalidArgument);
  options.rank = 0;
  EXPECT_THROW(init_process_group(options), InvalidArgument);
  options.world_size = 1;
  options.backend = "carrier-pigeon";
  EXPECT_THROW(init_process_group(options), InvalidArgument);
  options.backend = "auto";
  options.timeout = Milliseconds(0);
  EXPECT_THROW(init_process_group(options), InvalidArgument);
  options.timeout = kLong;
  options.rank = 1;
  EXPECT_THROW(init_process_group(options), InvalidArgument);
  EXPECT_THROW(new_group(), InvalidArgument);
  EXPECT_THROW(make_process_group("shm", nullptr, 0, 1), InvalidArgument);
  EXPECT_THROW(make_process_group("", std::make_shared<HashStore>(), 0, 1, Milliseconds(-1)), InvalidArgument);
}

TEST(InitProcesses, AForkedChildBeginsAnew) {
  const auto group = init_process_group(through(std::make_shared<HashStore>(), 0, 1, "shm"));
  expect_sum_works(*group);
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = 0;
    if (is_initialized()) wrong |= 1;
    try {
      group->barrier();
      wrong |= 2;
    } catch (const InvalidArgument&) {
    }
    try {
      const auto own = init_process_group(through(std::make_shared<HashStore>(), 0, 1, "shm"));
      own->barrier()->wait();
      destroy_process_group();
    } catch (const std::exception&) {
      wrong |= 4;
    }
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  expect_sum_works(*group);
  destroy_process_group();
}

TEST(InitProcesses, AProgramMayEndWithoutDestroying) {
  const auto end_of = [](bool exits) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto group = init_process_group(through(std::make_shared<HashStore>(), 0, 1, "shm"));
      at::Tensor tensor = at::ones({3});
      group->all_reduce({tensor})->wait();  // starts the worker, which the end of the program must join
      group->all_reduce({tensor});
      if (exits) std::exit(7);
      ::_exit(7);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  };
  for (const bool exits : {true, false}) {
    const int status = end_of(exits);
    EXPECT_TRUE(WIFEXITED(status)) << exits;
    EXPECT_EQ(WEXITSTATUS(status), 7) << exits;
  }
}

// The variables that launchers set, and that this test must not inherit.
void clear_environment() {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                           "GRADWIRE_RENDEZVOUS", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                           "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEPID", "PMIX_NAMESPACE", "XDG_RUNTIME_DIR"}) {
    ::unsetenv(name);
  }
}

struct Flavour {
  const char* name;
  std::function<void(int rank, const std::string& folder, int port)> set;
};

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

const std::vector<Flavour>& flavours() {
  static const std::vector<Flavour> all{
      {"gradwire_run",
       [](int rank, const std::string& folder, int) {
         set("RANK", std::to_string(rank));
         set("WORLD_SIZE", "2");
         set("LOCAL_WORLD_SIZE", "2");
         set("GRADWIRE_RENDEZVOUS", folder + "/store");
       }},
      {"torchrun",
       [](int rank, const std::string&, int port) {
         set("RANK", std::to_string(rank));
         set("WORLD_SIZE", "2");
         set("LOCAL_WORLD_SIZE", "2");
         set("MASTER_ADDR", "127.0.0.1");
         set("MASTER_PORT", std::to_string(port));
         set("TORCHELASTIC_RUN_ID", "none");
         set("TORCHELASTIC_USE_AGENT_STORE", "True");
         set("TORCHELASTIC_ERROR_FILE", concat("/tmp/torchelastic_x/none_y/attempt_0/", rank, "/error.json"));
       }},
      {"by_hand",
       [](int rank, const std::string&, int port) {
         set("RANK", std::to_string(rank));
         set("WORLD_SIZE", "2");
         set("MASTER_ADDR", "127.0.0.1");
         set("MASTER_PORT", std::to_string(port));
       }},
      {"mpirun",
       [](int rank, const std::string&, int) {
         set("OMPI_COMM_WORLD_RANK", std::to_string(rank));
         set("OMPI_COMM_WORLD_SIZE", "2");
         set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
         set("PMIX_NAMESPACE", "prterun-test@1");
       }},
      {"pmi",
       [](int rank, const std::string&, int) {
         set("PMI_RANK", std::to_string(rank));
         set("PMI_SIZE", "2");
         set("PMI_PORT", "host:1234");
       }},
      {"srun",
       [](int rank, const std::string&, int) {
         set("SLURM_PROCID", std::to_string(rank));
         set("SLURM_NTASKS", "2");
         set("SLURM_NNODES", "1");
         set("SLURM_JOB_ID", "7");
         set("SLURM_STEP_ID", "0");
       }},
  };
  return all;
}

class Environment : public ::testing::TestWithParam<std::size_t> {
 protected:
  // Runs `body` in two processes, each in the environment that the launcher gives it. They leave nothing behind.
  static void run_launched(const std::function<void(int rank)>& body) {
    const Flavour& flavour = flavours()[GetParam()];
    const TemporaryFolder folder;
    const int port = free_port();
    run_ranks("shm", 2, [&](int rank, const std::shared_ptr<Store>&) {
      clear_environment();
      set("TMPDIR", folder.path());
      flavour.set(rank, folder.path(), port);
      body(rank);
    });
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
      EXPECT_TRUE(entry.is_directory() || entry.path().filename() == "store") << entry.path();
    }
  }
};

TEST_P(Environment, MakesTwoProcessesMeetTwiceAndLeavesNothingBehind) {
  run_launched([](int rank) {
    for (int round = 0; round < 2; ++round) {
      const auto group = init_process_group();
      EXPECT_EQ(group->rank(), rank);
      EXPECT_EQ(group->size(), 2);
      EXPECT_EQ(group->name(), "shm");
      expect_sum_works(*group);
      destroy_process_group();
    }
  });
}

// The store of the ranks without a group, and a group at the same place while the program holds that store.
TEST_P(Environment, HandsOutItsStoreAlone) {
  run_launched([](int rank) {
    const Rendezvous met = find_rendezvous({.timeout = kLong});
    EXPECT_EQ(met.rank, rank);
    EXPECT_EQ(met.world_size, 2);
    met.store->set(concat("from/", rank), concat("rank ", rank));
    EXPECT_EQ(met.store->get(concat("from/", 1 - rank)), concat("rank ", 1 - rank));
    std::vector<std::string> keys = met.store->list_keys();
    std::erase_if(keys, [](const std::string& key) { return key.starts_with("gradwire/"); });
    EXPECT_EQ(keys, (std::vector<std::string>{"from/0", "from/1"}));
    const auto group = init_process_group();
    expect_sum_works(*group);
    EXPECT_EQ(met.store->get("from/0"), "rank 0");
    group->barrier()->wait();  // rank 0 may serve the store
    destroy_process_group();
  });
}

INSTANTIATE_TEST_SUITE_P(Flavours, Environment, ::testing::Range(std::size_t{0}, std::size_t{6}),
                         [](const auto& info) { return std::string(flavours()[info.param].name); });

}  // namespace
}  // namespace gradwire::init_test
