// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Logging: silent by default; GRADWIRE_LOG=debug|info|warn|error|off chooses the level. Lines go to stderr.
//
// Only the sources of this room include spdlog (torch's include folder shadows the fmt that it needs).
#pragma once

#include <string>
#include <string_view>

namespace gradwire::log {

enum class Level { debug, info, warn, error, off };

// Whether a line of this level would be written: one relaxed load, so ask before building an expensive message.
bool enabled(Level level) noexcept;

// Sets the level, over what the environment says. Thread-safe.
void set_level(Level level) noexcept;

// Prefixes every later line of this process with "rank N"; -1 takes the prefix away. Thread-safe.
void set_rank(int rank);

// Writes one line when enabled(). Thread-safe, never throws.
void write(Level level, std::string_view message) noexcept;

inline void debug(std::string_view message) noexcept { write(Level::debug, message); }
inline void info(std::string_view message) noexcept { write(Level::info, message); }
inline void warn(std::string_view message) noexcept { write(Level::warn, message); }
inline void error(std::string_view message) noexcept { write(Level::error, message); }

}  // namespace gradwire::log
