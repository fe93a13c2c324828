// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Whether a folder that the user named can be written to.
#pragma once

#include <string>

namespace gradwire::launch {

// Throws LaunchError, which names `option`, when `folder` is no folder that this process may write to, and when it is
// missing and cannot be made. Makes nothing.
void require_writable_folder(const char* option, const std::string& folder);

}  // namespace gradwire::launch
