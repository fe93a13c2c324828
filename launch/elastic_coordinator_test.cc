// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The coordinator of an elastic job as a process: a reader that stalls does not keep it from deciding, and a full disk
// only for a while.
#include "launch/elastic_coordinator.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <memory>

#include "gradwire/base/address.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/membership/event_log.h"
#include "gradwire/membership/job_store.h"
#include "gradwire/membership/records.h"
#include "launch/free_port.h"
#include "launch/launcher_fixture_internal.h"

namespace gradwire::launch {
namespace {

class CoordinatorProcessTest : public LauncherTest {
 protected:
  void SetUp() override {
    LauncherTest::SetUp();
    ASSERT_EQ(::mkfifo(pipe().c_str(), 0600), 0);
    reader_ = UniqueFd(::open(pipe().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    ASSERT_TRUE(reader_);
  }
  std::string pipe() const { return scratch("pipe"); }

  // Starts a coordinator whose stderr is the pipe, and waits for the first epoch of two members.
  void start_coordinator() {
    ElasticOptions options;
    options.min = 1;
    options.max = 2;
    start_with_pipe(coordinator_command(options, 2, scratch("store"), scratch("journal"), std::chrono::seconds(10)));
    store_ = membership::open_job_store(scratch("store"));
    begin_first_epoch();
  }
  // The same for a launcher that holds the job.
  void serve() {
    const std::uint16_t port = find_free_port(PortScope::loopback);
    start_with_pipe({"", "--elastic", "1:2", "-n", "2", "--serve", host_and_port("127.0.0.1", port), "--membership-log",
                     scratch("journal")});
    store_ = membership::open_job_store(membership::job_place("127.0.0.1", port));
    begin_first_epoch();
  }
  void append(const membership::Event& event) { membership::EventLog(store_).append(event); }
  void wait_for_key(const std::string& key) { ASSERT_NO_THROW(store_->wait(std::array{key}, kGuard)) << key; }
  // Files may have so many bytes from now on, for the coordinator.
  void limit_files(rlim_t bytes) const {
    rlimit limit{};
    ASSERT_EQ(::prlimit(launcher(), RLIMIT_FSIZE, nullptr, &limit), 0);
    limit.rlim_cur = std::min(bytes, limit.rlim_max);
    ASSERT_EQ(::prlimit(launcher(), RLIMIT_FSIZE, &limit, nullptr), 0);
  }
  // Waits until `text` has come through the pipe.
  void wait_for_sentence(const std::string& text) {
    while (told_.find(text) == std::string::npos) {
      pollfd readable{reader_.get(), POLLIN, 0};
      ASSERT_EQ(::poll(&readable, 1, static_cast<int>(Milliseconds(kGuard).count())), 1)
          << "no '" << text << "' in: " << told_;
      std::array<char, 4096> buffer;
      const ssize_t count = ::read(reader_.get(), buffer.data(), buffer.size());
      ASSERT_GT(count, 0) << "it has ended: " << told_;
      told_.append(buffer.data(), static_cast<std::size_t>(count));
    }
  }
  void expect_a_full_disk_only_holds_it_up() {
    limit_files(1);
    append(membership::Died{2, "was killed"});
    wait_for_sentence("File too large");
    wait_for_sentence("it tries again each second, and the job trains on meanwhile");
    EXPECT_FALSE(store_->check(std::array{membership::lost_key(1)}));
    limit_files(RLIM_INFINITY);
    wait_for_key(membership::lost_key(1));
    wait_for_sentence("the coordinator of the elastic job goes on");
    EXPECT_EQ(count_of(told_, "cannot go on"), 1) << told_;
  }
  // The coordinator has a sentence to tell, and then a death to decide.
  void expect_a_death_is_decided_after_a_sentence() {
    append(membership::Slow{.member = 2, .epoch = 1, .step = 7, .own_us = 2000, .others_us = 1000});
    append(membership::Died{2, "was killed"});
    wait_for_key(membership::lost_key(1));
  }
  // Writes until the pipe takes no more.
  void fill_pipe() const {
    const UniqueFd writer(::open(pipe().c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    const std::string bytes(4096, '.');
    while (::write(writer.get(), bytes.data(), bytes.size()) > 0) {
    }
  }

  UniqueFd reader_;  // of the pipe

 private:
  // The first word becomes the launcher's program.
  void start_with_pipe(const std::vector<std::string>& command) {
    std::vector<std::string> words = {"/bin/sh", "-c", "exec \"$@\" 2> \"$0\"", pipe(), GRADWIRE_RUN_PROGRAM};
    words.insert(words.end(), command.begin() + 1, command.end());
    start_program(words);
  }
  void begin_first_epoch() {
    for (int member = 0; member < 2; ++member) append(membership::Joined{process_identity(), "1", "net"});
    wait_for_key(membership::epoch_key(1));
  }

  std::shared_ptr<Store> store_;
  std::string told_;  // what has come through the pipe
};

TEST_F(CoordinatorProcessTest, AReaderOfItsSentencesThatHasGoneEndsItNot) {
  start_coordinator();
  reader_.reset();
  expect_a_death_is_decided_after_a_sentence();
}

TEST_F(CoordinatorProcessTest, AReaderOfItsSentencesThatStallsDoesNotHoldItUp) {
  start_coordinator();
  fill_pipe();
  expect_a_death_is_decided_after_a_sentence();
}

TEST_F(CoordinatorProcessTest, AFullDiskHoldsItUpUntilThereIsRoom) {
  start_coordinator();
  expect_a_full_disk_only_holds_it_up();
}

TEST_F(CoordinatorProcessTest, AFullDiskHoldsUpALauncherThatHoldsTheJobUntilThereIsRoom) {
  serve();
  expect_a_full_disk_only_holds_it_up();
}

}  // namespace
}  // namespace gradwire::launch
