// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The timeout of poll(2).
#pragma once

#include <algorithm>
#include <climits>

#include "gradwire/base/deadline.h"

namespace gradwire::launch {

// In milliseconds, until the deadline.
inline int poll_timeout(const Deadline& until) {
  return static_cast<int>(std::min<long long>(until.remaining().count(), INT_MAX));
}

}  // namespace gradwire::launch
