// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A copy of the state of a training job, from which the state can be brought back.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "gradwire/elastic/state_part.h"

namespace gradwire::internal {

// What arrived of a StatePart. The tensors may be as many bytes in one row, and belong to whoever takes them over.
struct ArrivedPart {
  std::string_view text = {};
  std::vector<at::Tensor> tensors = {};
};

// Tensors that stay where they are, and parts that are saved and loaded. Not thread-safe.
class StateCopy final {
 public:
  // Copies the values of `tensors` and of the tensors in `rest`. The memory of the last copy serves again for tensors
  // of the same sizes, dtypes and devices.
  void keep(const std::vector<at::Tensor>& tensors, std::vector<StatePart> rest);
  // Copies the values back to `tensors`, which are those of keep(), and returns the rest, whose texts are valid until
  // the next keep(). To be called once after each keep().
  std::vector<ArrivedPart> give_back(const std::vector<at::Tensor>& tensors);

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<StatePart> rest_;
};

}  // namespace gradwire::internal
