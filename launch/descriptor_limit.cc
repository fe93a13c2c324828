// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <optional>

namespace gradwire::launch {
namespace {

// Three quarters of these may be connections of the store, which takes 4096.
constexpr rlim_t kEnough = 8192;

// The limit from before it was raised. Written before other threads start.
std::optional<rlimit> before;

}  // namespace

void raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  rlimit raised = limit;
  raised.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kEnough));
  if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) before = limit;
}

void restore_descriptor_limit() noexcept {
  if (before) ::setrlimit(RLIMIT_NOFILE, &*before);
}

}  // namespace gradwire::launch
