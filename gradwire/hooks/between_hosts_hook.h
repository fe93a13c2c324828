// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Compressing only what crosses the network.
#pragma once

#include <memory>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire {

// Over a group of several hosts (HybridGroup): the gradients of a host are added up within the host, `inner` runs on
// the first rank of each host with these sums divided by the ranks that a host has (on average), over the ranks between
// hosts, with their number as the divisor, and what it makes of them goes to all ranks of the host. So a bucket is
// compressed once a host, what compression loses is lost once a host, and memory that makes up for it lies with the
// first rank of each host: a checkpoint takes state_dict() from those. Over any other group: `inner` as it is.
//
// All ranks hold the same bits where `inner` gives the first ranks the same. Traits and memory are the inner hook's.
// `inner` uses the bucket's group and no other. make_hook() puts this around every hook that compresses. Throws
// InvalidArgument for a null hook.
std::shared_ptr<CommHook> make_between_hosts_hook(std::shared_ptr<CommHook> inner);

}  // namespace gradwire
