// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/joinable_step.h"

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

class StepHook final : public JoinHook {
 public:
  explicit StepHook(std::function<void()> step) : step_(std::move(step)) {}
  void main_hook(const JoinRound&) override { step_(); }

 private:
  const std::function<void()> step_;
};

}  // namespace

JoinableStep::JoinableStep(Joinable& ddp, std::function<void()> step) : ddp_(ddp), step_(std::move(step)) {
  if (step_ == nullptr) throw InvalidArgument("JoinableStep: the function is empty; give what follows a backward pass");
}

std::unique_ptr<JoinHook> JoinableStep::join_hook(const JoinOptions&) { return std::make_unique<StepHook>(step_); }

}  // namespace gradwire
