// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What each launcher's variables mean, and where that makes the ranks meet.
#include "gradwire/backend/job/job_environment_internal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "gradwire/backend/job/meeting_place_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/tcp_store.h"
#include "tests/support/secrets.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::job_environment_test {
namespace {

using internal::find_meeting_place;
using internal::MeetingOptions;
using internal::read_job_environment;
using internal::ReadVariable;

using Variables = std::map<std::string, std::string>;

ReadVariable reading(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

std::string refusal(const MeetingOptions& options, const Variables& variables) {
  try {
    find_meeting_place(options, reading(variables));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(JobEnvironment, GradwireRun) {
  const auto job = read_job_environment(reading({{"RANK", "1"},
                                                 {"WORLD_SIZE", "4"},
                                                 {"LOCAL_WORLD_SIZE", "4"},
                                                 {"GRADWIRE_RENDEZVOUS", "/tmp/x/store"},
                                                 {"MASTER_ADDR", "127.0.0.1"},
                                                 {"MASTER_PORT", "1234"},
                                                 {"OMPI_COMM_WORLD_RANK", "7"}}));
  EXPECT_EQ(job.launcher, "gradwire-run");
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.world_size, 4);
  EXPECT_EQ(job.rendezvous, "/tmp/x/store");
}

TEST(JobEnvironment, TorchrunKeepsItsPortToItself) {
  Variables variables{{"RANK", "2"},
                      {"WORLD_SIZE", "4"},
                      {"LOCAL_WORLD_SIZE", "4"},
                      {"TORCHELASTIC_RUN_ID", "none"},
                      {"MASTER_ADDR", "host"},
                      {"MASTER_PORT", "29500"},
                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                      {"TORCHELASTIC_RESTART_COUNT", "0"},
                      {"TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_0/2/error.json"}};
  const auto job = read_job_environment(reading(variables));
  EXPECT_EQ(job.launcher, "torchrun");
  EXPECT_EQ(job.rank, 2);
  EXPECT_TRUE(job.master_address.empty());
  // All workers of one start have one key; a restart, another start and another run have others.
  const auto key_with = [&](const std::string& name, const std::string& value) {
    Variables changed = variables;
    changed[name] = value;
    return read_job_environment(reading(changed)).job_key;
  };
  EXPECT_FALSE(job.job_key.empty());
  EXPECT_EQ(key_with("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a/none_b/attempt_0/3/error.json"), job.job_key);
  EXPECT_NE(key_with("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_c/none_b/attempt_0/2/error.json"), job.job_key);
  EXPECT_NE(key_with("TORCHELASTIC_RESTART_COUNT", "1"), job.job_key);
  EXPECT_NE(key_with("TORCHELASTIC_RUN_ID", "other"), job.job_key);
  EXPECT_NE(key_with("MASTER_PORT", "29501"), job.job_key);
  // Several hosts have nowhere to meet yet.
  variables["WORLD_SIZE"] = "8";
  EXPECT_TRUE(has(refusal({}, variables), "several hosts")) << refusal({}, variables);
}

TEST(JobEnvironment, Mpirun) {
  const auto job = read_job_environment(reading({{"OMPI_COMM_WORLD_RANK", "3"},
                                                 {"OMPI_COMM_WORLD_SIZE", "8"},
                                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                                 {"PMIX_NAMESPACE", "12345"},
                                                 {"SLURM_PROCID", "0"},
                                                 {"SLURM_STEP_ID", "1"},
                                                 {"PMI_RANK", "9"}}));
  EXPECT_EQ(job.launcher, "mpirun");
  EXPECT_EQ(job.rank, 3);
  EXPECT_EQ(job.world_size, 8);
  EXPECT_EQ(job.local_world_size, 4);
  EXPECT_TRUE(has(job.job_key, "12345"));
}

TEST(JobEnvironment, Pmi) {
  const auto job = read_job_environment(
      reading({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_PORT", "host:4711"}}));
  EXPECT_EQ(job.launcher, "PMI");
  EXPECT_EQ(job.rank, 0);
  EXPECT_EQ(job.world_size, 2);
  EXPECT_EQ(job.local_world_size, 2);
  EXPECT_TRUE(has(job.job_key, "4711"));
}

TEST(JobEnvironment, SrunCountsNodesAndABatchScriptIsNoRank) {
  Variables variables{{"SLURM_PROCID", "1"},
                      {"SLURM_NTASKS", "2"},
                      {"SLURM_JOB_ID", "77"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_NNODES", "1"}};
  const auto job = read_job_environment(reading(variables));
  EXPECT_EQ(job.launcher, "srun");
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.world_size, 2);
  EXPECT_EQ(job.local_world_size, 2);
  EXPECT_TRUE(has(job.job_key, "77.0"));
  variables["SLURM_NNODES"] = "2";
  EXPECT_TRUE(has(refusal({}, variables), "several hosts"));
  variables.erase("SLURM_STEP_ID");
  EXPECT_TRUE(has(refusal({}, variables), "WORLD_SIZE is not set"));
}

TEST(JobEnvironment, SaysWhichVariableIsMissingOrWrong) {
  EXPECT_TRUE(has(refusal({}, {{"WORLD_SIZE", "2"}}), "RANK is not set"));
  EXPECT_TRUE(has(refusal({}, {{"RANK", "0"}}), "WORLD_SIZE is not set"));
  EXPECT_TRUE(has(refusal({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "MASTER_ADDR is not set"));
  EXPECT_TRUE(has(refusal({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}}), "MASTER_PORT is not set"));
  EXPECT_TRUE(has(refusal({}, {{"RANK", "two"}, {"WORLD_SIZE", "2"}}), "RANK is 'two'"));
  EXPECT_TRUE(has(refusal({}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "rank 2 in a world of 2"));
  EXPECT_TRUE(has(refusal({}, {{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "WORLD_SIZE is '0'"));
  EXPECT_TRUE(has(refusal({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "70000"}}),
                  "MASTER_PORT is '70000'"));
  EXPECT_TRUE(has(refusal({}, {{"RANK", "0"}, {"WORLD_SIZE", "5000"}}), "1 to 4096"));
  EXPECT_TRUE(
      has(refusal({}, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"GRADWIRE_RENDEZVOUS", "relative"}}), "no absolute path"));
}

TEST(JobEnvironment, WithoutALauncherThereIsOneRank) {
  const auto alone = find_meeting_place({}, reading({}));
  EXPECT_EQ(alone.rank, 0);
  EXPECT_EQ(alone.world_size, 1);
  alone.store->set("a", "1");
  EXPECT_EQ(alone.store->get("a"), "1");
  // A world of one that somebody asked for has nobody to meet, either.
  EXPECT_EQ(find_meeting_place({}, reading({{"RANK", "0"}, {"WORLD_SIZE", "1"}})).world_size, 1);
  MeetingOptions one;
  one.rank = 0;
  one.world_size = 1;
  EXPECT_EQ(find_meeting_place(one, reading({})).world_size, 1);
  EXPECT_EQ(find_meeting_place({}, reading({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}})).world_size, 1);
}

// Ranks that train alone without saying so are the worst outcome of a start that went wrong.
TEST(JobEnvironment, AProcessAmongOthersIsNotAlone) {
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "PMIX_RANK", "FLUX_TASK_RANK", "SLURM_PROCID"}) {
    const std::string message = refusal({}, {{name, "1"}});
    EXPECT_TRUE(has(message, "WORLD_SIZE is not set")) << name << ": " << message;
    EXPECT_TRUE(has(message, concat(name, " is set, so this process is not alone"))) << message;
  }
  MeetingOptions half;
  half.rank = 0;
  EXPECT_TRUE(has(refusal(half, {}), "WORLD_SIZE is not set"));
  MeetingOptions elsewhere;
  elsewhere.method = "file:///x";
  EXPECT_TRUE(has(refusal(elsewhere, {}), "WORLD_SIZE is not set"));
}

TEST(JobEnvironment, MethodsAreTakenApart) {
  const auto with = [](const std::string& method) {
    MeetingOptions options;
    options.method = method;
    return options;
  };
  EXPECT_TRUE(has(refusal(with("carrier-pigeon"), {}), "unknown method"));
  EXPECT_TRUE(has(refusal(with("udp://x?rank=0&world_size=1"), {}), "unknown method"));
  for (const char* method : {"http://x", "http://x?page=1", "://x", "FILE:///x"}) {
    EXPECT_TRUE(has(refusal(with(method), {}), concat("unknown method '", method, "'"))) << method;
  }
  EXPECT_TRUE(has(refusal(with("file:///x"), {}), "?world_size="));
  EXPECT_TRUE(has(refusal(with("file:///x?world_size=2"), {}), "?rank="));
  EXPECT_TRUE(has(refusal(with("file:///x?world_size=two"), {}), "'two'"));
  EXPECT_TRUE(has(refusal(with("file:///x?size=2"), {}), "'size'"));
  EXPECT_TRUE(has(refusal(with("tcp://host?rank=0&world_size=1"), {}), "no port"));
  EXPECT_TRUE(has(refusal(with("tcp://host:99999?rank=0&world_size=1"), {}), "ports are"));
  const Variables launched = {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"GRADWIRE_RENDEZVOUS", "http://x"}};
  EXPECT_TRUE(has(refusal({}, launched), "GRADWIRE_RENDEZVOUS is 'http://x'"));
  const test_support::TemporaryFolder folder;
  MeetingOptions options = with(concat("file://", folder.path(), "/store?rank=1&world_size=2"));
  options.rank = 0;  // what is given in the options counts more
  const auto place = find_meeting_place(options, reading({{"RANK", "5"}}));
  EXPECT_EQ(place.rank, 0);
  EXPECT_EQ(place.world_size, 2);
}

// A process that is stopped may hold the lock. Here another open file of this process holds it.
TEST(JobEnvironment, ALockThatNobodyReleasesEndsTheRendezvousInAFileByItsTimeout) {
  const test_support::TemporaryFolder folder;
  const std::string path = concat(folder.path(), "/store");
  FileStore(path).set("key", "of an earlier job");
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock request {};
  request.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(file.get(), F_OFD_SETLK, &request), 0);
  MeetingOptions options;
  options.method = concat("file://", path, "?rank=0&world_size=2");
  options.timeout = Milliseconds(100);
  EXPECT_THROW(find_meeting_place(options, reading({})), TimeoutError);
}

TEST(JobEnvironment, AMethodWithoutRanksTakesThemFromWhatStartedTheProcesses) {
  const test_support::TemporaryFolder folder;
  const auto place_of = [&](const std::string& query, const Variables& variables) {
    MeetingOptions options;
    options.method = concat("file://", folder.path(), "/store", query);
    return find_meeting_place(options, reading(variables));
  };
  const auto by_hand = place_of("", {{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(by_hand.rank, 1);
  EXPECT_EQ(by_hand.world_size, 2);
  const auto by_mpirun = place_of("", {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}});
  EXPECT_EQ(by_mpirun.rank, 2);
  EXPECT_EQ(by_mpirun.world_size, 3);
  const auto half = place_of("?rank=0", {{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(half.rank, 0) << "the method counts more";
  EXPECT_EQ(half.world_size, 2);
  EXPECT_EQ(place_of("?rank=0&world_size=4", {{"RANK", "no number"}}).world_size, 4) << "nobody asks for it";

  TcpStore store({.is_server = true});
  MeetingOptions tcp;
  tcp.method = concat("tcp://127.0.0.1:", store.port());
  EXPECT_EQ(find_meeting_place(tcp, reading({{"RANK", "1"}, {"WORLD_SIZE", "2"}})).rank, 1);
  tcp.method = "file:///x";
  EXPECT_TRUE(has(refusal(tcp, {{"WORLD_SIZE", "2"}}), "RANK is not set"));
  EXPECT_TRUE(has(refusal(tcp, {{"RANK", "two"}, {"WORLD_SIZE", "2"}}), "RANK is 'two'"));
}

TEST(JobEnvironment, RanksOfSeveralHostsMeetInTheLaunchersStore) {
  if (!test_support::has_secrets()) GTEST_SKIP() << test_support::kNoSecrets;
  TcpStore launcher({.is_server = true, .secret = "the job's"});
  const auto environment = [&](int rank) -> Variables {
    return {{"RANK", concat(rank)},
            {"WORLD_SIZE", "2"},
            {"GRADWIRE_SECRET", "the job's"},
            {"GRADWIRE_RENDEZVOUS", concat("tcp://127.0.0.1:", launcher.port(), "?hosted=1&prefix=ranks/job/3")}};
  };
  const auto zero = find_meeting_place({}, reading(environment(0)));
  const auto one = find_meeting_place({}, reading(environment(1)));
  zero.store->set("key", "value");
  EXPECT_EQ(one.store->get("key"), "value");
  EXPECT_EQ(launcher.get("ranks/job/3/key"), "value");
  EXPECT_FALSE(one.may_reconnect) << "the launcher's store outlives every group";
  Variables stranger = environment(1);
  stranger.erase("GRADWIRE_SECRET");
  EXPECT_THROW(find_meeting_place({}, reading(stranger)), StoreError);
}

class PrivateFile : public ::testing::Test {
 protected:
  std::shared_ptr<Store> open(const std::string& key) {
    return internal::open_private_file(key, reading({{"TMPDIR", folder_.path()}}), path_);
  }
  std::string own_folder() const { return concat(folder_.path(), "/gradwire-", ::geteuid()); }

  test_support::TemporaryFolder folder_;
  std::string path_;
};

TEST_F(PrivateFile, IsThisUsersAloneAndNamedByTheJob) {
  const auto store = open("job 1");
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  ASSERT_EQ(::stat(own_folder().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  const std::string first = path_;
  open("job 2");
  EXPECT_NE(path_, first);
  open("job 1");
  EXPECT_EQ(path_, first);
}

TEST_F(PrivateFile, WorksOnWhenItsNameIsGone) {
  const auto one = open("job");
  const auto two = open("job");
  one->set("a", "1");
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  EXPECT_EQ(two->get("a"), "1");
  two->clone()->set("b", "2");
  EXPECT_EQ(one->get("b"), "2");
  EXPECT_NE(open("job")->num_keys(), one->num_keys());  // the name leads to a new one
}

TEST_F(PrivateFile, IsNotWaitedForLongerThanTheDeadlineToGo) {
  internal::MeetingPlace place;
  place.rank = 1;
  place.private_file = "file";
  HashStore generation;  // has a timeout of its own
  try {
    internal::close_meeting_place(place, generation, Deadline::after(Milliseconds(1)));
    ADD_FAILURE() << "nobody has removed the file";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{0}) << error.what();
  }
}

TEST_F(PrivateFile, RefusesWhatOthersMayTouch) {
  ASSERT_EQ(::mkdir(own_folder().c_str(), 0700), 0);
  ASSERT_EQ(::chmod(own_folder().c_str(), 0755), 0);
  EXPECT_THROW(open("job"), StoreError);
  ASSERT_EQ(::chmod(own_folder().c_str(), 0700), 0);
  open("job");
  ASSERT_EQ(::chmod(path_.c_str(), 0644), 0);
  EXPECT_THROW(open("job"), StoreError);
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  std::ofstream(folder_.path() + "/elsewhere") << "";
  ASSERT_EQ(::symlink((folder_.path() + "/elsewhere").c_str(), path_.c_str()), 0);
  EXPECT_THROW(open("job"), StoreError);
  std::filesystem::remove_all(own_folder());
  ASSERT_EQ(::symlink(folder_.path().c_str(), own_folder().c_str()), 0);
  EXPECT_THROW(open("job"), StoreError);
}

}  // namespace
}  // namespace gradwire::job_environment_test
