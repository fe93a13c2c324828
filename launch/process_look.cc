// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/process_look.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

std::string read_all(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

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

std::string system_call_of(int pid) {
  std::istringstream text(read_all(concat("/proc/", pid, "/syscall")));
  long number = -1;
  return text >> number ? name_of_system_call(number) : "";
}

}  // namespace

std::optional<ProcessLook> look_at(int pid) {
  if (pid <= 0) return std::nullopt;
  const std::string text = read_all(concat("/proc/", pid, "/stat"));
  const auto end_of_name = text.rfind(')');  // the name may hold anything
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(end_of_name + 1));
  ProcessLook look;
  fields >> look.state;
  constexpr int kBetween = 10;  // from the state to the processor times
  std::string skipped;
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  double user = 0;
  double system = 0;
  if (!(fields >> user >> system)) return std::nullopt;
  look.processor_seconds = (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  look.time = std::chrono::steady_clock::now().time_since_epoch().count();
  look.system_call = system_call_of(pid);
  return look;
}

void add_look(observe::ProcessView& view, const ProcessLook& now, const std::optional<ProcessLook>& before) {
  view.seen = true;
  view.state = now.state;
  view.system_call = now.system_call;
  if (!before || now.time <= before->time) return;
  const double seconds = static_cast<double>(now.time - before->time) / 1e9;
  view.busy = (now.processor_seconds - before->processor_seconds) / seconds;
}

long out_of_memory_kills() {
  // Version 2 of control groups: "0::/path" in /proc/self/cgroup.
  std::istringstream groups(read_all("/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    std::istringstream events(read_all(concat("/sys/fs/cgroup", line.substr(3), "/memory.events")));
    std::string name;
    for (long count = 0; events >> name >> count;) {
      if (name == "oom_kill") return count;
    }
  }
  return 0;
}

}  // namespace gradwire::launch
