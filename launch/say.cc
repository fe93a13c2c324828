// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/say.h"

#include <poll.h>
#include <unistd.h>

#include "gradwire/base/strings.h"
#include "launch/output_sink.h"

namespace gradwire::launch {
namespace {

std::string as_line(const std::string& sentence) { return concat("gradwire-run: ", sentence, "\n"); }

}  // namespace

void say_unless_it_waits(const std::string& sentence, Milliseconds patience) {
  OutputSink err(STDERR_FILENO);
  err.append(as_line(sentence));
  pollfd writable = err.interest();
  ::poll(&writable, 1, static_cast<int>(patience.count()));
  err.flush_some();
}

void say_at_the_end(const std::string& sentence, SignalQueue& signals, int front_fd) {
  OutputSink err(STDERR_FILENO);
  err.append(as_line(sentence));
  for (err.flush_some(); !err.empty(); err.flush_some()) {
    pollfd polled[3] = {err.interest(), {signals.fd(), POLLIN, 0}, {front_fd, POLLIN, 0}};
    ::poll(polled, 3, -1);
    if (polled[2].revents != 0 || signals.next_that_ends()) return;
  }
}

}  // namespace gradwire::launch
