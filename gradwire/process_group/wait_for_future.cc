// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <memory>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/wait_for_future_internal.h"
#include "gradwire/process_group/watched_call_internal.h"

namespace gradwire::internal {
namespace {

// Set by a callback of a future. Shared by the callback, which may run after the waiters have left, and the waiters.
class EndSignal {
 public:
  void set() {
    MutexLock lock(mutex_);
    set_ = true;
    condition_.notify_all();
  }
  bool wait_until(Deadline deadline) {
    MutexLock lock(mutex_);
    while (!set_) {
      if (deadline.point() == Deadline::Clock::time_point::max()) {
        condition_.wait(lock);
      } else if (condition_.wait_until(lock, deadline.point()) == std::cv_status::timeout) {
        return set_;
      }
    }
    return true;
  }

 private:
  Mutex mutex_;
  ConditionVariable condition_;
  bool set_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

// The signals of the futures that have been waited for. The callback of a future owns its signal, so an entry that is
// alive is of a future that is alive.
class EndSignals {
 public:
  // Never destroyed: a thread may wait while the program ends.
  static EndSignals& instance() {
    static auto* const signals = std::make_unique<EndSignals>().release();
    return *signals;
  }

  std::shared_ptr<EndSignal> of(c10::ivalue::Future& future) {
    std::shared_ptr<EndSignal> signal;
    {
      MutexLock lock(mutex_);
      std::weak_ptr<EndSignal>& entry = signals_[&future];
      signal = entry.lock();
      if (signal != nullptr) return signal;
      signal = std::shared_ptr<EndSignal>(std::make_unique<EndSignal>().release(), [this, &future](EndSignal* ended) {
        forget(&future);
        std::default_delete<EndSignal>()(ended);
      });
      entry = signal;
    }
    // Without the lock: where the future has ended by now, the callback runs here.
    future.addCallback([signal](c10::ivalue::Future&) { signal->set(); }, /*uses_future=*/false);
    return signal;
  }

 private:
  void forget(const c10::ivalue::Future* future) {
    MutexLock lock(mutex_);
    const auto found = signals_.find(future);
    // There may be a new future in that place, with a signal of its own.
    if (found != signals_.end() && found->second.expired()) signals_.erase(found);
  }

  Mutex mutex_;
  std::map<const c10::ivalue::Future*, std::weak_ptr<EndSignal>> signals_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace

void wait_for(const Future& future, Milliseconds timeout, const CallLabel& label) {
  const WatchedWait watched(label.flight());
  if ((timeout != Work::kNoTimeout || interrupt_check() != nullptr) && !future->completed()) {
    const Deadline deadline = timeout == Work::kNoTimeout ? Deadline::never() : Deadline::after(timeout);
    const auto signal = EndSignals::instance().of(*future);
    while (!signal->wait_until(interrupt_check() == nullptr ? deadline
                                                            : deadline.earlier(Deadline::after(kInterruptLook)))) {
      if (future->completed()) break;  // and its callbacks run, of which the signal's is a late one
      throw_if_interrupted(concat(label.words(), ": wait(): the call goes on"));
      if (deadline.expired()) throw_late(label, timeout);
    }
  }
  future->waitAndThrow();
}

void throw_late(const CallLabel& label, Milliseconds timeout) {
  throw TimeoutError(concat(label.words(), ": wait() has waited ", timeout.count(),
                            " ms, and the call has not ended; it goes on: wait again, or abort the group"));
}

}  // namespace gradwire::internal
