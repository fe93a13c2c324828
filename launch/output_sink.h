// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The launcher's own stdout or stderr, written without ever blocking on a slow reader.
#pragma once

#include <poll.h>

#include <string>
#include <string_view>

namespace gradwire::launch {

// A queue in front of a descriptor that the sink does not own. The descriptor is shared with other processes, so it is
// not made non-blocking; a reader that stalls (a pager, a stopped terminal) must not keep the launcher from watching
// its ranks, so the sink asks poll() before each write and writes no more than a pipe takes at once.
class OutputSink {
 public:
  explicit OutputSink(int fd);

  // Queues bytes; flush_some() writes them.
  void append(std::string_view bytes) {
    if (!gone_) queue_.append(bytes);
  }
  // Writes what the descriptor takes now.
  void flush_some();

  bool empty() const noexcept { return sent_ == queue_.size(); }
  // Whether so much is waiting that reading from the ranks should pause; they then wait in their own write().
  bool congested() const noexcept { return queue_.size() - sent_ > kCongested; }
  // What to poll for: nothing while the queue is empty.
  pollfd interest() const noexcept { return {empty() ? -1 : fd_, POLLOUT, 0}; }
  bool is_terminal() const noexcept { return terminal_; }

 private:
  static constexpr std::size_t kCongested = std::size_t{4} << 20;

  int fd_;
  bool file_;  // a regular file or a device that never blocks
  bool terminal_;
  bool gone_ = false;  // the reader has closed: everything is dropped from then on
  std::string queue_;
  std::size_t sent_ = 0;
};

}  // namespace gradwire::launch
