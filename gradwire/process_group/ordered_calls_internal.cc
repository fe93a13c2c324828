// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/ordered_calls_internal.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "gradwire/base/call_name.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/process.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/completed_future_internal.h"
#include "gradwire/process_group/labelled_work_internal.h"
#include "gradwire/process_group/validate_internal.h"
#include "gradwire/process_group/watched_call_internal.h"

namespace gradwire::internal {
namespace {

// The error of `body`, which names the call as `flight` does.
template <class Body>
std::exception_ptr error_of(const observe::FlightCall& flight, const Body& body) noexcept {
  const CallName name([](const void* call) { return static_cast<const observe::FlightCall*>(call)->name(); }, &flight);
  try {
    body();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// The state of the thread that makes a call, for the thread that runs it.
class CallersState {
 public:
  template <class Run>
  void run(const Run& run) const {
    if (std::this_thread::get_id() != thread_) {
      const at::ThreadLocalStateGuard as_the_caller(all_);
      return run();
    }
    // Only what may have changed since then, and matters for tensors: setting everything takes longer than a small
    // call.
    const c10::impl::ForceDispatchKeyGuard with_keys(keys_);
    const Autograd with_autograd(autograd_);
    run();
  }

 private:
  class Autograd {
   public:
    explicit Autograd(const c10::AutogradState& state) : before_(c10::AutogradState::get_tls_state()) {
      c10::AutogradState::set_tls_state(state);
    }
    ~Autograd() { c10::AutogradState::set_tls_state(before_); }
    Autograd(const Autograd&) = delete;
    Autograd& operator=(const Autograd&) = delete;

   private:
    const c10::AutogradState before_;
  };

  const std::thread::id thread_ = std::this_thread::get_id();
  const at::ThreadLocalState all_;
  const c10::impl::LocalDispatchKeySet keys_ = c10::impl::tls_local_dispatch_key_set();
  const c10::AutogradState autograd_ = c10::AutogradState::get_tls_state();
};

// Counts one call under way until end(), or until the last copy is gone: a call that could not be queued.
class UnderWay final {
 public:
  explicit UnderWay(std::shared_ptr<std::atomic<int>> count) noexcept : count_(std::move(count)) { ++*count_; }
  // std::function asks for copies.
  UnderWay(const UnderWay& other) noexcept : count_(other.count_) {
    if (count_ != nullptr) ++*count_;
  }
  UnderWay(UnderWay&&) noexcept = default;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() { end(); }

  void end() noexcept {
    if (count_ != nullptr) --*std::exchange(count_, nullptr);
  }

 private:
  std::shared_ptr<std::atomic<int>> count_;
};

// A posted call. Who waits for it or a later call runs it, where the worker has not begun. But not once the future was
// handed out: what its callbacks do belongs to the worker, and may need what the waiting thread holds.
class PostedWork final : public LabelledWork {
 public:
  PostedWork(Future future, Executor::Place place, std::shared_ptr<void> owner)
      : owner_(std::move(owner)), future_(std::move(future)), place_(std::move(place)) {}

  Future future() override {
    if (!future_->completed()) place_.keep_for_worker();
    return future_;
  }
  bool is_completed() override { return future_->completed(); }
  bool is_success() override { return future_->hasValue(); }
  std::exception_ptr exception() override { return future_->exception_ptr(); }
  bool wait(Milliseconds timeout) override {
    const WatchedWait watched(label().flight());
    if (!future_->completed()) process_.require_current("this Work");
    const bool for_as_long_as_it_takes = timeout == kNoTimeout && interrupt_check() == nullptr;
    if (for_as_long_as_it_takes) place_.help();
    run_if_queued_here();
    return LabelledWork::wait(timeout);
  }
  void run_if_queued_here() override {
    if (!future_->completed() && place_.runs_here()) place_.help();
  }

 private:
  const OwnerProcess process_;         // the worker is there alone
  const std::shared_ptr<void> owner_;  // goes after the future
  const Future future_;
  const Executor::Place place_;
};

// `abort`, of which `called` says afterwards whether it was called.
OrderedCalls::Abort noting(const OrderedCalls::Abort& abort, bool& called) {
  return [&] {
    called = true;
    abort();
  };
}

std::exception_ptr interruption() {
  return std::make_exception_ptr(
      AbortedError("interrupted on this rank while it waited for the calls before; the group is at its end"));
}

}  // namespace

void throw_interrupted_shutdown(const ProcessGroup& group) {
  throw AbortedError(concat(name_group(group), ": shutdown(): ", kInterrupted, "; the calls under way were aborted"));
}

OrderedCalls::OrderedCalls(std::string thread_name)
    : under_way_(std::make_shared<std::atomic<int>>(0)), executor_(std::move(thread_name)) {}

std::shared_ptr<Work> OrderedCalls::run(Outputs outputs, const Body& body, const Abort& abort) {
  const observe::FlightCall flight = observe::take_call();
  std::exception_ptr error;
  bool interrupted = false;
  const auto task = [&] { error = error_of(flight, [&] { body(outputs); }); };
  // A reference, which fits into a std::function without an allocation.
  if (!executor_.run(std::ref(task), noting(abort, interrupted))) return nullptr;
  if (interrupted) error = interruption();
  flight.ended(error);
  return error ? failed_work(error) : completed_work(std::move(outputs));
}

std::shared_ptr<Work> OrderedCalls::post(const char* operation, Outputs outputs, Body body, std::shared_ptr<void> owner,
                                         Executor::Start start) {
  Future future = c10::make_intrusive<c10::ivalue::Future>(outputs.type());
  auto place = executor_.post(
      [operation, outputs = std::move(outputs), body = std::move(body), future, under_way = UnderWay(under_way_),
       flight = observe::take_call(), caller = CallersState()]() mutable {
        caller.run([&] {
          flight.started();
          const std::exception_ptr error = error_of(flight, [&] { body(outputs); });
          flight.ended(error);
          body = nullptr;
          // Before waiters go on: one of them may let the group go, which must not find this call under way.
          under_way.end();
          complete_future(
              future, error, [&] { return outputs.value(); }, operation);
        });
      },
      start);
  if (!place) return nullptr;
  return std::make_shared<PostedWork>(std::move(future), std::move(*place), std::move(owner));
}

void OrderedCalls::before_next(std::function<void()> copy, std::shared_ptr<void> owner) {
  if (!process_.is_current()) return;  // the call that comes is refused
  // Idle after the callbacks of the last call, which may write its result back.
  if (executor_.run_if_idle(copy)) return;
  // When closed, the call that comes is refused.
  post(
      "copy", Outputs::list({}), [copy = std::move(copy)](const Outputs&) { copy(); }, std::move(owner),
      Executor::Start::soon);
}

bool OrderedCalls::in_turn(const std::function<void()>& body, const Abort& abort) {
  std::exception_ptr error;
  bool interrupted = false;
  if (!executor_.run([&] { error = error_of({}, body); }, noting(abort, interrupted))) return false;
  if (interrupted) error = interruption();
  if (error) std::rethrow_exception(error);
  return true;
}

bool OrderedCalls::finish(const Abort& abort) {
  bool interrupted = false;
  executor_.finish(noting(abort, interrupted));
  return interrupted;
}

}  // namespace gradwire::internal
