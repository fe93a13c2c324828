// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/interrupt.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/thread_local.h"

namespace gradwire {
namespace {

GRADWIRE_STATIC_THREAD_LOCAL InterruptCheck this_threads_check = nullptr;

}  // namespace

InterruptCheck set_interrupt_check(InterruptCheck check) noexcept { return std::exchange(this_threads_check, check); }

InterruptCheck interrupt_check() noexcept { return this_threads_check; }

void throw_if_interrupted(std::string_view call) {
  if (this_threads_check != nullptr && this_threads_check())
    throw AbortedError(concat(call, ": interrupted on this rank"));
}

}  // namespace gradwire
