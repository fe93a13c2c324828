// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Barrier, and the exchange of fingerprints that is also the entry of every other collective (GenericChannel::run).
//
// Algorithm: direct exchange. Terms: N ranks, F = 40 bytes of fingerprint (fingerprint_internal.h).
// Steps: 1. Every rank sends its fingerprint to every other and waits for theirs: once all have come, all have entered.
// Bytes on the wire: N (N - 1) F, N - 1 messages out and in for each rank.
//
// A dissemination exchange would send N ceil(log2 N) messages in ceil(log2 N) steps. It was not taken because a rank
// then hears of most others through third ones: it could not tell which rank is missing from which rank is waiting, and
// errors must name the right one. For N <= 64 the messages that this saves are few, and one step is the shortest
// latency there is.
#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/generic_channel.h"

namespace gradwire {

void GenericChannel::barrier(const CallOptions& options) {
  run(fingerprint_of(Operation::barrier), options, [] {});
}

}  // namespace gradwire
