// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::testing {
namespace {

constexpr int kExpectationFailed = 3;

int note_pipe = -1;  // in a child: where note() writes

void write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<std::size_t>(n);
  }
}

// Sends failed expectations down the pipe where the default listener would print them.
class PipeListener final : public ::testing::EmptyTestEventListener {
 public:
  PipeListener(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    write_all(fd_, concat(name_, ": ", result.file_name() != nullptr ? result.file_name() : "?", ":",
                          result.line_number(), ": ", result.message(), "\n"));
    failed_ = true;
  }
  bool failed() const { return failed_; }

 private:
  int fd_;
  std::string name_;
  bool failed_ = false;
};

[[noreturn]] void run_child(int failures, int notes, const std::string& name, const std::function<void()>& body) {
  note_pipe = notes;
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  const std::unique_ptr<::testing::TestEventListener> printer(listeners.Release(listeners.default_result_printer()));
  auto listener = std::make_unique<PipeListener>(failures, name);
  const PipeListener& seen = *listener;
  listeners.Append(listener.release());
  try {
    body();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "an exception left the child: " << describe(error);
  }
  ::_exit(seen.failed() ? kExpectationFailed : 0);
}

std::array<UniqueFd, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Reads what is there now; whether the other side may still write.
bool read_available(int fd, std::string& text) {
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(n));
    } else if (n == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN;
    }
  }
}

}  // namespace

void end_with_parent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::raise(SIGKILL);  // the parent ended before the kernel was asked
}

ChildProcess::ChildProcess(std::string name, const std::function<void()>& body) : name_(std::move(name)) {
  auto failures = make_pipe();
  auto notes = make_pipe();
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ == 0) {
    end_with_parent(parent);
    ::setenv("GRADWIRE_HEARTBEAT_MS", "60000", /*overwrite=*/0);  // a rank stands still for as long as the machine does
    run_child(failures[1].get(), notes[1].get(), name_, body);
  }
  failures_ = std::move(failures[0]);
  notes_ = std::move(notes[0]);
  ::fcntl(failures_.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(notes_.get(), F_SETFL, O_NONBLOCK);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      failures_(std::move(other.failures_)),
      notes_(std::move(other.notes_)),
      ending_(std::move(other.ending_)) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || ending_.ended) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void ChildProcess::signal(int number) const {
  if (!ending_.ended) ::kill(pid_, number);
}

void ChildProcess::drain() {
  read_available(failures_.get(), ending_.failures);
  read_available(notes_.get(), ending_.notes);
}

ChildProcess::Ending ChildProcess::wait(Deadline deadline) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  while (!ending_.ended) {
    std::array<pollfd, 3> fds{{{process.get(), POLLIN, 0}, {failures_.get(), POLLIN, 0}, {notes_.get(), POLLIN, 0}}};
    const auto left = std::min<Milliseconds>(deadline.remaining(), std::chrono::seconds(1));
    ::poll(fds.data(), fds.size(), static_cast<int>(left.count()));
    drain();
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      drain();
      ending_.ended = true;
      ending_.exited = WIFEXITED(status);
      ending_.code = ending_.exited ? WEXITSTATUS(status) : WTERMSIG(status);
    } else if (deadline.expired()) {
      break;
    }
  }
  return ending_;
}

void ChildProcess::expect_success(Deadline deadline) {
  const Ending ending = wait(deadline);
  if (!ending.failures.empty()) ADD_FAILURE() << ending.failures;
  if (!ending.ended) {
    ADD_FAILURE() << name_ << " did not end in time";
  } else if (!ending.exited) {
    ADD_FAILURE() << name_ << " was ended by signal " << ending.code;
  } else if (ending.code != 0 && ending.failures.empty()) {
    ADD_FAILURE() << name_ << " exited with " << ending.code;
  }
}

void ChildProcess::note(const std::string& line) { write_all(note_pipe, line + "\n"); }

}  // namespace gradwire::testing
