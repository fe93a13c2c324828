// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Whether the class of a group, which may be a user's, wrote into the tensors that it was given.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/validate_internal.h"

namespace gradwire::internal {

// The tensors that a group was given to write into, in order. (Not by reference counting: a call costs microseconds.)
using Given = c10::SmallVector<std::pair<const c10::TensorImpl*, std::int64_t>, 8>;

inline void collect(const at::Tensor& tensor, Given& given) {
  given.emplace_back(tensor.unsafeGetTensorImpl(), tensor.defined() ? tensor.numel() : -1);
}

template <class T>
void collect(const std::vector<T>& list, Given& given) {
  for (const T& element : list) collect(element, given);
}

// Makes `call`, and throws where the class of `group`, which may be a user's, did not keep to the tensors of `outputs`:
// what it puts in their place would be lost.
template <class Outputs, class Call>
std::shared_ptr<Work> call_that_writes(const char* operation, const ProcessGroup& group, const Outputs& outputs,
                                       const Call& call) {
  Given before, after;
  collect(outputs, before);
  std::shared_ptr<Work> work = call();
  collect(outputs, after);
  // A group may have moved the list into its task.
  const std::size_t kept = before.size() == after.size() ? before.size() : 0;
  for (std::size_t i = 0; i < kept; ++i) {
    if (before[i] == after[i] || after[i].second < 0) continue;
    throw InvalidArgument(
        concat(name_group(group), ": ", operation, " was given a tensor of ", before[i].second,
               " elements to write into, as number ", i, ", and ",
               before[i].first == after[i].first ? "resized it to" : "put in its place another one of", " ",
               after[i].second, "; the class of the group must write into the tensors it is given, as they are"));
  }
  return work;
}

}  // namespace gradwire::internal
