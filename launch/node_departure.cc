// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/node_departure.h"

#include <signal.h>

#include <utility>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/rank_process.h"

namespace gradwire::launch {

void NodeDeparture::attempt_begins(Time now) {
  meets_ = false;
  if (is_leaving()) patience_ = Deadline::after(heartbeat_timeout_, now);
}

std::optional<NodeEnd> NodeDeparture::on_signal(int signal, Time now) {
  const bool is_repeated = interruptions_.take(signal, now) == Interruptions::Kind::repeated;
  if (!is_leaving())
    return leave(128 + signal, concat("node ", node_, " was interrupted by ", name_of_signal(signal)), now);
  if (!is_repeated) patience_ = Deadline::after(Milliseconds::zero(), now);
  return std::nullopt;
}

NodeEnd NodeDeparture::on_timeout(Time now) {
  return leave(kTimeoutExit, concat("--timeout passed on node ", node_), now);
}

void NodeDeparture::on_front_death(Time now) noexcept {
  exit_code_ = 128 + SIGKILL;
  patience_ = Deadline::after(Milliseconds::zero(), now);
}

NodeEnd NodeDeparture::leave(int exit_code, std::string what, Time now) {
  exit_code_ = exit_code;
  patience_ = Deadline::after(heartbeat_timeout_, now);
  return {NodeEnd::Kind::final, exit_code, std::move(what)};
}

}  // namespace gradwire::launch
