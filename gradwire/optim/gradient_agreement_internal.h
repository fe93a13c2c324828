// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// An average of the parameters that have a gradient, over ranks that agree which these are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Collective: sets those of `parameters` that have a gradient to their averages over the ranks of `group`, as
// gradwire::average_parameters() does. `parameters` are all parameters; the caller makes the call on a rank without any
// gradient too. Returns whether there were gradients.
//
// Throws a MismatchError on all ranks, before anything is averaged, when `step` differs between ranks, or which
// parameters have a gradient, or the dtypes or sizes of these; the message begins with `who`. A group of one rank does
// not communicate.
bool average_with_gradients(std::string_view who, const std::vector<at::Tensor>& parameters,
                            const std::shared_ptr<ProcessGroup>& group, std::int64_t step);

}  // namespace gradwire::internal
