// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Signals as lines of text: how --hosts passes them on to the launchers of the hosts. ssh carries no signals, and ends
// when it gets one itself. docs/format/launcher.md has the format.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace gradwire::launch {

// Writes the line of `signal` to `fd`, a pipe. Returns false where there is no line for the signal, and where the pipe
// takes none now.
bool write_signal_line(int fd, int signal) noexcept;

// Finds the lines in what is read from the pipe. For one thread.
class SignalLines final {
 public:
  // Takes the next bytes, and calls `found` with the signal of each line that ends in them. Other lines are dropped.
  void take(std::string_view bytes, const std::function<void(int signal)>& found);

 private:
  std::string line_;  // the beginning of one
};

}  // namespace gradwire::launch
