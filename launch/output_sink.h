// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The launcher's own stdout or stderr, written without blocking on a slow reader.
#pragma once

#include <poll.h>

#include <string>
#include <string_view>
#include <utility>

#include "gradwire/base/os_handles.h"

namespace gradwire::launch {

// A queue before a descriptor that the sink does not own. A reader that stalls (a pager, a stopped terminal) must not
// keep the launcher from watching its ranks. Other processes share the descriptor, so the sink must not make it
// non-blocking. Instead the sink calls poll() before each write, and writes no more than a pipe accepts at once; it
// opens a terminal again, non-blocking.
class OutputSink {
 public:
  explicit OutputSink(int fd);

  // Queues bytes; flush_some() writes them.
  void append(std::string_view bytes) {
    if (!gone_) queue_.append(bytes);
  }
  // Writes as many bytes as the descriptor accepts now.
  void flush_some();

  bool empty() const noexcept { return sent_ == queue_.size(); }
  // Whether the queue is so long that the launcher should stop reading from the ranks; the ranks then wait in write().
  bool congested() const noexcept { return queue_.size() - sent_ > kCongested; }
  // The entry for poll(); it ignores the descriptor while the queue is empty.
  pollfd interest() const noexcept { return {empty() ? -1 : fd_, POLLOUT, 0}; }
  bool is_terminal() const noexcept { return terminal_; }
  // Returns the error, once, with which the descriptor ceased to take bytes; 0 while it takes some, and where a reader
  // has closed a pipe.
  int take_failure() noexcept { return std::exchange(failure_, 0); }

 private:
  static constexpr std::size_t kCongested = std::size_t{4} << 20;

  UniqueFd own_;  // a terminal, opened again
  int fd_;
  bool file_;  // a regular file or a device that never blocks
  bool terminal_;
  bool gone_ = false;  // the reader has closed the pipe, or the file cannot grow: all later bytes are dropped
  int failure_ = 0;
  std::string queue_;
  std::size_t sent_ = 0;
};

}  // namespace gradwire::launch
