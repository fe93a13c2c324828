// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a rank reads and writes in the store before it connects. Of N ranks each makes about 4 log2 N + 6 calls.
#pragma once

#include <string>
#include <vector>

#include "gradwire/backend/registry.h"
#include "gradwire/backend/ucx/admission_internal.h"

namespace gradwire::ucx {

// How many ranks are on the host called `host`, this rank's. Returns when all ranks have said on which they are. Throws
// the failure that a rank has announced; PeerError that names a partner which has died; TimeoutError that names the
// ranks that are not there; AbortedError when this thread is interrupted.
int count_ranks_on(const std::string& host, const BackendOptions& options, const std::vector<int>& partners,
                   Deadline deadline);

// Publishes `sealed`, this rank's record, and returns its and its partners' records, by rank; those of the others are
// empty. Throws as count_ranks_on(), and MismatchError as decode_record().
std::vector<RankRecord> exchange_records(const BackendOptions& options, const std::vector<int>& partners,
                                         const std::string& sealed, const std::string& secret, Deadline deadline);

}  // namespace gradwire::ucx
