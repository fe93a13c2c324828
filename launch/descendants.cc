// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/descendants.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string>

#include "launch/launch_error.h"
#include "launch/process_look.h"

namespace gradwire::launch {
namespace {

std::optional<pid_t> parent_of(const std::filesystem::path& process) {
  const std::string text = read_proc_file((process / "stat").string());
  // "pid (name) state parent ...": the name may hold anything, parentheses too.
  const auto close = text.rfind(')');
  if (close == std::string::npos || close + 4 >= text.size()) return std::nullopt;
  pid_t parent = 0;
  std::from_chars(text.data() + close + 4, text.data() + text.size(), parent);
  return parent;
}

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> children;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    pid_t pid = 0;
    const auto result = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (result.ec != std::errc() || result.ptr != name.data() + name.size()) continue;
    if (parent_of(entry->path()) == ::getpid()) children.push_back(pid);
  }
  return children;
}

}  // namespace

Descendants::Descendants() : before_(children_of_this_process()) {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw_errno("cannot become the parent of what the ranks leave behind");
}

std::vector<pid_t> Descendants::children() const {
  auto children = children_of_this_process();
  std::erase_if(children, [&](pid_t pid) { return std::find(before_.begin(), before_.end(), pid) != before_.end(); });
  return children;
}

}  // namespace gradwire::launch
