// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Plays one fault: starts the ranks, watches over them, and judges what came of it.
#pragma once

#include "tests/chaos/tally.h"

namespace gradwire::testing {

// Call it where no other thread runs: it forks.
Outcome play(const Fault& fault);

// Makes this process one of the user "nobody", for good. Root only.
void become_nobody();

}  // namespace gradwire::testing
