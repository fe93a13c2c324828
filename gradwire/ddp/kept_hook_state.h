// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The state of a hook that can be brought back when an iteration has to be done again.
#pragma once

#include <optional>

#include "gradwire/ddp/comm_hook.h"

namespace gradwire {

// A hook that brings back an earlier state without a copy of the whole state ahead. Both methods are called between
// iterations.
class Revertible {
 public:
  virtual ~Revertible() = default;
  // Keeps the present state until the next call.
  virtual void keep_state() = 0;
  // Brings back the state of the last keep_state(), as load_state_dict(state_dict()) would, whatever the hook did since
  // then. May be called again.
  virtual void revert_state() = 0;
};

// Keeps the state of any hook: of a Revertible one by its own methods, of any other one as a copy. One thread uses the
// object, between iterations.
class KeptHookState final {
 public:
  // Keeps the present state of `hook` until the next call.
  void keep(CommHook& hook) {
    copy_.reset();
    if (auto* const revertible = dynamic_cast<Revertible*>(&hook)) {
      revertible->keep_state();
    } else {
      copy_ = hook.state_dict();
    }
  }
  // Brings the kept state back to `hook`, which is the hook of the last keep(); an empty one too, for a hook that makes
  // its state later. Without a keep(), does nothing to a hook that is not Revertible. Throws what load_state_dict()
  // throws.
  void revert(CommHook& hook) const {
    if (auto* const revertible = dynamic_cast<Revertible*>(&hook)) {
      revertible->revert_state();
    } else if (copy_) {
      hook.load_state_dict(*copy_);
    }
  }

 private:
  std::optional<HookState> copy_;
};

}  // namespace gradwire
