// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/say.h"

#include <poll.h>
#include <unistd.h>

#include "gradwire/base/strings.h"
#include "launch/output_sink.h"

namespace gradwire::launch {

void say_unless_it_waits(const std::string& sentence, Milliseconds patience) {
  OutputSink err(STDERR_FILENO);
  err.append(concat("gradwire-run: ", sentence, "\n"));
  pollfd writable = err.interest();
  ::poll(&writable, 1, static_cast<int>(patience.count()));
  err.flush_some();
}

}  // namespace gradwire::launch
