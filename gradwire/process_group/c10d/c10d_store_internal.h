// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Stores for engines whose waits must look up.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gradwire/store/store.h"

namespace gradwire::internal {

// As store_to_c10d(). While a call waits for keys it calls `check` every 100 ms, on its own thread; what `check` throws
// leaves the call unchanged. `check` lives as long as the result and its clones.
c10::intrusive_ptr<c10d::Store> store_to_c10d_checking(std::shared_ptr<Store> store, std::function<void()> check);

}  // namespace gradwire::internal
