// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/job_events.h"

#include <poll.h>

#include <cerrno>
#include <cstddef>

#include "launch/launch_error.h"
#include "launch/poll_timeout.h"

namespace gradwire::launch {

JobNews JobEvents::wait(Deadline until) {
  std::vector<pollfd> polled = {{front_fd_, POLLIN, 0},
                                {alarm_fd_, POLLIN, 0},
                                {signals_.fd(), POLLIN, 0},
                                {deaths_.fd(), POLLIN, 0},
                                {stall_.lookup_fd(), POLLIN, 0}};
  const std::size_t own = polled.size();
  output_.append_interest(polled);
  if (::poll(polled.data(), polled.size(), poll_timeout(until.earlier(stall_.lookup_end()))) < 0) {
    if (errno == EINTR) return {};
    throw_errno("cannot wait for the ranks and their output");
  }
  output_.handle(polled.data() + own);
  stall_.look_up();
  JobNews news{.front_died = polled[0].revents != 0, .alarm = polled[1].revents != 0, .ended = deaths_.ended()};
  if (news.front_died) front_fd_ = -1;
  if (news.alarm) alarm_fd_ = -1;
  while (const auto signal = signals_.next()) news.signals.push_back(*signal);
  return news;
}

}  // namespace gradwire::launch
