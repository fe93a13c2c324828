// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Makes pipes.
#pragma once

#include <string>

#include "gradwire/base/os_handles.h"

namespace gradwire::launch {

// The two ends of a pipe. A program that this process becomes or starts gets neither, unless it is given one.
struct Pipe {
  UniqueFd reader;
  UniqueFd writer;
};

// Throws LaunchError "cannot make a pipe WHAT_FOR: REASON", as "cannot make a pipe to a host: Too many open files".
Pipe make_pipe(const std::string& what_for);

}  // namespace gradwire::launch
