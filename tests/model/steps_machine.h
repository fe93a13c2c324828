// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The code of the step protocol (gradwire/backend/shared/steps_internal.h) on the model's machine.
#pragma once

#include "gradwire/backend/shared/steps_internal.h"
#include "tests/model/machine.h"

namespace gradwire::model {

class StepsMachine {
 public:
  template <class T>
  using Atomic = model::Atomic<T>;
  template <class T>
  using Plain = model::Plain<T>;
  using Mutex = ModelMutex;
  using Lock = ModelLock;
  using Card = int;
  using Reason = int;

  // The position of the rank in its program. With the memory and the arguments, it determines the protocol's next
  // action.
  void reach(std::uint64_t position) {
    position_ = position;
    Run::now().scheduler.forget_all_but(position);
  }

  // Ends early only where the clock is needed: see Scheduler. The protocol keeps no state across a wait.
  template <class T>
  void wait(const Atomic<T>& word, T seen) const {
    futex_wait(word, seen);
    Run::now().scheduler.forget_all_but(mix(position_, static_cast<std::uint64_t>(word.location()) + 1));
  }
  template <class T>
  void wake(const Atomic<T>& word, Site site = {__builtin_FILE(), __builtin_LINE()}) const {
    futex_wake(word, site);
  }

  // One more check of the peers: several checks would lead to the same decisions.
  class Patience {
   public:
    explicit Patience(const StepsMachine& /*machine*/) noexcept {}
    bool more() noexcept { return looks_++ == 0; }

   private:
    int looks_ = 0;
  };

  bool is_gone(int peer) const {
    Run& run = Run::now();
    run.scheduler.point();
    const bool gone = run.scheduler.is_dead(peer);
    if (gone) run.memory.learns_end_of(run.scheduler.current(), run.scheduler.thread_of(peer));
    run.scheduler.observed(gone ? 1 : 0);
    return gone;
  }
  bool interrupted() const noexcept { return false; }
  bool expired() const noexcept { return Run::now().scheduler.has_deadline_passed(); }

 private:
  std::uint64_t position_ = 0;
};

using ModelSteps = shared::Steps<StepsMachine>;

inline constexpr const char* kStepsHeader = "gradwire/backend/shared/steps_internal.h";

}  // namespace gradwire::model
