// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Threads whose owner was destroyed on the thread itself, and which therefore nobody could join there.
#pragma once

#include "gradwire/base/process.h"

namespace gradwire::internal {

// Keeps `thread`, whose body is about to end, until join_parked_threads(). Thread-safe.
void park_thread(Thread thread);

// Joins what was parked. Called when the next group starts a thread and at the end of the process; a test that counts
// threads calls it too. A parked thread that calls it is left out. Thread-safe.
void join_parked_threads();

}  // namespace gradwire::internal
