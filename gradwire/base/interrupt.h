// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Interrupting blocking calls of one thread: how Ctrl-C ends the waits of Python's main thread.
#pragma once

#include <string_view>

#include "gradwire/base/deadline.h"

namespace gradwire {

// Returns whether the thread must leave the blocking call that it is in. The waiting thread calls the check every 20 to
// 100 ms, most often every kInterruptLook, possibly while it holds locks of gradwire, so the check must not call
// gradwire and must not block. When the check returns true, the blocking call throws AbortedError; a group that was in
// a collective is at its end, as after any error.
using InterruptCheck = bool (*)() noexcept;

// How often a waiting thread calls its check where nothing wakes the thread sooner.
inline constexpr Milliseconds kInterruptLook{50};

// Sets the check of the calling thread; null removes the check. Returns the check before. A new thread has none.
InterruptCheck set_interrupt_check(InterruptCheck check) noexcept;

// The check of a thread for as long as the object exists. Objects of a thread nest; each ends on the thread that made
// it.
class InterruptCheckScope final {
 public:
  // Sets the check of the calling thread; null removes the check. The destructor sets the check from before.
  explicit InterruptCheckScope(InterruptCheck check) noexcept : before_(set_interrupt_check(check)) {}
  ~InterruptCheckScope() { set_interrupt_check(before_); }
  InterruptCheckScope(const InterruptCheckScope&) = delete;
  InterruptCheckScope& operator=(const InterruptCheckScope&) = delete;

 private:
  const InterruptCheck before_;
};

// Returns the check of the calling thread, or null.
InterruptCheck interrupt_check() noexcept;

// Throws AbortedError, whose message begins with `call`, when the check of the calling thread returns true.
void throw_if_interrupted(std::string_view call);

}  // namespace gradwire
