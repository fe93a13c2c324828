// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {

// A bucket from its launch to the end of the iteration.
struct Reducer::Flight {
  at::Tensor result;           // what becomes the gradients; undefined until it is known
  Future future;               // without lanes: still under way
  std::shared_ptr<Work> work;  // without lanes: kept until its end; a user's group may hold it nowhere
};

}  // namespace gradwire::internal
