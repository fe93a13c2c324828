// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Waits for keys of a store that look for Ctrl-C. A store's own waits do not.
//
// Called without the interpreter's lock.
#pragma once

#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/store/store.h"

namespace gradwire::python {

using Keys = std::vector<std::string>;

// A waiting call looks for Ctrl-C that often.
constexpr Milliseconds kSignalLook{100};

// Ends a wait with the exception that a signal's handler raised, KeyboardInterrupt mostly. Handlers run on the main
// thread alone. Another thread must not ask for the lock while it waits: at the end of the interpreter that would end
// the thread in the middle of a call of C++, and the process with it.
void raise_signals();

// Waits until all keys are there. `operation`: the user's call, for the error.
void wait_for(Store& store, const Keys& keys, Milliseconds timeout, const char* operation = "wait");

// Waits for `key` up to the store's timeout, and returns its value.
std::string wait_for_value(Store& store, const std::string& key);

// The TimeoutError of `operation`, which has waited `timeout` for `keys`.
[[noreturn]] void throw_late(const char* operation, Milliseconds timeout, const Keys& keys);

}  // namespace gradwire::python
