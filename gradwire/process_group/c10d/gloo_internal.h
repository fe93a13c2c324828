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

// Whether Gloo's headers were there when this was built.
bool gloo_is_built() noexcept;

// Makes libtorch's ProcessGroupGloo, connected to all peers when it returns. Throws UnsupportedError in a build without
// Gloo's headers. GLOO_SOCKET_IFNAME names the interfaces, as for PyTorch; without it the host's own address decides.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            Milliseconds timeout);

// A group over Gloo, whose ranks meet in `store`; connected when it returns, and the caller's. Ranks that are threads
// may call it at the same time. Throws TimeoutError that names the ranks that did not come, PeerError that names a rank
// which died or failed on the way (a death on this host is seen at once, elsewhere by the time-out), StoreError,
// MismatchError where two ranks claim one number or name different sizes. `processes`: process_identity() of every
// rank, where that is known before; it lets a death be seen of a rank that has not come to `store` yet.
std::shared_ptr<ProcessGroup> make_gloo_group(std::shared_ptr<Store> store, int rank, int size, Milliseconds timeout,
                                              std::vector<std::string> processes = {});

// Ends make_gloo_group() on the ranks that wait in it at `store`: `error` is why `rank` does not come. Never throws.
void tell_gloo_failed(const std::shared_ptr<Store>& store, int rank, const std::exception_ptr& error) noexcept;

}  // namespace gradwire::internal
