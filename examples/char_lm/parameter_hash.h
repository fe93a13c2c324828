// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>

namespace char_lm {

// A hash of the bits of all parameters, in the module's order: equal bits give equal hashes (FNV-1a over bytes, 64
// bits).
std::uint64_t hash_parameters(const torch::nn::Module& module);

// Returns the hash as 16 hexadecimal digits.
std::string hash_text(std::uint64_t hash);

}  // namespace char_lm
