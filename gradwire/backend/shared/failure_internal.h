// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Errors as the ranks tell them to each other: from an exception to a report, and from a report to the exception that
// another rank throws.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/backend/shared/steps_internal.h"

namespace gradwire::shared {

void set_reason(FailureReport& report, std::string_view reason) noexcept;  // cut where it is too long
std::string reason_of(const FailureReport& report);

// The ranks that rank `peer` named when it failed because of others; {peer} where it failed for a reason of its own, or
// because of `own_rank`.
std::vector<int> at_fault(int peer, const FailureReport& report, int own_rank);

FailureReport report_of(const std::exception_ptr& error) noexcept;

// Throws what rank `peer` reported, of the same kind where that makes sense on this rank; `call` opens the message.
[[noreturn]] void throw_failure_of(int peer, const FailureReport& report, std::string_view call);

}  // namespace gradwire::shared
