// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A wrapper that runs a hook between hosts only, so only data that crosses the network is compressed.
#pragma once

#include <memory>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire {

// Returns a hook that runs `inner` between hosts. Over a group of several hosts (HybridGroup) the hook takes three
// steps:
//
//   1. The ranks of each host sum their gradients within the host.
//   2. The first rank of each host runs `inner` over the group of these first ranks. The bucket then holds the sum
//      divided by the average number of ranks on a host, and bucket.divisor() is the number of hosts.
//   3. The first rank of each host sends the result to the ranks of the host.
//
// So a bucket is compressed once on each host, and compression loses once on each host. The state of `inner` lies with
// the first rank of each host: a checkpoint takes state_dict() from these ranks. Over any other group the hook calls
// `inner` with the bucket unchanged.
//
// All ranks hold the same bits if `inner` gives the first ranks the same bits. The hook has the traits and the state of
// `inner`, except that the identity names the wrapper too. `inner` must use the bucket's group only. make_hook() wraps
// every hook that compresses. Throws InvalidArgument for a null hook.
std::shared_ptr<CommHook> make_between_hosts_hook(std::shared_ptr<CommHook> inner);

}  // namespace gradwire
