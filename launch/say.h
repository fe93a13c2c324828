// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Sentences for the user from threads and processes that must not wait for the reader of stderr.
#pragma once

#include <string>

#include "gradwire/base/deadline.h"

namespace gradwire::launch {

// How long say_unless_it_waits() gives a reader that is slow.
inline constexpr Milliseconds kReaderTime{100};

// Writes "gradwire-run: SENTENCE" as a line to stderr. Where the reader of stderr takes nothing for `patience` (a
// pager, a stopped terminal), or is gone, the line is dropped. The process must ignore SIGPIPE. Thread-safe.
void say_unless_it_waits(const std::string& sentence, Milliseconds patience = kReaderTime);

}  // namespace gradwire::launch
