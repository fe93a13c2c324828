// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Command lines that run a command on another host.
#pragma once

#include <string>
#include <vector>

namespace gradwire::launch {

// Returns `word` quoted so that a shell takes it literally.
std::string quote_for_shell(const std::string& word);

// Returns the command that runs `command` in `folder` on `host`. `shell` is cut into words at blanks. In each word
// {host} is replaced by the host, and {command} by one line for a shell on that host. Without {command}, the host and
// this line are added at the end.
std::vector<std::string> remote_command(const std::string& shell, const std::string& host, const std::string& folder,
                                        const std::vector<std::string>& command);

}  // namespace gradwire::launch
