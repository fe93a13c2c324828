// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Threads, and objects in forked children.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <thread>

namespace gradwire {

// The process that made an object. A forked child (the worker of a data loader, for example) inherits the memory of the
// object but not its threads. The child must not use the object, and the object's destructor must do nothing there: it
// would signal or unlink what belongs to the parent.
class OwnerProcess {
 public:
  OwnerProcess() noexcept;  // remembers the calling process
  // Returns false in a forked child. Costs one load.
  bool is_current() const noexcept;
  // Throws InvalidArgument "<what> was made by process P and is used in its forked child C ..." unless is_current().
  void require_current(const char* what) const;

 private:
  pid_t pid_;
  unsigned generation_;  // how many forks lie between the first process and this one
};

// A thread whose destructor joins it. In a forked child the thread does not exist, and the destructor does nothing.
class Thread {
 public:
  Thread() = default;
  // Starts a thread that runs `body`. Debuggers and `top -H` show `name`, cut to 15 characters. Throws ResourceError
  // when the kernel refuses a thread.
  Thread(std::string name, std::function<void()> body);
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();
  void join();
  // Returns whether the caller runs on this thread.
  bool is_current() const noexcept { return thread_.get_id() == std::this_thread::get_id(); }
  bool joinable() const noexcept { return thread_.joinable(); }

 private:
  std::thread thread_;
  OwnerProcess owner_;
};

}  // namespace gradwire
