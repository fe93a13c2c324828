// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Calls on expanded tensors, whose elements share memory.
#pragma once

#include <functional>
#include <memory>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Whether elements of one of the tensors share memory.
bool any_expanded(const Tensors& tensors);

// Returns a contiguous copy for the next call on `group`: it holds the values of `tensor` when it is that call's turn.
at::Tensor copied_in_turn(ProcessGroup& group, const at::Tensor& tensor);

// Makes `call`, a call on `group`, with such copies of `tensors`, because a group writes each element once. Returns a
// Work that ends when the results are in `tensors`: elements that share memory get the result of the first of them.
std::shared_ptr<Work> call_with_copies(ProcessGroup& group, const Tensors& tensors,
                                       const std::function<std::shared_ptr<Work>(const Tensors& copies)>& call);

}  // namespace gradwire::internal
