// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Threads whose owner was destroyed on the thread itself, where a thread cannot be joined.
#pragma once

#include "gradwire/base/process.h"

namespace gradwire::internal {

// Keeps `thread`, whose body is about to end, until join_parked_threads(). Thread-safe.
void park_thread(Thread thread);

// Joins the parked threads. Called when the next group starts a thread and at the end of the process; a test that
// counts threads calls it too. Does not join the calling thread. Thread-safe.
void join_parked_threads();

}  // namespace gradwire::internal
