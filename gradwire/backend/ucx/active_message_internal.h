// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The number under which gradwire's active messages go: each backend has a worker of its own, so one is enough.
#pragma once

namespace gradwire::ucx {

inline constexpr unsigned kActiveMessage = 1;

}  // namespace gradwire::ucx
