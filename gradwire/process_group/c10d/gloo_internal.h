// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// libtorch's own Gloo.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/process_group/c10d/from_c10d.h"

namespace gradwire::internal {

// Whether this build has the backend "gloo", which needs Gloo's headers.
bool gloo_is_built() noexcept;

// Makes libtorch's ProcessGroupGloo, connected to all peers when it returns. Throws UnsupportedError in a build without
// Gloo's headers. GLOO_SOCKET_IFNAME names the interfaces, as for PyTorch; without it the host's own address decides.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            Milliseconds timeout);

// Makes a group over Gloo by `deadline`, whose ranks meet in `store`. The group is connected when the function returns;
// the caller owns it. Ranks that are threads may call the function at the same time. Throws TimeoutError that names the
// missing ranks; PeerError that names a rank that died or failed meanwhile (a death on this host is noticed at once,
// elsewhere by the timeout); StoreError; MismatchError where two ranks have the same number or name different sizes.
// `processes` has process_identity() of every rank, where the caller knows it: with it, the death of a rank that has
// not come to `store` yet is noticed too.
std::shared_ptr<ProcessGroup> make_gloo_group(Deadline deadline, std::shared_ptr<Store> store, int rank, int size,
                                              Milliseconds timeout, std::vector<std::string> processes = {});

// Ends make_gloo_group() on the ranks that wait in it at `store`, because `rank` failed with `error`. Never throws.
void tell_gloo_failed(const std::shared_ptr<Store>& store, int rank, const std::exception_ptr& error) noexcept;

}  // namespace gradwire::internal
