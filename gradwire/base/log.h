// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Logging: silent by default; GRADWIRE_LOG=debug|info|warn|error|off chooses the level (another value chooses none, and
// a line says so). Lines go to stderr.
//
// Only the sources of this room include spdlog (torch's include folder shadows the fmt that it needs).
#pragma once

#include <string>
#include <string_view>

namespace gradwire::log {

enum class Level { debug, info, warn, error, off };  // in the order of their weight; off: nothing is written

// Returns whether write() would write a line of this level. Costs one relaxed load: ask before building a long message.
bool enabled(Level level) noexcept;

// Sets the level, whatever the environment says. Thread-safe.
void set_level(Level level) noexcept;

// Begins every later line of this process with "rank N"; -1 removes the prefix. Thread-safe.
void set_rank(int rank);

// Writes one line to stderr when enabled(level). Thread-safe; never throws.
void write(Level level, std::string_view message) noexcept;

inline void debug(std::string_view message) noexcept { write(Level::debug, message); }
inline void info(std::string_view message) noexcept { write(Level::info, message); }
inline void warn(std::string_view message) noexcept { write(Level::warn, message); }
inline void error(std::string_view message) noexcept { write(Level::error, message); }

}  // namespace gradwire::log
