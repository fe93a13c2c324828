// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/lines.h"

#include <fstream>
#include <ios>
#include <iterator>

namespace gradwire::launch {

void LastLines::add(std::string_view line) {
  if (line.starts_with("frame #")) return;
  lines_.emplace_back(line.substr(0, longest_));
  if (line.size() > longest_) lines_.back() += "...";
  if (lines_.size() > count_) lines_.pop_front();
}

std::vector<std::string> last_lines_of_file(const std::string& path, std::uintmax_t from) {
  constexpr std::streamoff kWindow = 64 * 1024;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::streamoff size = file.tellg();
  file.seekg(std::max({std::streamoff{0}, size - kWindow, std::min(size, static_cast<std::streamoff>(from))}));
  std::string bytes;
  try {
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  } catch (const std::ios_base::failure&) {
    return {};
  }
  LineSplitter splitter;
  LastLines last;
  const auto add = [&](std::string_view line) { last.add(line); };
  splitter.feed(bytes, add);
  splitter.finish(add);
  return last.lines();
}

}  // namespace gradwire::launch
