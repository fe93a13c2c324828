// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/watched_call_internal.h"

#include <string>

#include "gradwire/base/thread_local.h"
#include "gradwire/process_group/profiled_by_caller.h"

namespace gradwire {
namespace {

GRADWIRE_STATIC_THREAD_LOCAL int callers_ranges = 0;

}  // namespace

ProfiledByCaller::ProfiledByCaller() noexcept { ++callers_ranges; }

ProfiledByCaller::~ProfiledByCaller() { --callers_ranges; }

namespace internal {

WatchedCall::WatchedCall(const char* operation, observe::CallKind kind, int rank, std::uint64_t bytes,
                         std::uint64_t sent)
    : rank_(rank),
      range_(callers_ranges > 0 ? ProfiledRange()
                                : ProfiledRange([&] { return std::string("gradwire:") + operation; })) {
  trace::point("group.call", rank, 0, {.kind = static_cast<std::uint64_t>(kind), .bytes = bytes, .sent = sent});
}

}  // namespace internal
}  // namespace gradwire
