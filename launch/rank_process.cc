// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_process.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "gradwire/base/strings.h"
#include "launch/descriptor_limit.h"
#include "launch/launch_error.h"
#include "launch/pipe.h"

namespace gradwire::launch {
namespace {

// What a child that could not become its program tells the launcher. All of it fits into one atomic write to a pipe.
struct StartFailure {
  enum class Step : int { set_up, pin, exec } step;
  int error;
};

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const auto& text : strings)
    pointers.push_back(const_cast<char*>(text.c_str()));  // exec wants it so and does not write
  pointers.push_back(nullptr);
  return pointers;
}

// The child's way from fork to exec. Nothing here allocates. Returns only when something failed.
StartFailure become_rank(const RankStart& start, pid_t launcher, char* const* argv, char* const* envp) noexcept {
  using Step = StartFailure::Step;
  if (::setsid() < 0 || ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return {Step::set_up, errno};
  // The launcher may have died before the line above asked to be told.
  if (::getppid() != launcher) ::_exit(1);
  if (::dup2(start.stdin_fd, STDIN_FILENO) < 0 || ::dup2(start.stdout_fd, STDOUT_FILENO) < 0 ||
      ::dup2(start.stderr_fd, STDERR_FILENO) < 0) {
    return {Step::set_up, errno};
  }
  if (!start.cpus.apply()) return {Step::pin, errno};
  restore_descriptor_limit();
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &start.signal_mask, nullptr);
  ::execvpe(argv[0], argv, envp);
  return {Step::exec, errno};
}

[[noreturn]] void throw_start_failure(const RankStart& start, const StartFailure& failure) {
  const std::string& program = start.command.front();
  const std::string reason = std::strerror(failure.error);
  switch (failure.step) {
    case StartFailure::Step::set_up:
      throw LaunchError(kLaunchFailedExit, concat("cannot set up the process of ", start.name, ": ", reason));
    case StartFailure::Step::pin:
      throw LaunchError(kLaunchFailedExit, concat("--pin: cannot pin ", start.name, ": ", reason));
    case StartFailure::Step::exec:
      break;
  }
  if (failure.error == ENOENT) {
    const bool has_path = program.find('/') != std::string::npos;
    if (has_path && ::access(program.c_str(), F_OK) == 0) {
      throw LaunchError(kNotExecutableExit,
                        concat("cannot run '", program, "': the interpreter that it names does not exist"));
    }
    throw LaunchError(kNotFoundExit, concat("program '", program, has_path ? "' does not exist" : "' is not in PATH"));
  }
  throw LaunchError(kNotExecutableExit, concat("cannot run '", program, "': ", reason));
}

}  // namespace

RankProcess start_rank(const RankStart& start, const std::function<void(int pidfd)>& watch) {
  const auto argv = pointers_to(start.command);
  const auto envp = pointers_to(start.environment);
  // Closed by a successful exec, so that reading ends then.
  auto [reader, writer] = make_pipe(concat("to start ", start.name));
  // The child waits until the launcher closes its end.
  auto [closed_gate, opener] = make_pipe(concat("to start ", start.name));
  const pid_t launcher = ::getpid();
  const std::int64_t started = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno(concat("cannot start a process for ", start.name));
  if (pid == 0) {
    opener.reset();
    char byte = 0;
    while (::read(closed_gate.get(), &byte, 1) < 0 && errno == EINTR) {
    }
    const StartFailure failure = become_rank(start, launcher, argv.data(), envp.data());
    [[maybe_unused]] const auto written = ::write(writer.get(), &failure, sizeof(failure));
    ::_exit(kNotFoundExit);
  }
  writer.reset();
  // Not glibc's pidfd_open(): Debian 12's header does not declare it for C++.
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  try {
    if (!pidfd) throw_errno(concat("cannot watch ", start.name, " (pidfd_open needs Linux 5.3 or later)"));
    watch(pidfd.get());
  } catch (...) {
    ::kill(pid, SIGKILL);
    reap(pid);
    throw;
  }
  opener.reset();
  StartFailure failure{};
  ssize_t count = 0;
  while ((count = ::read(reader.get(), &failure, sizeof(failure))) < 0 && errno == EINTR) {
  }
  if (count == sizeof(failure)) {
    reap(pid);
    throw_start_failure(start, failure);
  }
  return {pid, std::move(pidfd), started};
}

ProcessEnd reap(pid_t pid) noexcept {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) return {true, WTERMSIG(status), WCOREDUMP(status) != 0};
  return {false, WEXITSTATUS(status), false};
}

std::string name_of_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? concat("SIG", name) : concat("SIG", signal);
}

std::string describe(const ProcessEnd& end) {
  if (!end.by_signal) return concat("exit code ", end.code);
  return concat("signal ", end.code, " (", name_of_signal(end.code), ")", end.core_dumped ? ", core dumped" : "");
}

}  // namespace gradwire::launch
