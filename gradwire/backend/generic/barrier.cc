// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Barrier, and the exchange of fingerprints that is also the entry of every other collective (GenericChannel::run).
//
// Terms: N ranks, F = 40 bytes of fingerprint (fingerprint_internal.h).
//
// Algorithm for N <= kDirectRanks: direct exchange. Steps: 1. Every rank sends its fingerprint to every other and waits
// for theirs: once all have come, all have entered. Bytes on the wire: N (N - 1) F, N - 1 messages out and in for each
// rank. One step is the shortest latency there is, and a rank sees for itself who is missing.
//
// Algorithm for wide worlds: up and down a tree, 2 ceil(log2 N) steps (tree_entry_internal.h). A dissemination exchange
// would have half as many steps, and N log2 N messages instead of 2 N. It was not taken because a message of the tree
// names a call once for all ranks that made it, and because a tree can tell everyone who is missing: in a dissemination
// a rank hears of most others through third ones, which it cannot tell from those that do not come.
#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/generic_channel.h"

namespace gradwire {

void GenericChannel::barrier(const CallOptions& options) {
  run(fingerprint_of(Operation::barrier), options, [] {});
}

}  // namespace gradwire
