// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which ranks share a host, and a hybrid group of shm and Gloo out of that.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// What ranks that can share memory have in common and others have not: the running kernel and the network that
// processes see. GRADWIRE_HOST, any name, says it instead: for containers that differ in neither and cannot share
// memory all the same. Never the name of the host.
std::string host_identity();

// The identity of every rank's host, by rank. Collective in `store`, where each rank also says which process it is
// (rendezvous::register_rank). Throws TimeoutError that names the ranks that did not say, PeerError that names those
// which died on this host meanwhile, InvalidArgument for a rank out of range, ResourceError where this host cannot be
// told from others.
std::vector<std::string> exchange_hosts(Store& store, int rank, int size, Milliseconds timeout);

// A HybridGroup: shm on each host, Gloo between them. `hosts` is what exchange_hosts() gave. Collective in `store`. The
// result is the caller's. Throws as make_process_group() does for "shm" and "gloo", in the ranks of the whole group; a
// failure on one host ends the call on the others, too.
std::shared_ptr<ProcessGroup> make_hybrid_group(const std::shared_ptr<Store>& store, int rank,
                                                const std::vector<std::string>& hosts, Milliseconds timeout);

}  // namespace gradwire::internal
