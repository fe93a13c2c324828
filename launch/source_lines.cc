// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/source_lines.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <utility>

#include "gradwire/base/strings.h"
#include "launch/poll_timeout.h"

namespace gradwire::launch {
namespace {

using Offsets = std::map<std::uint64_t, std::string>;

std::vector<std::string> addr2line_command(const std::string& module, const Offsets& offsets) {
  std::vector<std::string> command = {"addr2line", "-a", "-i", "-f", "-C", "-e", module};
  for (const auto& [offset, line] : offsets) {
    char address[24];
    // A return address may belong to the next line.
    std::snprintf(address, sizeof(address), "0x%llx", static_cast<unsigned long long>(offset - 1));
    command.emplace_back(address);
  }
  return command;
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

// Visits the places whose lines are looked up.
template <class Visit>
void SourceLines::for_each_place(const Visit& visit) {
  for (observe::RankTable& table : tables_) {
    for (observe::GroupTable& group : table.groups) {
      for (observe::CallRow& call : group.calls) {
        if (call.place.line.empty() && !call.place.module.empty() && !is_large(call.place.module)) visit(call.place);
      }
    }
  }
}

SourceLines::SourceLines(std::vector<observe::RankTable> tables, Deadline deadline)
    : tables_(std::move(tables)), deadline_(deadline) {
  for_each_place([&](const observe::CallerPlace& place) { modules_[place.module][place.offset]; });
  module_ = modules_.begin();
  go_on();
}

void SourceLines::go_on() {
  while (module_ != modules_.end()) {
    if (!program_) program_.emplace(addr2line_command(module_->first, module_->second));
    program_->read();
    if (deadline_.expired()) return give_up();
    if (!program_->has_ended()) return;
    take_lines();
  }
}

void SourceLines::take_lines() {
  const auto lines = lines_from_addr2line(program_->output());
  auto line = lines.begin();
  for (auto each = module_->second.begin(); each != module_->second.end() && line != lines.end(); ++each, ++line)
    each->second = *line;
  program_.reset();
  ++module_;
}

void SourceLines::give_up() {
  if (program_) take_lines();
  module_ = modules_.end();
}

std::vector<observe::RankTable> SourceLines::take() && {
  give_up();
  for_each_place([&](observe::CallerPlace& place) { place.line = modules_[place.module][place.offset]; });
  return std::move(tables_);
}

void add_source_lines(std::vector<observe::RankTable>& tables, Deadline deadline) {
  SourceLines lookup(std::move(tables), deadline);
  while (!lookup.has_ended()) {
    pollfd polled{lookup.fd(), POLLIN, 0};
    ::poll(&polled, 1, poll_timeout(deadline));
    lookup.go_on();
  }
  tables = std::move(lookup).take();
}

}  // namespace gradwire::launch
