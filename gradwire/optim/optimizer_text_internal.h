// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What an optimizer is, as text for people.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>

namespace gradwire::internal {

// The optimizer's class and its options: "torch::optim::SGD (lr = 0.1, momentum = 0.9, ...)", for each parameter group.
// Equal on ranks that made their optimizers alike. Options that cannot be written into an archive are left out.
std::string optimizer_text(const torch::optim::Optimizer& optimizer);

}  // namespace gradwire::internal
