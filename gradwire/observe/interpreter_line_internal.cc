// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/interpreter_line_internal.h"

#include <atomic>

#include "gradwire/observe/flight_recorder.h"

namespace gradwire::observe {
namespace {

std::atomic<InterpreterLine> registered{nullptr};

}  // namespace

void set_interpreter_line(InterpreterLine function) noexcept { registered.store(function, std::memory_order_relaxed); }

std::uint32_t interpreter_line() noexcept {
  const InterpreterLine function = registered.load(std::memory_order_relaxed);
  return function == nullptr || caller_line() != 0 || !records_calls() ? 0 : function();
}

}  // namespace gradwire::observe
