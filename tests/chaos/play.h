// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Runs one fault: starts the ranks, watches them, and judges the outcome.
#pragma once

#include "tests/chaos/tally.h"

namespace gradwire::testing {

// Forks, so call it while no other thread runs.
Outcome play(const Fault& fault);

// Makes this process run as the user "nobody", permanently. Needs root.
void become_nobody();

}  // namespace gradwire::testing
