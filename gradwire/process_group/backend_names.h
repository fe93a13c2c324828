// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which backends a process group can have.
#pragma once

#include <string>
#include <vector>

namespace gradwire {

// The names that init_process_group() and make_process_group() take, for messages and options.
std::vector<std::string> backend_names();

}  // namespace gradwire
