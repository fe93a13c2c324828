// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/process_identity.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <utility>

#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The state letter and the start time of a process, "" when there is none.
std::pair<std::string, std::string> state_and_start(const std::string& pid) {
  const std::string line = first_line(concat("/proc/", pid, "/stat"));
  const std::size_t name_end = line.rfind(')');  // the name before it may hold anything
  if (name_end == std::string::npos) return {};
  std::istringstream rest(line.substr(name_end + 1));
  std::string state;
  std::string field;
  rest >> state;
  for (int i = 4; i <= 22; ++i) rest >> field;
  return {state, field};
}

// Processes that see the same numbers have this in common; "" where /proc does not say.
std::string number_space() {
  std::array<char, 64> name_space{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", name_space.data(), name_space.size() - 1);
  static const std::string boot = first_line("/proc/sys/kernel/random/boot_id");
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
  return concat(space.empty() ? "unknown" : space, " ", pid, " ", state_and_start(pid).second, " ",
                counter.fetch_add(1));
}

bool may_be_alive(const std::string& identity) {
  const auto [space, pid, start] = fields_of(identity);
  if (start.empty() || space != number_space()) return true;
  const auto [state, begun] = state_and_start(pid);
  return begun == start && !state.empty() && state != "Z" && state != "X";
}

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
