// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a command is run on another host.
#pragma once

#include <string>
#include <vector>

namespace gradwire::launch {

// A word that a shell takes as it is.
std::string quote_for_shell(const std::string& word);

// The command that runs `command` in `folder` on `host`. `shell` is cut into words at blanks; in each, {host} stands
// for the host and {command} for one line for a shell on that host. Without {command}, host and line follow at the end.
std::vector<std::string> remote_command(const std::string& shell, const std::string& host, const std::string& folder,
                                        const std::vector<std::string>& command);

}  // namespace gradwire::launch
