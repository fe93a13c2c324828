// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A hook around another hook.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/comm_hook.h"

namespace gradwire::internal {

// `inner`, for a wrapper that `what` names. Throws InvalidArgument for null.
inline const CommHook& wrapped(std::string_view what, const std::shared_ptr<CommHook>& inner) {
  if (inner == nullptr) throw InvalidArgument(concat(what, " needs a hook to wrap; got null."));
  return *inner;
}

// The inner hook's traits, but for the name, "<what>(<inner's name>)", and the identity, which gets `options` besides.
// `keeps_single_collective`: run() adds no collective and never waits.
inline HookTraits traits_around(std::string_view what, const std::shared_ptr<CommHook>& inner,
                                bool keeps_single_collective, std::string_view options = {}) {
  HookTraits traits = wrapped(what, inner).traits();
  traits.identity = concat(what, options.empty() ? "" : ":", options, "(", inner->identity(), ")");
  traits.name = concat(what, "(", traits.name, ")");
  traits.single_collective = traits.single_collective && keeps_single_collective;
  return traits;
}

// Its memory and the end of its iterations are the inner hook's.
class HookWrapper : public CommHook {
 public:
  // Throws InvalidArgument for a null `inner`.
  HookWrapper(std::string_view what, const std::shared_ptr<CommHook>& inner, bool keeps_single_collective)
      : HookWrapper(internal::traits_around(what, inner, keeps_single_collective), inner) {}
  // `traits`: made of those of `inner`, which is not null.
  HookWrapper(HookTraits traits, std::shared_ptr<CommHook> inner)
      : CommHook(std::move(traits)), inner_(std::move(inner)) {}

  HookState state_dict() const override { return inner_->state_dict(); }
  void load_state_dict(const HookState& state) override { inner_->load_state_dict(state); }
  void end_iteration() override { inner_->end_iteration(); }

 protected:
  CommHook& inner() const noexcept { return *inner_; }

 private:
  const std::shared_ptr<CommHook> inner_;
};

}  // namespace gradwire::internal
