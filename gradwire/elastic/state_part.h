// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What an object gives of its state to another member of an elastic job.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace gradwire {

// A state as text and tensors. Tensors are sent as they are, or copied once where newcomers follow
// (ElasticOptions::follow); text is copied several times, and is for what is small.
struct StatePart {
  std::string text = {};
  std::vector<at::Tensor> tensors = {};  // on the CPU, dense, of any sizes and dtypes
};

}  // namespace gradwire
