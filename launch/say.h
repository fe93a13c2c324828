// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Sentences for the user on stderr, whose reader may take nothing for a while (a pager, a stopped terminal).
#pragma once

#include <string>

#include "gradwire/base/deadline.h"
#include "launch/signals.h"

namespace gradwire::launch {

// How long say_unless_it_waits() gives a reader that is slow.
inline constexpr Milliseconds kReaderTime{100};

// Writes "gradwire-run: SENTENCE" as a line to stderr. Where the reader of stderr takes nothing for `patience`, or is
// gone, the line is dropped. The process must ignore SIGPIPE. Thread-safe.
void say_unless_it_waits(const std::string& sentence, Milliseconds patience = kReaderTime);

// The same for the last sentence of a launcher, which has nothing else to do: waits for the reader until a signal that
// ends the job has come, or `front_fd` is readable.
void say_at_the_end(const std::string& sentence, SignalQueue& signals, int front_fd);

}  // namespace gradwire::launch
