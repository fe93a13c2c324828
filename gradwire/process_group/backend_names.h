// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The names of the backends that a process group can have.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

// Returns the names that init_process_group() and make_process_group() accept ("auto", "shm", "gloo", ...), for
// messages and options; those of register_backend() come last. A backend that this build lacks is among them; a request
// for it throws UnsupportedError. Thread-safe.
std::vector<std::string> backend_names();

// Returns whether this build has the backend `name`, one of backend_names(); false for another name. The machine may
// lack the library or the device that the backend needs all the same. Thread-safe.
bool is_backend_built(std::string_view name);

}  // namespace gradwire
