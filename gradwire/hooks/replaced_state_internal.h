// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Loading an optimizer so that nothing of its old state stays.
#pragma once

#include <torch/optim/optimizer.h>

#include <utility>

namespace gradwire::internal {

// torch::optim::Optimizer::load() writes the states that an archive has, and leaves those of all other parameters as
// they are: an optimizer that has stepped would keep its moments when it loads the archive of one that has not. Calls
// `load`, which loads an archive into `optimizer`, while `optimizer` has no state. When `load` throws, the state from
// before is back; options of the groups that it has changed stay changed.
template <class Load>
void replace_state(torch::optim::Optimizer& optimizer, const Load& load) {
  auto before = std::exchange(optimizer.state(), {});
  try {
    load();
  } catch (...) {
    optimizer.state() = std::move(before);
    throw;
  }
}

}  // namespace gradwire::internal
