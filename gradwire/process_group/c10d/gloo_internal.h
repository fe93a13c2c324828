// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// libtorch's own Gloo.
#pragma once

#include <memory>

#include "gradwire/process_group/c10d/from_c10d.h"

namespace gradwire::internal {

// Whether Gloo's headers were there when this was built.
bool gloo_is_built() noexcept;

// Makes libtorch's ProcessGroupGloo, connected to all peers when it returns. Throws UnsupportedError in a build without
// Gloo's headers. GLOO_SOCKET_IFNAME names the interfaces, as for PyTorch; without it the host's own address decides.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            Milliseconds timeout);

// A group over Gloo, whose ranks meet in `store`. Throws TimeoutError that names the ranks that did not come,
// MismatchError where two ranks claim one number or name different sizes.
std::shared_ptr<ProcessGroup> make_gloo_group(std::shared_ptr<Store> store, int rank, int size, Milliseconds timeout);

}  // namespace gradwire::internal
