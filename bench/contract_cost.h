// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the contracts (fingerprint, deadline, sequence, checks) cost a call.
#pragma once

namespace gradwire::bench {

// Measures a barrier of a two-rank channel against a bare one, two flags and nothing else, on the same two processors,
// and prints the difference.
void print_contract_cost(bool pin);

}  // namespace gradwire::bench
