// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/parameter_hash.h"

#include <torch/types.h>

#include <iomanip>
#include <sstream>

namespace char_lm {

std::uint64_t hash_parameters(const torch::nn::Module& module) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const torch::Tensor& parameter : module.parameters()) {
    const torch::Tensor dense = parameter.detach().cpu().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
    for (std::size_t i = 0; i < dense.nbytes(); ++i) {
      hash = (hash ^ bytes[i]) * 0x100000001b3;
    }
  }
  return hash;
}

std::string hash_text(std::uint64_t hash) {
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << hash;
  return out.str();
}

}  // namespace char_lm
