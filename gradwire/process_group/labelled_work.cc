// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/thread_local.h"
#include "gradwire/process_group/labelled_work_internal.h"
#include "gradwire/process_group/wait_for_future_internal.h"

namespace gradwire::internal {
namespace {

GRADWIRE_STATIC_THREAD_LOCAL const LabelledCall* innermost_labelled = nullptr;

}  // namespace

std::string CallLabel::words() const {
  if (operation_ == nullptr) return "a call";
  const std::string recorded = flight_.name();
  return concat(recorded.empty() ? operation_ : recorded, " on rank ", rank_, " of ", size_);
}

LabelledCall::LabelledCall(const CallLabel& label) noexcept
    : label_(label), outer_(std::exchange(innermost_labelled, this)) {}

LabelledCall::~LabelledCall() { innermost_labelled = outer_; }

const CallLabel* LabelledCall::current() noexcept {
  return innermost_labelled == nullptr ? nullptr : &innermost_labelled->label_;
}

Deadline::Clock::time_point when_called() noexcept {
  const CallLabel* const label = LabelledCall::current();
  return label == nullptr || !*label ? Deadline::Clock::now() : label->called();
}

LabelledWork::LabelledWork(const CallLabel& otherwise) noexcept
    : label_(innermost_labelled == nullptr ? otherwise : *LabelledCall::current()) {}

bool LabelledWork::wait(Milliseconds timeout) {
  wait_for(future(), timeout, label_);
  return true;
}

void LabelledWork::throw_late(Milliseconds timeout) const { internal::throw_late(label_, timeout); }

void run_if_queued_here(Work& work) {
  if (auto* const labelled = dynamic_cast<LabelledWork*>(&work)) labelled->run_if_queued_here();
}

CallLabel label_of(const Work& work) noexcept {
  const auto* labelled = dynamic_cast<const LabelledWork*>(&work);
  return labelled == nullptr ? CallLabel() : labelled->label();
}

}  // namespace gradwire::internal
