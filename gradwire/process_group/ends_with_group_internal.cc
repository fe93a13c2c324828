// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/ends_with_group_internal.h"

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

thread_local const EndsWithGroup* innermost = nullptr;

}  // namespace

EndsWithGroup::EndsWithGroup(const ProcessGroup& group)
    : note_(abort_note(group)), outer_(innermost), check_before_(interrupt_check()), check_(&must_end) {
  innermost = this;
}

EndsWithGroup::~EndsWithGroup() { innermost = outer_; }

bool EndsWithGroup::must_end() noexcept {
  for (const EndsWithGroup* each = innermost; each != nullptr; each = each->outer_) {
    if (each->note_->is_written()) return true;
    const InterruptCheck before = each->check_before_;
    if (before != nullptr && before != &must_end && before()) return true;
  }
  return false;
}

void EndsWithGroup::throw_if_aborted(const char* call) const {
  if (!note_->is_written()) return;
  throw AbortedError(
      concat(call, ": the group of which the new one is made was aborted on this rank: ", note_->reason()));
}

}  // namespace gradwire::internal
