// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace char_lm {

// An error that the user can correct. The message is one sentence, and the program ends with exit code 2.
class UserError final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace char_lm
