// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/process_look.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

// The calls in which programs usually wait.
std::string name_of_system_call(long number) {
  constexpr std::pair<long, const char*> kNames[] = {
      {SYS_read, "read"},
      {SYS_write, "write"},
      {SYS_pread64, "pread"},
      {SYS_pwrite64, "pwrite"},
      {SYS_readv, "readv"},
      {SYS_writev, "writev"},
      {SYS_openat, "openat"},
      {SYS_futex, "futex"},
      {SYS_nanosleep, "nanosleep"},
      {SYS_clock_nanosleep, "clock_nanosleep"},
      {SYS_ppoll, "ppoll"},
      {SYS_pselect6, "pselect"},
      {SYS_epoll_pwait, "epoll_wait"},
      {SYS_recvfrom, "recvfrom"},
      {SYS_recvmsg, "recvmsg"},
      {SYS_sendto, "sendto"},
      {SYS_sendmsg, "sendmsg"},
      {SYS_connect, "connect"},
      {SYS_accept, "accept"},
      {SYS_accept4, "accept"},
      {SYS_fsync, "fsync"},
      {SYS_fdatasync, "fdatasync"},
      {SYS_flock, "flock"},
      {SYS_fcntl, "fcntl"},
      {SYS_wait4, "wait4"},
      {SYS_waitid, "waitid"},
#ifdef SYS_poll
      {SYS_poll, "poll"},
      {SYS_select, "select"},
      {SYS_epoll_wait, "epoll_wait"},
      {SYS_pause, "pause"},
#endif
  };
  for (const auto& [each, name] : kNames) {
    if (each == number) return name;
  }
  return "";
}

// `folder`: of a thread, or of a process for its main thread.
std::string system_call_in(const std::string& folder) {
  std::istringstream text(read_proc_file(folder + "/syscall"));
  long number = -1;
  return text >> number ? name_of_system_call(number) : "";
}

// A thread whose name tells that hooks run there: a lane of DDP.
constexpr std::string_view kLane = "(gw-lane-";

struct Threads {
  std::set<long> running;
  std::string lane_waits_in;  // the call of the first lane that waits for something else than a thread
};

Threads threads_of(int pid) {
  Threads threads;
  std::error_code error;
  std::filesystem::directory_iterator entry(concat("/proc/", pid, "/task"), error);
  // The process may end meanwhile; a range-based loop would throw.
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string text = read_proc_file((entry->path() / "stat").string());
    const auto end_of_name = text.rfind(')');
    if (end_of_name == std::string::npos) continue;
    if (text.substr(end_of_name, 3) == ") R") threads.running.insert(std::stol(entry->path().filename()));
    if (text.find(kLane) > end_of_name || !threads.lane_waits_in.empty()) continue;
    const std::string call = system_call_in(entry->path().string());
    if (call != "futex") threads.lane_waits_in = call;
  }
  return threads;
}

// The number behind "oom_kill" in a file of a control group; 0 where there is none.
long kills_in(const std::string& path) {
  std::istringstream events(read_proc_file(path));
  std::string name;
  for (long count = 0; events >> name >> count;) {
    if (name == "oom_kill") return count;
  }
  return 0;
}

}  // namespace

std::string read_proc_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t count = 0; file && (count = ::read(file.get(), buffer.data(), buffer.size())) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return "";
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

std::optional<ProcessLook> look_at(int pid) {
  if (pid <= 0) return std::nullopt;
  const std::string text = read_proc_file(concat("/proc/", pid, "/stat"));
  const auto end_of_name = text.rfind(')');  // the name may hold anything
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end_of_name + 1));
  ProcessLook look{.pid = pid};
  fields >> look.state;
  constexpr int kBetween = 10;  // from the state to the processor times
  std::string skipped;
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  double user = 0;
  double system = 0;
  if (!(fields >> user >> system)) return std::nullopt;
  look.processor_seconds = (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  look.time = std::chrono::steady_clock::now().time_since_epoch().count();
  Threads threads = threads_of(pid);
  look.running = std::move(threads.running);
  look.system_call = system_call_in(concat("/proc/", pid));
  // The main thread waits for its lanes, and a hook keeps one of them.
  if (look.system_call == "futex" && !threads.lane_waits_in.empty()) look.system_call = threads.lane_waits_in;
  return look;
}

void add_look(observe::ProcessView& view, const ProcessLook& now, const std::optional<ProcessLook>& before) {
  view.seen = true;
  view.state = now.state;
  view.system_call = now.system_call;
  if (!before || before->pid != now.pid || now.time <= before->time) return;
  const double seconds = static_cast<double>(now.time - before->time) / 1e9;
  const bool goes_on = std::any_of(now.running.begin(), now.running.end(),
                                   [&](long thread) { return before->running.contains(thread); });
  if (goes_on && view.state == 'S') view.state = 'R';
  view.busy = (now.processor_seconds - before->processor_seconds) / seconds;
}

long out_of_memory_kills() {
  // Version 2 of control groups: "0::/path" in /proc/self/cgroup; version 1: "4:memory:/path".
  std::istringstream groups(read_proc_file("/proc/self/cgroup"));
  long kills = 0;
  for (std::string line; std::getline(groups, line);) {
    constexpr std::string_view kVersion1 = ":memory:";
    const auto version1 = line.find(kVersion1);
    if (line.starts_with("0::")) {
      kills += kills_in(concat("/sys/fs/cgroup", line.substr(3), "/memory.events"));
    } else if (version1 != std::string::npos) {
      kills +=
          kills_in(concat("/sys/fs/cgroup/memory", line.substr(version1 + kVersion1.size()), "/memory.oom_control"));
    }
  }
  return kills;
}

}  // namespace gradwire::launch
