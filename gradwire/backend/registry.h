// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The table of backends.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/store/store.h"

namespace gradwire {

// What every backend needs to find its peers.
struct BackendOptions {
  std::shared_ptr<Store> store;  // seen by all ranks of this group, and prefixed for it: keys are the backend's own
  int rank = 0;
  int size = 1;
  Milliseconds timeout = kDefaultTimeout;  // for the rendezvous
};

struct BackendEntry {
  std::string_view name;                                            // as make_backend() takes it
  std::string_view summary;                                         // one line for help texts
  std::unique_ptr<Backend> (*make)(const BackendOptions& options);  // collective, as make_backend()
  int max_ranks = kMaxWorldSize;                                    // of one group; make_backend() refuses more
};

// The backends built into this library.
std::span<const BackendEntry> builtin_backends() noexcept;

// Makes the backend called `name` out of `table`; blocks until all ranks have done so. The caller owns the result.
// Ranks that are threads may call it at the same time.
//
// Throws InvalidArgument for an unknown name (listing the known), a rank out of [0, size), a size outside
// [1, max_ranks], naming the backends that take the size; TimeoutError that names the missing ranks; PeerError that
// names a rank which died or failed on the way; MismatchError when two ranks claim the same number or name different
// sizes; ResourceError when the machine refuses memory, descriptors or threads to a rank; StoreError. A failure of one
// rank ends the call on all of them, with the same kind and the same ranks, also on those that come later.
std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options,
                                      std::span<const BackendEntry> table = builtin_backends());

}  // namespace gradwire
