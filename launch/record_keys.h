// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The keys of the launchers' records in the store; docs/format/launcher.md specifies which launcher sets which key, and
// when.
#pragma once

#include <string>

#include "gradwire/base/strings.h"

namespace gradwire::launch {

inline constexpr const char* kJobKey = "gradwire-run/job";
inline constexpr const char* kRoundKey = "gradwire-run/round";
inline constexpr const char* kQuitKey = "gradwire-run/quit";

inline std::string place_key(int node) { return concat("gradwire-run/node/", node); }
inline std::string beat_key(const std::string& launcher) { return concat("gradwire-run/beat/", launcher); }
inline std::string join_key(int round, int node) { return concat("gradwire-run/join/", round, "/", node); }
inline std::string plan_key(int round) { return concat("gradwire-run/plan/", round); }
// The value of over_key() where a node was interrupted and none of its ranks had failed: others that are interrupted
// too let their ranks end by themselves.
inline constexpr const char* kOverByInterruption = "interrupted";
inline std::string over_key(int round) { return concat("gradwire-run/over/", round); }
inline std::string steps_key(int round, int node) { return concat("gradwire-run/steps/", round, "/", node); }
inline std::string end_key(int round, int node) { return concat("gradwire-run/end/", round, "/", node); }
inline std::string next_key(int round) { return concat("gradwire-run/next/", round); }
inline std::string bye_key(int node) { return concat("gradwire-run/bye/0/", node); }

}  // namespace gradwire::launch
