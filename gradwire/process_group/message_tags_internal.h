// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which tags of messages are the user's.
#pragma once

namespace gradwire::internal {

// Tags of send() and recv() below this one are the user's. Those from here on are gradwire's own messages, such as
// those of a monitored barrier.
inline constexpr int kFirstInternalTag = 1 << 30;

}  // namespace gradwire::internal
