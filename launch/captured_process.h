// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A program whose output is collected while other work goes on.
#pragma once

#include <string>
#include <vector>

#include "gradwire/base/os_handles.h"

namespace gradwire::launch {

// A child process and what it has written to its stdout so far. Its stderr is dropped. Another part of this process may
// reap the child: its end does not matter here, and no other process is taken for it. For one thread.
class CapturedProcess final {
 public:
  // Starts the program, which is looked for in PATH. A program that cannot be started has no output.
  explicit CapturedProcess(std::vector<std::string> command);
  // Kills the program, and waits up to a tenth of a second for its end.
  ~CapturedProcess();
  CapturedProcess(const CapturedProcess&) = delete;
  CapturedProcess& operator=(const CapturedProcess&) = delete;

  // Readable while read() has something to do; -1 once the output has ended.
  int fd() const noexcept { return reader_.get(); }
  // Whether the output has come to its end.
  bool has_ended() const noexcept { return !reader_; }
  // Collects the output that is there. Does not wait.
  void read();
  // The output so far.
  const std::string& output() const noexcept { return output_; }

 private:
  UniqueFd reader_;
  UniqueFd pidfd_;
  std::string output_;
};

}  // namespace gradwire::launch
