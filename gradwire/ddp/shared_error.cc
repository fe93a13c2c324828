// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/ddp/shared_error_internal.h"

namespace gradwire::internal {
namespace {

template <class Kind>
void throw_if_named(const std::string& name, std::string_view kind, const std::string& text) {
  if (name == kind) throw Kind(text);
}

// Throws the exception of which describe() wrote the kind.
[[noreturn]] void throw_kind(const std::string& kind, const std::string& text, int rank) {
  throw_if_named<InvalidArgument>(kind, "InvalidArgument", text);
  throw_if_named<UnsupportedError>(kind, "UnsupportedError", text);
  throw_if_named<MismatchError>(kind, "MismatchError", text);
  throw_if_named<AbortedError>(kind, "AbortedError", text);
  throw_if_named<ResourceError>(kind, "ResourceError", text);
  throw_if_named<StoreError>(kind, "StoreError", text);
  throw_if_named<InternalError>(kind, "InternalError", text);
  throw_if_named<TimeoutError>(kind, "TimeoutError", text);
  if (kind == "PeerError") throw PeerError(text, {rank});
  throw Error(text);
}

}  // namespace

void throw_first_error(ProcessGroup& group, const std::exception_ptr& mine, const std::string& operation) {
  const auto errors = gather_bytes(group, mine == nullptr ? std::string() : describe(mine), kAllRanks);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    const std::string& error = errors[rank];
    if (error.empty()) continue;
    const std::size_t colon = error.find(": ");
    const bool has_kind = colon != std::string::npos;
    throw_kind(has_kind ? error.substr(0, colon) : "",
               concat(operation, " failed on rank ", rank, ": ", has_kind ? error.substr(colon + 2) : error),
               static_cast<int>(rank));
  }
}

}  // namespace gradwire::internal
