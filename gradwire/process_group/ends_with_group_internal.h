// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A thread whose waits end when another thread aborts a group.
#pragma once

#include <memory>

#include "gradwire/base/interrupt.h"
#include "gradwire/process_group/live_groups_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// While the object lives, the waits of this thread are interrupted (base/interrupt.h), whatever they wait for, once
// `group` was aborted: a group that is being made of `group` is not a duplicate yet, which abort() would end. The check
// of the thread from before holds too. Objects of a thread nest; each ends on the thread that made it.
class EndsWithGroup final {
 public:
  explicit EndsWithGroup(const ProcessGroup& group);
  ~EndsWithGroup();
  EndsWithGroup(const EndsWithGroup&) = delete;
  EndsWithGroup& operator=(const EndsWithGroup&) = delete;

  // Throws AbortedError when `group` was aborted. `call`: what was under way, for the message.
  void throw_if_aborted(const char* call) const;

 private:
  static bool must_end() noexcept;
  const std::shared_ptr<const AbortNote> note_;
  const EndsWithGroup* const outer_;
  const InterruptCheck check_before_;
  const InterruptCheckScope check_;
};

}  // namespace gradwire::internal
