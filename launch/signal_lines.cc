// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/signal_lines.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstddef>

namespace gradwire::launch {
namespace {

struct NamedSignal {
  int signal;
  std::string_view line;
};
constexpr std::array kSignals = {NamedSignal{SIGHUP, "signal HUP\n"},   NamedSignal{SIGINT, "signal INT\n"},
                                 NamedSignal{SIGQUIT, "signal QUIT\n"}, NamedSignal{SIGTERM, "signal TERM\n"},
                                 NamedSignal{SIGUSR1, "signal USR1\n"}, NamedSignal{SIGUSR2, "signal USR2\n"},
                                 NamedSignal{SIGTSTP, "signal TSTP\n"}, NamedSignal{SIGCONT, "signal CONT\n"}};

// Longer than any of them.
constexpr std::size_t kLongest = 16;

}  // namespace

bool write_signal_line(int fd, int signal) noexcept {
  for (const NamedSignal& each : kSignals) {
    if (each.signal != signal) continue;
    // A pipe that is writable takes a short line at once.
    pollfd writable{fd, POLLOUT, 0};
    return ::poll(&writable, 1, 0) == 1 && (writable.revents & POLLOUT) != 0 &&
           ::write(fd, each.line.data(), each.line.size()) == static_cast<ssize_t>(each.line.size());
  }
  return false;
}

void SignalLines::take(std::string_view bytes, const std::function<void(int signal)>& found) {
  for (const char byte : bytes) {
    if (line_.size() < kLongest) line_ += byte;
    if (byte != '\n') continue;
    for (const NamedSignal& each : kSignals) {
      if (each.line == line_) found(each.signal);
    }
    line_.clear();
  }
}

}  // namespace gradwire::launch
