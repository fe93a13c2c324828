// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Cuts a stream of bytes into lines, and keeps the last ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradwire::launch {

// Collects bytes and emits whole lines. A line ends at "\n", "\r\n" or a lone "\r" (a progress bar's redraw), none
// of which is part of it. A line longer than the limit is handed out in pieces of that many bytes, so memory stays
// bounded.
class LineSplitter {
 public:
  explicit LineSplitter(std::size_t limit = std::size_t{1} << 20) : limit_(limit) {}

  // Calls emit(std::string_view) for each line that `bytes` completes. The view is valid during the call. Calls ended()
  // where a line that was redrawn() has ended in "\r\n" after all, which shows in the bytes that follow.
  template <class Emit, class Ended>
  void feed(std::string_view bytes, Emit&& emit, Ended&& ended) {
    while (!bytes.empty()) {
      if (std::exchange(after_return_, false) && bytes.front() == '\n') {
        bytes.remove_prefix(1);
        if (std::exchange(redrawn_, false)) ended();
        continue;
      }
      const std::size_t end = bytes.substr(0, limit_ - partial_.size() + 1).find_first_of("\r\n");
      if (end == std::string_view::npos) {
        const std::size_t taken = std::min(bytes.size(), limit_ - partial_.size());
        partial_.append(bytes.substr(0, taken));
        bytes.remove_prefix(taken);
        if (partial_.size() == limit_ && !bytes.empty()) finish(emit);
        continue;
      }
      partial_.append(bytes.substr(0, end));
      after_return_ = bytes[end] == '\r';
      bytes.remove_prefix(end + 1);
      redrawn_ = after_return_ && (bytes.empty() || bytes.front() != '\n');
      emit(std::string_view(partial_));
      partial_.clear();
    }
  }

  template <class Emit>
  void feed(std::string_view bytes, Emit&& emit) {
    feed(bytes, emit, [] {});
  }

  // Within emit: whether the line ended in a lone "\r", so that the next line overwrites it.
  bool redrawn() const noexcept { return redrawn_; }

  // The stream has ended: emits the unfinished line, if there is one.
  template <class Emit>
  void finish(Emit&& emit) {
    redrawn_ = false;
    if (partial_.empty()) return;
    emit(std::string_view(partial_));
    partial_.clear();
  }

 private:
  std::size_t limit_;
  std::string partial_;
  bool after_return_ = false;
  bool redrawn_ = false;
};

// The last `count` lines of a stream, each cut to at most `longest` bytes. The frames of libtorch's backtraces ("frame
// #3: ...") are left out: they would push out the error, which comes before.
class LastLines {
 public:
  explicit LastLines(std::size_t count = 10, std::size_t longest = 1000) : count_(count), longest_(longest) {}
  void add(std::string_view line);
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::size_t count_;
  std::size_t longest_;
  std::deque<std::string> lines_;
};

// Returns the last lines of a file, from byte `from` on; no lines when the file cannot be read.
std::vector<std::string> last_lines_of_file(const std::string& path, std::uintmax_t from = 0);

}  // namespace gradwire::launch
