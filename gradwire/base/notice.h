// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A warning that is written even where no log level was chosen.
#pragma once

#include <string_view>

namespace gradwire::log {

// Writes a warning to the log (gradwire/base/log.h), and also to stderr where no level was chosen by GRADWIRE_LOG or
// set_level(). Only for a state that otherwise looks like a hang. Thread-safe; never throws.
void notice(std::string_view message) noexcept;

}  // namespace gradwire::log
