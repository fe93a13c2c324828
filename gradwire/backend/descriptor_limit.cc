// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/descriptor_limit_internal.h"

#include <sys/resource.h>

#include <filesystem>
#include <iterator>
#include <system_error>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

rlim_t limit() noexcept {
  rlimit both{};
  return ::getrlimit(RLIMIT_NOFILE, &both) == 0 ? both.rlim_cur : RLIM_INFINITY;
}

}  // namespace

void require_descriptors(int rank, int size, std::size_t needed) {
  std::error_code failed;
  const auto open = std::distance(std::filesystem::directory_iterator("/proc/self/fd", failed), {});
  const rlim_t allowed = limit();
  if (failed || allowed == RLIM_INFINITY || static_cast<rlim_t>(open) + needed <= allowed) return;
  throw ResourceError(concat("rendezvous failed: rank ", rank, " of ", size, " needs ", needed,
                             " descriptors more than the ", open, " that its process has open, and ",
                             describe_descriptor_limit(), " to ", static_cast<rlim_t>(open) + needed, " or more"));
}

std::string describe_descriptor_limit() {
  return concat("this process may have ", limit(), " descriptors open (ulimit -n); raise that limit");
}

}  // namespace gradwire::internal
