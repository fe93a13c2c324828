// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/flight_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/flight_recorder.h"
#include "launch/keeper.h"
#include "launch/launch_error.h"
#include "launch/process_look.h"

namespace gradwire::launch {
namespace {

constexpr const char* kName = "gradwire-flight";

// The descriptors of the flight files that a process holds, as paths.
std::vector<std::string> files_of(int pid) {
  std::vector<std::string> paths;
  std::error_code error;
  const std::filesystem::path folder = concat("/proc/", pid, "/fd");
  // With an error code also for the increment: the process may end meanwhile.
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry->path(), gone).string();
    if (!gone && target.starts_with(concat("/memfd:", kName))) paths.push_back(entry->path().string());
  }
  return paths;
}

std::vector<int> children_of(int pid) {
  std::ifstream list(concat("/proc/", pid, "/task/", pid, "/children"));
  std::vector<int> children;
  for (int child = 0; list >> child;) children.push_back(child);
  return children;
}

std::optional<observe::RankTable> read_table(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file || ::lseek(file.get(), 0, SEEK_END) < static_cast<off_t>(observe::flight_memory_bytes()))
    return std::nullopt;
  const Mapping memory = Mapping::of_file(file.get(), observe::flight_memory_bytes());
  return observe::read_flight_memory({memory.data(), memory.bytes()});
}

// "gradwire-run -n 2 ./train"
std::string command_of(int pid) {
  std::string command = read_proc_file(concat("/proc/", pid, "/cmdline"));
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace(command.begin(), command.end(), '\0', ' ');
  return command;
}

}  // namespace

FlightFiles::FlightFiles(int ranks) {
  const auto bytes = observe::flight_file_bytes();
  for (int rank = 0; rank < ranks; ++rank) {
    File file;
    file.fd = UniqueFd(::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (file.fd && ::ftruncate(file.fd.get(), static_cast<off_t>(bytes)) != 0) file.fd.reset();
    // A rank may write anything there, but not shorten the file: this process reads it through a mapping.
    if (file.fd && ::fcntl(file.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) file.fd.reset();
    try {
      if (file.fd) file.memory = Mapping::of_file(file.fd.get(), bytes);
    } catch (const ResourceError&) {
      file.fd.reset();
    }
    files_.push_back(std::move(file));
  }
}

std::string FlightFiles::path(int rank) const {
  const File& file = files_.at(static_cast<std::size_t>(rank));
  return file.fd ? concat("/proc/", ::getpid(), "/fd/", file.fd.get()) : "";
}

std::optional<observe::RankTable> FlightFiles::read(int rank) const {
  const File& file = files_.at(static_cast<std::size_t>(rank));
  if (!file.fd) return std::nullopt;
  return observe::read_flight_memory({file.memory.data(), file.memory.bytes()});
}

std::vector<observe::RankTable> FlightFiles::read_earlier(int rank) const {
  const File& file = files_.at(static_cast<std::size_t>(rank));
  if (!file.fd) return {};
  return observe::read_earlier_processes({file.memory.data(), file.memory.bytes()});
}

std::vector<observe::RankTable> read_running_job(int pid) {
  if (::access(concat("/proc/", pid).c_str(), F_OK) != 0)
    throw LaunchError(kUsageExit, concat("--job ", pid, ": there is no such process"));
  // The process that the user started has none of its own. The keeper has them all, and each rank opens its own again.
  std::vector<std::string> paths = files_of(pid);
  if (paths.empty()) {
    for (const int child : children_of(pid)) {
      for (std::string& path : files_of(child)) paths.push_back(std::move(path));
    }
  }
  if (paths.empty()) {
    throw LaunchError(kUsageExit, concat("--job ", pid, ": the process is no gradwire-run of this user; give the ",
                                         "process id of gradwire-run itself (gradwire-diagnose alone lists the jobs)"));
  }
  std::vector<observe::RankTable> tables;
  for (const std::string& path : paths) {
    if (auto table = read_table(path)) tables.push_back(*std::move(table));
  }
  return tables;
}

std::vector<RunningJob> running_jobs() {
  std::vector<RunningJob> jobs;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const int pid = std::atoi(name.c_str());
    // The process that the user started waits for the keeper, which holds the files.
    const std::vector<int> children = children_of(pid);
    const bool is_job = std::any_of(children.begin(), children.end(), [](int child) {
      return read_proc_file(concat("/proc/", child, "/comm")) == concat(kKeeperName, "\n") && !files_of(child).empty();
    });
    if (is_job) jobs.push_back({pid, command_of(pid)});
  }
  std::sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return jobs;
}

}  // namespace gradwire::launch
