// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/leftovers.h"

#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "gradwire/base/deadline.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"

namespace gradwire::testing {
namespace {

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

// Children that a killed rank had forked end with that rank, by the kernel, but maybe a moment later. Returns false
// when one goes on.
bool reap_orphans() {
  const Deadline guard = Deadline::after(std::chrono::seconds(20));
  while (!guard.expired()) {
    const pid_t ended = ::waitpid(-1, nullptr, WNOHANG);
    if (ended < 0 && errno == ECHILD) return true;
    if (ended == 0) ::sched_yield();
  }
  return false;
}

long entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{});
}

}  // namespace

Leftovers::Leftovers() : shared_before_(files_in("/dev/shm")) {
  const char* old = std::getenv("TMPDIR");
  old_folder_ = old != nullptr ? old : "";
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);  // ranks may be other users
  ::setenv("TMPDIR", folder_.path().c_str(), 1);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Leftovers::~Leftovers() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  if (old_folder_.empty()) {
    ::unsetenv("TMPDIR");
  } else {
    ::setenv("TMPDIR", old_folder_.c_str(), 1);
  }
}

std::vector<std::string> Leftovers::find() const {
  std::vector<std::string> found;
  if (!reap_orphans()) found.emplace_back("a process was left behind");
  for (const std::string& name : files_in(folder_.path())) found.push_back("left in TMPDIR: " + name);
  for (const std::string& name : files_in("/dev/shm")) {
    const bool new_one = shared_before_.count(name) == 0 && name.find("gradwire") != std::string::npos;
    if (new_one) found.push_back("left in /dev/shm: " + name);
  }
  return found;
}

bool reap(pid_t child) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  const Deadline guard = Deadline::after(std::chrono::seconds(30));
  pollfd entry{process.get(), POLLIN, 0};
  while (::poll(&entry, 1, static_cast<int>(guard.remaining().count())) < 0 && errno == EINTR) {
  }
  const bool ended = (entry.revents & POLLIN) != 0;
  if (!ended) ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return ended;
}

Footprint footprint() {
  Footprint print;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> print.resident_kib;
  }
  print.descriptors = entries_of("/proc/self/fd");
  print.threads = entries_of("/proc/self/task");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    ++print.mappings;
    const auto permissions = line.find(' ') + 1;
    if (line.compare(permissions, 4, "rw-s") == 0) ++print.shared_mappings;
  }
  return print;
}

std::string grown_since(const Footprint& before) {
  const auto guard = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (;;) {
    const Footprint now = footprint();
    if (now.descriptors <= before.descriptors && now.threads <= before.threads &&
        now.shared_mappings <= before.shared_mappings) {
      return {};
    }
    if (std::chrono::steady_clock::now() > guard) {
      return concat(now.descriptors - before.descriptors, " descriptors, ", now.threads - before.threads,
                    " threads and ", now.shared_mappings - before.shared_mappings, " shared mappings more than before");
    }
    ::sched_yield();
  }
}

}  // namespace gradwire::testing
