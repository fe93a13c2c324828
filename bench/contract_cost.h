// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The cost of the contracts (fingerprint, deadline, sequence, checks) for a call.
#pragma once

namespace gradwire::bench {

// Measures a barrier of a two-rank channel, and a bare barrier that consists of two flags, on the same two processors.
// Prints the difference.
void print_contract_cost(bool pin);

}  // namespace gradwire::bench
