// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The names of the backends that a process group can have.
#pragma once

#include <string>
#include <vector>

namespace gradwire {

// Returns the names that init_process_group() and make_process_group() accept ("auto", "shm", "gloo", ...), for
// messages and options. A backend that this build lacks is among them; a request for it throws UnsupportedError.
// Thread-safe.
std::vector<std::string> backend_names();

}  // namespace gradwire
