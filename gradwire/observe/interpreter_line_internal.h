// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The line of an interpreted program for calls that come to gradwire through another library, which has let go of the
// interpreter's lock before.
#pragma once

#include <cstdint>

namespace gradwire::observe {

// Returns the number (caller_line()) of the line that this thread's program executes; 0: the thread runs no program of
// the interpreter.
using InterpreterLine = std::uint32_t (*)() noexcept;

// Registers the function of the interpreter of this process. Thread-safe.
void set_interpreter_line(InterpreterLine function) noexcept;

// What the registered function returns; 0 where there is none, where this thread has a line already, and where nothing
// is recorded. May wait for the interpreter's lock: the caller holds no lock.
std::uint32_t interpreter_line() noexcept;

}  // namespace gradwire::observe
