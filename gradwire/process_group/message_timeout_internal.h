// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The time limit of messages that a group sends by itself, as steps of another call.
#pragma once

#include <optional>
#include <utility>

#include "gradwire/base/thread_local.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// While the object lives, messages that this thread begins have this time limit in place of their group's timeout().
class MessageTimeout final {
 public:
  explicit MessageTimeout(Milliseconds timeout) noexcept : outer_(std::exchange(current_, timeout)) {}
  ~MessageTimeout() { current_ = outer_; }
  MessageTimeout(const MessageTimeout&) = delete;
  MessageTimeout& operator=(const MessageTimeout&) = delete;

  // The time limit of a message of `group` that this thread begins now.
  static Milliseconds of(const ProcessGroup& group) { return current_.value_or(group.timeout()); }

 private:
  const std::optional<Milliseconds> outer_;
  GRADWIRE_STATIC_THREAD_LOCAL static inline std::optional<Milliseconds> current_;
};

}  // namespace gradwire::internal
