// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The coordinator of an elastic job as a process: what it cannot tell or write does not keep it from deciding.
#include "launch/elastic_coordinator.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <memory>

#include "gradwire/base/os_handles.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/membership/event_log.h"
#include "gradwire/membership/job_store.h"
#include "gradwire/membership/records.h"
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
    store_ = membership::open_job_store(scratch("store"));
  }
  std::string pipe() const { return scratch("pipe"); }

  // Starts a coordinator that writes its stderr to `errors`, and waits for the first epoch of two members.
  void start_coordinator(const std::string& errors) {
    ElasticOptions options;
    options.min = 1;
    options.max = 2;
    std::vector<std::string> words = {"/bin/sh", "-c", "exec \"$@\" 2> \"$0\"", errors};
    const auto command =
        coordinator_command(options, 2, scratch("store"), scratch("journal"), std::chrono::seconds(10));
    words.emplace_back(GRADWIRE_RUN_PROGRAM);
    words.insert(words.end(), command.begin() + 1, command.end());
    start_program(words);
    for (int member = 0; member < 2; ++member) append(membership::Joined{process_identity(), "1", "net"});
    wait_for_key(membership::epoch_key(1));
  }
  void append(const membership::Event& event) { membership::EventLog(store_).append(event); }
  void wait_for_key(const std::string& key) { ASSERT_NO_THROW(store_->wait(std::array{key}, kGuard)) << key; }
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

  UniqueFd reader_;
  std::shared_ptr<Store> store_;
};

TEST_F(CoordinatorProcessTest, AReaderOfItsSentencesThatHasGoneEndsItNot) {
  start_coordinator(pipe());
  reader_.reset();
  expect_a_death_is_decided_after_a_sentence();
}

TEST_F(CoordinatorProcessTest, AReaderOfItsSentencesThatStallsDoesNotHoldItUp) {
  start_coordinator(pipe());
  fill_pipe();
  expect_a_death_is_decided_after_a_sentence();
}

}  // namespace
}  // namespace gradwire::launch
