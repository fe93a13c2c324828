// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Rendezvous stores of ours for libtorch's engines, and libtorch's for ours.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gradwire/store/store.h"

namespace gradwire {

// `store` as a c10d::Store, whose ownership is shared. Its time-out begins as that of `store`; setTimeout() changes
// this object's alone. What `store` throws as StoreError or TimeoutError comes out as c10::DistStoreError, which Python
// knows as torch.distributed.DistStoreError. Queues and extended calls work; listKeys() and watchKey() do not. Where
// `store` came from store_from_c10d(), this is the store underneath. Throws InvalidArgument when `store` is null.
c10::intrusive_ptr<c10d::Store> store_to_c10d(std::shared_ptr<Store> store);

// `store` as a Store of ours, whose ownership is shared; also one that Python made. Waits that miss their time-out
// throw TimeoutError, other failures StoreError, calls that `store` does not have UnsupportedError (queues on a file or
// hash store). set_timeout() changes this object's alone. The number of keys is as `store` counts them. Where `store`
// came from store_to_c10d(), this is the store underneath. Throws InvalidArgument when `store` is null.
std::shared_ptr<Store> store_from_c10d(c10::intrusive_ptr<c10d::Store> store);

}  // namespace gradwire
