// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A way out of blocking calls for a thread that is wanted elsewhere: Python's main thread after Ctrl-C.
#pragma once

#include <string_view>

namespace gradwire {

// Whether the thread is to leave the blocking call that it is in. Called on that thread, every 20 to 100 ms of a wait,
// possibly with locks of gradwire's held: it must not call gradwire, nor wait for long. Once it has said yes the call
// ends with an AbortedError, and a group that was in a collective is at its end, as after any error.
using InterruptCheck = bool (*)() noexcept;

// For the calling thread; null: none, as at first. Returns the one before.
InterruptCheck set_interrupt_check(InterruptCheck check) noexcept;

// The calling thread's; null: its waits need not look up.
InterruptCheck interrupt_check() noexcept;

// Throws AbortedError that begins with `call` when the calling thread's check says so.
void throw_if_interrupted(std::string_view call);

}  // namespace gradwire
