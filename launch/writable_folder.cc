// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/writable_folder.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"

namespace gradwire::launch {

void require_writable_folder(const char* option, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path there = fs::absolute(folder, error);
  // A link that leads nowhere is there, and no folder.
  while (there.has_relative_path() && !fs::exists(fs::symlink_status(there, error))) there = there.parent_path();
  if (!fs::is_directory(there, error))
    throw LaunchError(kLaunchFailedExit,
                      concat(option, ": cannot use the folder '", folder, "': '", there.string(), "' is no folder"));
  if (::access(there.c_str(), W_OK | X_OK) == 0) return;
  throw LaunchError(kLaunchFailedExit, concat(option, ": cannot write to '", there.string(),
                                              "': ", std::generic_category().message(errno)));
}

}  // namespace gradwire::launch
