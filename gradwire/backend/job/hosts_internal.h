// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Finds out which ranks share a host.
#pragma once

#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// Returns the identity (base/host_identity.h) of every rank's host, by rank. Collective in `store`, where each rank
// also registers its process (rendezvous::register_rank). Throws TimeoutError that names the missing ranks, PeerError
// that names ranks that died on this host meanwhile, InvalidArgument for a rank out of range, ResourceError where this
// host cannot be distinguished from others.
std::vector<std::string> exchange_hosts(Store& store, int rank, int size, Milliseconds timeout);

// Tells the others `mine` under the key `what`, and returns what each rank told, by rank. Collective in `store`, where
// the ranks have registered their processes. `missing` says in messages what the ranks did not tell: "on which host
// they are". Throws as exchange_hosts() does.
std::vector<std::string> exchange_texts(Store& store, const char* what, const std::string& mine, int rank, int size,
                                        Deadline deadline, const char* missing);

}  // namespace gradwire::internal
