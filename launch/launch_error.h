// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What ends gradwire-run before or instead of its ranks.
#pragma once

#include <string>

#include "gradwire/base/error.h"

namespace gradwire::launch {

// Exit codes of the launcher's own; those of ranks are passed through (see JobOutcome::exit_code()).
inline constexpr int kUsageExit = 2;            // bad options; nothing was started
inline constexpr int kHostsFailedExit = 122;    // the hosts did not find together: refused, or not there in time
inline constexpr int kHostLostExit = 123;       // a host of the job vanished
inline constexpr int kTimeoutExit = 124;        // --timeout passed, as timeout(1) has it
inline constexpr int kLaunchFailedExit = 125;   // the machine refused something that the launcher needs
inline constexpr int kNotExecutableExit = 126;  // as a shell has it
inline constexpr int kNotFoundExit = 127;       // as a shell has it

// One sentence for the user and the exit code that goes with it.
class LaunchError final : public Error {
 public:
  LaunchError(int exit_code, const std::string& message) : Error(message), exit_code_(exit_code) {}
  int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_;
};

// LaunchError(kLaunchFailedExit, "<what>: <text of errno>").
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace gradwire::launch
