// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The launcher's own errors, with their exit codes.
#pragma once

#include <string>

#include "gradwire/base/error.h"

namespace gradwire::launch {

// The launcher's own exit codes. Exit codes of ranks are passed through (see JobOutcome::exit_code()).
inline constexpr int kUsageExit = 2;            // bad options; nothing was started
inline constexpr int kLostStateExit = 121;      // nobody holds the state of an elastic job, and no rank here failed
inline constexpr int kHostsFailedExit = 122;    // the hosts did not connect: refused, or missing in time
inline constexpr int kHostLostExit = 123;       // a host of the job vanished
inline constexpr int kTimeoutExit = 124;        // --timeout passed; the same code as timeout(1)
inline constexpr int kLaunchFailedExit = 125;   // the machine refused something that the launcher needs
inline constexpr int kNotExecutableExit = 126;  // the same code as a shell's
inline constexpr int kNotFoundExit = 127;       // the same code as a shell's

// An error of the launcher: one sentence for the user, and the exit code.
class LaunchError final : public Error {
 public:
  LaunchError(int exit_code, const std::string& message) : Error(message), exit_code_(exit_code) {}
  int exit_code() const noexcept { return exit_code_; }

 private:
  int exit_code_;
};

// Throws LaunchError(kLaunchFailedExit, "<what>: <text of errno>").
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace gradwire::launch
