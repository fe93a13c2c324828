// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The one thing that is said to whoever sits before a program and has set nothing.
#pragma once

#include <string_view>

namespace gradwire::log {

// A warning of the log (gradwire/base/log.h) that is also written where nobody chose a level, by GRADWIRE_LOG or
// set_level(). Rare: for what otherwise looks like a hang. Thread-safe, never throws.
void notice(std::string_view message) noexcept;

}  // namespace gradwire::log
