// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/launch_error.h"

#include <cerrno>
#include <cstring>

#include "gradwire/base/strings.h"

namespace gradwire::launch {

void throw_errno(const std::string& what) {
  throw LaunchError(kLaunchFailedExit, concat(what, ": ", std::strerror(errno)));
}

}  // namespace gradwire::launch
