// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// make_auto_hook() with a clock of the caller's, for tests whose links take exact times.
#pragma once

#include <functional>
#include <memory>

#include "gradwire/hooks/auto_hook.h"

namespace gradwire::internal {

// As gradwire::make_auto_hook(). `now` returns the time in seconds since any fixed point, and never goes back. Several
// threads may call it at once.
std::shared_ptr<AutoHook> make_auto_hook(const AutoHookOptions& options, std::shared_ptr<ProcessGroup> group,
                                         std::function<double()> now);

}  // namespace gradwire::internal
