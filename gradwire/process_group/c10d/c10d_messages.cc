// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Messages over an engine, which end where somebody waits for them.
#include <algorithm>
#include <atomic>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/c10d/c10d_messages_internal.h"
#include "gradwire/process_group/labelled_work_internal.h"
#include "gradwire/process_group/parked_threads_internal.h"
#include "gradwire/process_group/watched_call_internal.h"

namespace gradwire::internal {

void MessageWaiters::start(std::function<void()> body) {
  auto has_ended = std::make_shared<std::atomic<bool>>(false);
  MutexLock lock(mutex_);
  std::erase_if(waiters_, [](const Waiter& each) { return each.has_ended->load(); });
  waiters_.push_back({has_ended, Thread("gw-c10d-message", [body = std::move(body), has_ended] {
                        body();
                        *has_ended = true;
                      })});
}

void MessageWaiters::join() {
  std::vector<Waiter> waiters;
  {
    MutexLock lock(mutex_);
    waiters.swap(waiters_);
  }
  for (Waiter& each : waiters) {
    if (each.thread.is_current()) park_thread(std::move(each.thread));
  }
}

namespace {

// Messages under way. Whoever waits first waits for the engine; others wait for him.
struct Messages : std::enable_shared_from_this<Messages> {
  std::string what;
  std::shared_ptr<C10dLedger> ledger;
  C10dWorks parts;
  std::function<void()> after;
  Outputs outputs;
  Deadline deadline = Deadline::never();
  Future future;
  Mutex start;  // of the thread that waits; none calls out while it holds this
  std::atomic<bool> watched{false};
  Mutex turn;
  bool has_ended GRADWIRE_GUARDED_BY(turn) = false;

  // The future may complete a moment after this returns, on another thread.
  void finish() {
    MutexLock lock(turn);
    // Not the future, which completes without the lock: an engine's second wait for one message may last until the
    // timeout, and ends the group then, as Gloo's.
    if (has_ended || future->completed()) return;
    std::exception_ptr error;
    try {
      for (const auto& part : parts) part->wait(std::max(deadline.remaining(), Milliseconds{1}));
      if (after) after();
    } catch (...) {
      error = ledger->fail(what, std::current_exception(), false);
    }
    has_ended = true;
    lock.unlock();
    complete_once(future, error, [this] { return outputs.value(); });
  }

  // Has a thread of `waiters` finish the messages.
  void watch(MessageWaiters& waiters) {
    MutexLock lock(start);
    if (future->completed() || watched) return;
    waiters.start([messages = shared_from_this()] { messages->finish(); });
    watched = true;
  }

  // Makes the future complete. The engine's wait cannot be interrupted, so a thread waits where somebody may interrupt
  // this one.
  void drive(MessageWaiters& waiters) {
    if (!watched && (interrupt_check() == nullptr || !try_to_watch(waiters))) finish();
  }

 private:
  // Whether a thread waits for the messages.
  bool try_to_watch(MessageWaiters& waiters) {
    try {
      watch(waiters);
      return true;
    } catch (const ResourceError&) {
      return false;
    }
  }
};

class MessagesWork final : public LabelledWork {
 public:
  MessagesWork(std::shared_ptr<Messages> messages, std::shared_ptr<MessageWaiters> waiters, std::shared_ptr<void> owner)
      : owner_(std::move(owner)), waiters_(std::move(waiters)), messages_(std::move(messages)) {}
  ~MessagesWork() override {
    // The engine must not lose a message that is under way.
    try {
      if (!messages_->future->completed()) messages_->watch(*waiters_);
    } catch (const std::exception& problem) {
      // Who ends the group waits for the message then.
      log::warn(concat(messages_->what, ": nobody waits for the message until the group ends: ", problem.what()));
    }
  }

  bool wait(Milliseconds timeout) override {
    const WatchedWait watched(label().flight());
    // A wait of the engine's that misses its timeout ends the group, so a shorter one is waited for here.
    if (timeout != kNoTimeout) return LabelledWork::wait(timeout);
    messages_->drive(*waiters_);
    return LabelledWork::wait(kNoTimeout);
  }
  Future future() override {
    messages_->watch(*waiters_);
    return messages_->future;
  }

 private:
  std::shared_ptr<void> owner_;  // goes last: the group joins the waiters
  std::shared_ptr<MessageWaiters> waiters_;
  std::shared_ptr<Messages> messages_;
};

}  // namespace

std::shared_ptr<Work> follow_messages(std::string what, const std::shared_ptr<C10dLedger>& ledger, C10dWorks parts,
                                      std::function<void()> after, Outputs outputs, Deadline deadline,
                                      const std::shared_ptr<MessageWaiters>& waiters, std::shared_ptr<void> owner) {
  if (!devices_of(outputs.flattened()).empty())
    return follow_on_streams(std::move(what), ledger, std::move(parts), after, std::move(outputs), std::move(owner));
  auto messages = std::make_shared<Messages>();
  messages->what = std::move(what);
  messages->ledger = ledger;
  messages->parts = std::move(parts);
  messages->after = std::move(after);
  messages->outputs = std::move(outputs);
  messages->deadline = deadline;
  messages->future = c10::make_intrusive<c10::ivalue::Future>(messages->outputs.type());
  messages->future->addCallback(
      [flight = observe::take_call()](c10::ivalue::Future& ended) {
        flight.ended(ended.hasError() ? ended.exception_ptr() : std::exception_ptr());
      },
      /*uses_future=*/false);
  ledger->add(messages->future, [weak = std::weak_ptr(messages), weak_waiters = std::weak_ptr(waiters)] {
    const auto alive = weak.lock();
    const auto alive_waiters = weak_waiters.lock();
    if (alive && alive_waiters) alive->drive(*alive_waiters);
  });
  return std::make_shared<MessagesWork>(std::move(messages), waiters, std::move(owner));
}

}  // namespace gradwire::internal
