// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a thread of the library completes a future to which users may have added callbacks.
#pragma once

#include <exception>
#include <string_view>

#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/work.h"

namespace gradwire::internal {

// Completes `future` with `error`, or with `value()` where that is null. What callbacks of the future throw is logged,
// with `what`, the name of the call: it must end neither the thread nor somebody's wait.
template <class Value>
void complete_future(const Future& future, const std::exception_ptr& error, const Value& value,
                     std::string_view what) noexcept {
  const auto tell = [what](const char* problem) noexcept {
    try {
      log::error(concat(what, ": a callback of its future threw: ", problem));
    } catch (...) {
      // No memory for the words.
    }
  };
  try {
    if (error) {
      future->setError(error);
    } else {
      future->markCompleted(value());
    }
  } catch (const std::exception& problem) {
    tell(problem.what());
  } catch (...) {
    tell("something that is no std::exception");
  }
}

}  // namespace gradwire::internal
