// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/captured_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace gradwire::launch {
namespace {

// For a killed process to go. One that waits for a disk or a network file system may need longer, and is left alone.
constexpr int kGoingMilliseconds = 100;

// Starts a program with its stdout at `out`; -1 where that fails.
pid_t spawn(std::vector<std::string>& command, int out) {
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  const int failed = ::posix_spawnp(&pid, arguments.front(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  return failed == 0 ? pid : -1;
}

}  // namespace

CapturedProcess::CapturedProcess(std::vector<std::string> command) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  // Non-blocking at this end only: the two ends are separate open files.
  if (::fcntl(reader.get(), F_SETFL, O_NONBLOCK) != 0) return;
  const pid_t pid = spawn(command, writer.get());
  if (pid < 0) return;
  pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd_) {
    reader_ = std::move(reader);
  } else {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

CapturedProcess::~CapturedProcess() {
  if (!pidfd_) return;
  // By the descriptor: the child may have been reaped, and another process may have its number.
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  pollfd ended{pidfd_.get(), POLLIN, 0};
  ::poll(&ended, 1, kGoingMilliseconds);
  siginfo_t info{};
  ::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG);
}

void CapturedProcess::read() {
  std::array<char, 4096> buffer;
  while (reader_) {
    const ssize_t count = ::read(reader_.get(), buffer.data(), buffer.size());
    if (count > 0) {
      output_.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      reader_.reset();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

}  // namespace gradwire::launch
