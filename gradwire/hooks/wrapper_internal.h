// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The base of hooks that wrap another hook.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/first_rank_memory.h"
#include "gradwire/ddp/kept_hook_state.h"
#include "gradwire/hooks/warm_up_internal.h"

namespace gradwire::internal {

// Returns `*inner`. Throws an InvalidArgument that names the wrapper `what` when `inner` is null.
inline const CommHook& wrapped(std::string_view what, const std::shared_ptr<CommHook>& inner) {
  if (inner == nullptr) throw InvalidArgument(concat(what, " needs a hook to wrap; got null."));
  return *inner;
}

// The traits of a wrapper: those of `inner`, with the name "<what>(<inner's name>)" and the identity
// "<what>:<options>(<inner's identity>)" (no ":" when `options` is empty). `keeps_single_collective`: the wrapper adds
// no collective and never waits.
inline HookTraits traits_around(std::string_view what, const std::shared_ptr<CommHook>& inner,
                                bool keeps_single_collective, std::string_view options = {}) {
  HookTraits traits = wrapped(what, inner).traits();
  traits.identity = concat(what, options.empty() ? "" : ":", options, "(", inner->identity(), ")");
  traits.name = concat(what, "(", traits.name, ")");
  traits.single_collective = traits.single_collective && keeps_single_collective;
  return traits;
}

// As make_between_hosts_hook(), for a hook that the registry makes from the user's name: the identity, which messages
// and checkpoints show, stays the inner hook's. `group` takes the place of the bucket's group, which the inner hook
// must use; null: the bucket's.
std::shared_ptr<CommHook> make_between_hosts_hook_of_registry(std::shared_ptr<CommHook> inner,
                                                              std::shared_ptr<ProcessGroup> group);

// A hook that passes its state, its warm-up, revert_unused() and end_iteration() through to the inner hook.
class HookWrapper : public CommHook, public Revertible, public FirstRankMemory, public HasWarmUp {
 public:
  // Throws InvalidArgument for a null `inner`.
  HookWrapper(std::string_view what, const std::shared_ptr<CommHook>& inner, bool keeps_single_collective)
      : HookWrapper(internal::traits_around(what, inner, keeps_single_collective), inner) {}
  // `traits`: made from the traits of `inner`, which must not be null.
  HookWrapper(HookTraits traits, std::shared_ptr<CommHook> inner)
      : CommHook(std::move(traits)), inner_(std::move(inner)) {}

  HookState state_dict() const override { return inner_->state_dict(); }
  void load_state_dict(const HookState& state) override { inner_->load_state_dict(state); }
  void keep_state() override { kept_.keep(*inner_); }
  void revert_state() override { kept_.revert(*inner_); }
  void revert_unused(const std::vector<std::string>& names) override { inner_->revert_unused(names); }
  void end_iteration() override { inner_->end_iteration(); }
  bool memory_lies_with_first_ranks() const override { return gradwire::memory_lies_with_first_ranks(*inner_); }
  std::int64_t warm_up() const override { return warm_up_of(*inner_); }
  void end_warm_up() override { end_warm_up_of(*inner_); }

 protected:
  CommHook& inner() const noexcept { return *inner_; }

 private:
  const std::shared_ptr<CommHook> inner_;
  KeptHookState kept_;
};

}  // namespace gradwire::internal
