// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The names of backends, as a user may write them.
#pragma once

#include <string>

#include "gradwire/process_group/backend_names.h"

namespace gradwire::internal {

inline constexpr const char* kAuto = "auto";
inline constexpr const char* kGloo = "gloo";
inline constexpr const char* kNccl = "nccl";

// Returns the one of backend_names() that `name` means: "auto" for an empty one. Throws InvalidArgument for a name that
// is none of them.
std::string resolve_backend(const std::string& name);

}  // namespace gradwire::internal
