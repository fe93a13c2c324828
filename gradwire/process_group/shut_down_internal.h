// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups that are shut down together.
#pragma once

#include <exception>
#include <memory>
#include <span>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Shuts down each of `groups` that is not null, in order, whatever became of those before: shutdown() may throw, as
// where it was interrupted, though the group is at its end. Returns the first error; null: there was none.
std::exception_ptr shut_down_all(std::span<const std::shared_ptr<ProcessGroup>> groups) noexcept;

}  // namespace gradwire::internal
