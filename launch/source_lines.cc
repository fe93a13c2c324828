// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/source_lines.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

using Offsets = std::map<std::uint64_t, std::string>;  // with the lines that were found

// What a program prints on its stdout until the deadline; then the program is killed.
std::string output_of(std::vector<std::string> command, Deadline deadline) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "";
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writer.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  const int failed = ::posix_spawnp(&pid, arguments.front(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  writer.reset();
  if (failed != 0) return "";
  std::string text;
  std::array<char, 4096> buffer;
  while (!deadline.expired()) {
    pollfd polled{reader.get(), POLLIN, 0};
    ::poll(&polled, 1, static_cast<int>(std::min<long long>(deadline.remaining().count(), INT_MAX)));
    if (polled.revents == 0) continue;
    const ssize_t count = ::read(reader.get(), buffer.data(), buffer.size());
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  return text;
}

void find_lines(const std::string& module, Offsets& offsets, Deadline deadline) {
  std::vector<std::string> command = {"addr2line", "-a", "-i", "-f", "-C", "-e", module};
  for (const auto& [offset, line] : offsets) {
    char address[24];
    // A return address may belong to the next line.
    std::snprintf(address, sizeof(address), "0x%llx", static_cast<unsigned long long>(offset - 1));
    command.emplace_back(address);
  }
  const auto lines = lines_from_addr2line(output_of(std::move(command), deadline));
  auto line = lines.begin();
  for (auto each = offsets.begin(); each != offsets.end() && line != lines.end(); ++each, ++line) each->second = *line;
}

// "train" of "ns::(anonymous namespace)::train(int)".
std::string short_name(std::string function) {
  constexpr std::string_view kAnonymous = "(anonymous namespace)::";
  for (auto at = function.find(kAnonymous); at != std::string::npos; at = function.find(kAnonymous))
    function.erase(at, kAnonymous.size());
  function.erase(std::min(function.find('('), function.size()));
  const auto colons = function.rfind("::");
  return colons == std::string::npos ? function : function.substr(colons + 2);
}

// "train.cc:41 (main)"; empty where addr2line does not know the line.
std::string line_of(const std::string& function, const std::string& place) {
  const std::string file = place.substr(place.rfind('/') + 1);
  const auto colon = file.find(':');
  const bool known =
      colon != std::string::npos && colon + 1 < file.size() && file[colon + 1] >= '1' && file[colon + 1] <= '9';
  if (!known) return "";
  const auto end = file.find_first_not_of("0123456789", colon + 1);
  return concat(file.substr(0, end), " (", short_name(function), ")");
}

// Functions in gradwire's headers are part of the program's code, but say nothing of the program.
bool is_inlined_by_gradwire(const std::string& place) {
  return place.find("/gradwire/") != std::string::npos && place.find(".h:") != std::string::npos;
}

bool is_large(const std::string& module) {
  const std::string name = module.substr(module.rfind('/') + 1);
  return name.starts_with("libtorch") || name.starts_with("libc10");
}

}  // namespace

std::vector<std::string> lines_from_addr2line(const std::string& output) {
  std::istringstream stream(output);
  std::vector<std::string> lines;
  bool is_final = false;  // a function of the program itself was found for this address
  for (std::string function; std::getline(stream, function);) {
    if (function.starts_with("0x")) {
      lines.emplace_back();
      is_final = false;
      continue;
    }
    std::string place;
    if (!std::getline(stream, place) || lines.empty()) break;
    const std::string line = is_final ? "" : line_of(function, place);
    if (line.empty()) continue;
    is_final = !is_inlined_by_gradwire(place);
    if (is_final || lines.back().empty()) lines.back() = line;
  }
  return lines;
}

void add_source_lines(std::vector<observe::RankTable>& tables, Deadline deadline) {
  std::map<std::string, Offsets> modules;
  const auto for_each_place = [&](const auto& visit) {
    for (observe::RankTable& table : tables) {
      for (observe::GroupTable& group : table.groups) {
        for (observe::CallRow& call : group.calls) {
          if (call.place.line.empty() && !call.place.module.empty() && !is_large(call.place.module)) visit(call.place);
        }
      }
    }
  };
  for_each_place([&](const observe::CallerPlace& place) { modules[place.module][place.offset]; });
  for (auto& [module, offsets] : modules) find_lines(module, offsets, deadline);
  for_each_place([&](observe::CallerPlace& place) { place.line = modules[place.module][place.offset]; });
}

}  // namespace gradwire::launch
