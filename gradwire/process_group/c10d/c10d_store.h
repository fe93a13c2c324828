// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire's rendezvous stores for libtorch's engines, and libtorch's stores for gradwire's.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gradwire/store/store.h"

namespace gradwire {

// Returns `store` as a c10d::Store that shares ownership of it. The result has a timeout of its own, which begins as
// that of `store`. A StoreError or TimeoutError of `store` becomes c10::DistStoreError (in Python
// torch.distributed.DistStoreError). Queues, extended calls and, from PyTorch 2.13 on, listKeys() work; watchKey()
// does not. Thread-safe where `store` is, but for setTimeout(). For a store that came from store_from_c10d(), returns
// the store underneath. Throws InvalidArgument when `store` is null.
c10::intrusive_ptr<c10d::Store> store_to_c10d(std::shared_ptr<Store> store);

// Returns `store`, which Python may have made, as a gradwire Store that shares ownership of it. The result has a
// timeout of its own, which begins as that of `store`. Waits that miss their timeout throw TimeoutError; other failures
// throw StoreError; calls that `store` does not have throw UnsupportedError (queues on a file or hash store,
// list_keys() before PyTorch 2.13).
// num_keys() counts as `store` does. Thread-safe where `store` is. For a store that came from store_to_c10d(), returns
// the store underneath. Throws InvalidArgument when `store` is null.
std::shared_ptr<Store> store_from_c10d(c10::intrusive_ptr<c10d::Store> store);

}  // namespace gradwire
