// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Threads and forked children.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <thread>

namespace gradwire {

// The process that made an object. A forked child (a data loader's worker, say) inherits the object's memory but none
// of its threads, and must neither use it nor tear it down: that would signal and unlink things that belong to its
// parent.
class OwnerProcess {
 public:
  OwnerProcess() noexcept;
  // False in a forked child. One load; safe in hot paths.
  bool is_current() const noexcept;
  // Throws InvalidArgument "<what> was made by process P and is used in its forked child C ..." unless is_current().
  void require_current(const char* what) const;

 private:
  pid_t pid_;
  unsigned generation_;  // how many forks lie between the first process and this one
};

// A thread that is joined at the end, except in a forked child, where it does not exist and is let go.
class Thread {
 public:
  Thread() = default;
  // `name` shows in debuggers and `top -H`; at most 15 characters are kept.
  Thread(std::string name, std::function<void()> body);
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();
  void join();
  // Whether this is the thread that asks.
  bool is_current() const noexcept { return thread_.get_id() == std::this_thread::get_id(); }
  bool joinable() const noexcept { return thread_.joinable(); }

 private:
  std::thread thread_;
  OwnerProcess owner_;
};

}  // namespace gradwire
