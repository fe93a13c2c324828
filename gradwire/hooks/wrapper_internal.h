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

// Its traits are the inner hook's, its name is "<what>(<inner's name>)", and its memory is the inner hook's.
class HookWrapper : public CommHook {
 public:
  // Throws InvalidArgument for a null `inner`. `keeps_single_collective`: run() adds no collective and never waits.
  HookWrapper(std::string_view what, std::shared_ptr<CommHook> inner, bool keeps_single_collective)
      : CommHook(traits_around(what, inner, keeps_single_collective)), inner_(std::move(inner)) {}

  HookState state_dict() const override { return inner_->state_dict(); }
  void load_state_dict(const HookState& state) override { inner_->load_state_dict(state); }
  void end_iteration() override { inner_->end_iteration(); }

 protected:
  CommHook& inner() const noexcept { return *inner_; }

 private:
  static HookTraits traits_around(std::string_view what, const std::shared_ptr<CommHook>& inner,
                                  bool keeps_single_collective) {
    if (inner == nullptr) throw InvalidArgument(concat(what, " needs a hook to wrap; got null."));
    HookTraits traits = inner->traits();
    traits.name = concat(what, "(", traits.name, ")");
    traits.single_collective = traits.single_collective && keeps_single_collective;
    return traits;
  }

  const std::shared_ptr<CommHook> inner_;
};

}  // namespace gradwire::internal
