// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/process_identity.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string_view>

#include "gradwire/base/host_identity.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

// The first line of a file of /proc. "" where there is no such file, or where its process has ended meanwhile. Nothing
// where the file cannot be read now: this process may be out of descriptors, for example.
std::optional<std::string> first_line(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text{};
  const ssize_t length = file ? ::read(file.get(), text.data(), text.size()) : -1;
  if (length < 0) return errno == ENOENT || errno == ESRCH ? std::make_optional<std::string>() : std::nullopt;
  const std::string_view read(text.data(), static_cast<std::size_t>(length));
  return std::string(read.substr(0, read.find('\n')));
}

// Of a process.
struct Stat {
  std::string state;  // the letter; empty: there is no such process
  std::string start;  // the time of the start
};

// Nothing where it cannot be seen now.
std::optional<Stat> stat_of(const std::string& pid) {
  const std::optional<std::string> line = first_line(concat("/proc/", pid, "/stat"));
  if (!line) return std::nullopt;
  Stat stat;
  const std::size_t name_end = line->rfind(')');  // the name before it may hold anything
  if (name_end == std::string::npos) return stat;
  std::istringstream rest(line->substr(name_end + 1));
  rest >> stat.state;
  for (int i = 4; i <= 22; ++i) rest >> stat.start;
  return stat;
}

// Processes that see the same numbers have this in common; "" where /proc does not say.
std::string number_space() {
  std::array<char, 64> name_space{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", name_space.data(), name_space.size() - 1);
  static const std::string boot = boot_id();
  return length > 0 && !boot.empty() ? concat(boot, "/", name_space.data()) : "";
}

// The first fields of an identity; empty from the first that it lacks.
struct Fields {
  std::string space;
  std::string pid;
  std::string start;
};
Fields fields_of(const std::string& identity) {
  std::istringstream in(identity);
  Fields fields;
  in >> fields.space >> fields.pid >> fields.start;
  return fields;
}

}  // namespace

std::string process_identity() {
  static std::atomic<std::uint64_t> counter{0};
  const std::string pid = std::to_string(::getpid());
  const std::string space = number_space();
  const std::string start = stat_of(pid).value_or(Stat()).start;
  // Without a start the process cannot be told from a later one of the same number, so nobody is to look for it.
  const bool is_known = !space.empty() && !start.empty();
  return concat(is_known ? space : "unknown", " ", pid, " ", start.empty() ? "0" : start, " ", counter.fetch_add(1));
}

bool may_be_alive(const std::string& identity) {
  const auto [space, pid, start] = fields_of(identity);
  if (start.empty() || space != number_space()) return true;
  const std::optional<Stat> stat = stat_of(pid);
  if (!stat) return true;
  return stat->start == start && !stat->state.empty() && stat->state != "Z" && stat->state != "X";
}

std::string sight_of(const std::string& identity) { return fields_of(identity).space; }

int number_of_process(const std::string& identity) {
  const std::string pid = fields_of(identity).pid;
  int number = 0;
  std::from_chars(pid.data(), pid.data() + pid.size(), number);
  return number;
}

std::string describe_process(const std::string& identity) {
  const std::string pid = fields_of(identity).pid;
  return concat("process ", pid.empty() ? "of unknown number" : pid);
}

}  // namespace gradwire
