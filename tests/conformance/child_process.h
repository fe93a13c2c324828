// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Forked children of a test, whose failed expectations reach the test through a pipe.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/base/os_handles.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing {

// One forked child. The kernel kills the child when its parent dies. The destructor kills and reaps a child that still
// runs. Movable.
class ChildProcess {
 public:
  // Forks. The child runs `body`, and ends without running the destructors of the parent's objects. Call it only while
  // no other thread runs.
  ChildProcess(std::string name, const std::function<void()>& body);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  pid_t pid() const noexcept { return pid_; }
  void signal(int number) const;

  struct Ending {
    bool ended = false;  // false: still ran at the deadline
    bool exited = false;
    int code = 0;          // exit code, or the signal's number
    std::string failures;  // text of the failed expectations, empty when there were none
    std::string notes;     // the lines of note()
  };
  // Waits for the child's end, and reaps the child.
  Ending wait(Deadline deadline);
  // Waits, and adds a failure to the running test unless the child succeeded and ended by itself.
  void expect_success(Deadline deadline);

  // In a child: sends a line to the parent, which finds it in Ending::notes.
  static void note(const std::string& line);

 private:
  void drain();

  std::string name_;
  pid_t pid_ = -1;
  UniqueFd failures_;
  UniqueFd notes_;
  Ending ending_;
};

// In a forked child: the kernel kills this process when `parent`, which forked it, ends.
void end_with_parent(pid_t parent);

using test_support::TemporaryFolder;

}  // namespace gradwire::testing
