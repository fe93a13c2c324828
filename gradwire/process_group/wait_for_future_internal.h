// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Waiting for a future with a timeout, and so that the wait can be interrupted, which libtorch's futures cannot do.
#pragma once

#include "gradwire/base/deadline.h"
#include "gradwire/process_group/labelled_work_internal.h"

namespace gradwire::internal {

// Waits for `future` as Work::wait() says; errors of the wait itself name the call `label`. All waits for one future
// share one callback of it, so that polling takes no memory.
void wait_for(const Future& future, Milliseconds timeout, const CallLabel& label);

// Throws the TimeoutError of a wait for the call `label` that has waited `timeout`.
[[noreturn]] void throw_late(const CallLabel& label, Milliseconds timeout);

}  // namespace gradwire::internal
