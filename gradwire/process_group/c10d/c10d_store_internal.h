// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Stores for engines whose waits must check something again and again.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gradwire/store/store.h"

namespace gradwire::internal {

// As store_to_c10d(). A call that waits for keys calls `check` every 100 ms, on its own thread; the call passes on
// unchanged what `check` throws. The result and its clones hold `check`.
c10::intrusive_ptr<c10d::Store> store_to_c10d_checking(std::shared_ptr<Store> store, std::function<void()> check);

}  // namespace gradwire::internal
