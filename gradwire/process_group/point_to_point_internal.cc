// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/point_to_point_internal.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/log.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/completed_future_internal.h"
#include "gradwire/process_group/parked_threads_internal.h"
#include "gradwire/process_group/tensor_memory_internal.h"
#include "gradwire/process_group/validate_internal.h"
#include "gradwire/process_group/watched_call_internal.h"

namespace gradwire::internal {
namespace {

constexpr std::chrono::microseconds kFirstPause{50};
constexpr std::chrono::microseconds kLongestPause{2000};
}  // namespace

struct PointToPointWork::State {
  State(const CallLabel& its_label, std::weak_ptr<const ProcessGroup> its_group, bool does_receive,
        Messages&& its_messages, Deadline its_deadline, std::shared_ptr<Channel>&& its_channel)
      : label(its_label),
        group(std::move(its_group)),
        receives(does_receive),
        deadline(its_deadline),
        channel(std::move(its_channel)),
        messages(std::move(its_messages)) {
    observe::take_call();  // the record ends with this
  }

  const CallLabel label;
  const std::weak_ptr<const ProcessGroup> group;
  const bool receives;
  const Deadline deadline;

  Mutex mutex;
  ConditionVariable changed;
  std::shared_ptr<Channel> channel GRADWIRE_GUARDED_BY(mutex);  // outlives the requests
  Messages messages GRADWIRE_GUARDED_BY(mutex);
  bool ended GRADWIRE_GUARDED_BY(mutex) = false;
  bool watched GRADWIRE_GUARDED_BY(mutex) = false;
  std::exception_ptr error GRADWIRE_GUARDED_BY(mutex);
  int source GRADWIRE_GUARDED_BY(mutex) = -1;
  Future future GRADWIRE_GUARDED_BY(mutex);

  std::vector<at::Tensor> tensors() GRADWIRE_REQUIRES(mutex) {
    std::vector<at::Tensor> all;
    for (const Message& message : messages) all.push_back(message.tensor);
    return all;
  }

  Messages under_way() {
    MutexLock lock(mutex);
    return ended ? Messages() : messages;
  }

  // Whether finish() would end it without waiting.
  bool ready() {
    for (const Message& message : under_way()) {
      if (message.request != nullptr && !message.request->done()) return deadline.expired();
    }
    return true;
  }

  // Waits until ready() or `until`. A request that misses the deadline of its own wait() is given up, so this asks it
  // instead of waiting for it.
  bool wait_ready(Deadline until) {
    std::chrono::microseconds pause = kFirstPause;
    while (!ready()) {
      if (until.expired()) return false;
      if (const InterruptCheck check = interrupt_check(); check != nullptr && check())
        throw AbortedError(concat(name(), ": wait(): interrupted on this rank; the message goes on"));
      MutexLock lock(mutex);
      if (ended) return true;
      changed.wait_until(lock, std::min(until.point(), Deadline::Clock::now() + pause));
      pause = std::min(pause * 2, kLongestPause);
    }
    return true;
  }

  // "rank 0 of group 'default' (shm): recv"; as the label says where the group has gone.
  std::string what() const {
    const std::shared_ptr<const ProcessGroup> alive = group.lock();
    return alive == nullptr || !label ? label.words() : concat(name_group(*alive), ": ", label.operation());
  }

  // "recv (group default)": the engine that moves the messages does not know the group.
  std::string name() const {
    const std::string recorded = label.flight().name();
    return recorded.empty() ? what() : recorded;
  }

  // Waits for the messages, until their deadline.
  void finish() {
    int from = -1;
    std::exception_ptr problem;
    try {
      for (const Message& message : under_way()) {
        if (message.request == nullptr) continue;
        const Request::Status status = message.request->wait(deadline);
        from = status.source;
        const std::size_t expected = message.memory.nbytes();
        if (receives && status.bytes != expected) {
          throw MismatchError(concat(what(), ": rank ", status.source, " sent ", status.bytes,
                                     " bytes, and the tensor has ", expected, " (", message.tensor.numel(), " of ",
                                     message.tensor.scalar_type(), ")"));
        }
      }
    } catch (const PeerError& error) {
      problem = std::make_exception_ptr(PeerError(concat(name(), ": ", error.what()), error.peers()));
    } catch (const TimeoutError& error) {
      problem = std::make_exception_ptr(TimeoutError(concat(name(), ": ", error.what()), error.peers()));
    } catch (const std::exception&) {
      problem = std::current_exception();
    }
    end(problem, from);
  }

  void end(std::exception_ptr problem, int from) {
    Future told;
    c10::IValue value;
    {
      MutexLock lock(mutex);
      if (ended) return;
      if (receives && !problem) problem = copy_out();
      ended = true;
      changed.notify_all();
      error = problem;
      source = from;
      told = future;
      if (told) value = tensors();
      for (Message& message : messages) message.request.reset();
      channel.reset();
    }
    label.flight().ended(problem);
    if (told)
      complete_future(
          told, problem, [&] { return std::move(value); }, what());
  }

  std::exception_ptr copy_out() GRADWIRE_REQUIRES(mutex) {
    try {
      for (const Message& message : messages) copy_back(message.tensor, message.memory);
    } catch (const std::exception&) {
      return std::current_exception();
    }
    return nullptr;
  }

  void rethrow() {
    MutexLock lock(mutex);
    if (error) std::rethrow_exception(error);
  }
};

struct CompletionWatcher::Shared {
  Mutex mutex;
  ConditionVariable changed;
  std::vector<std::shared_ptr<PointToPointWork::State>> states GRADWIRE_GUARDED_BY(mutex);
  // Of sends whose Works are held. Those that have gone are taken out now and then.
  std::vector<std::weak_ptr<PointToPointWork::State>> sends GRADWIRE_GUARDED_BY(mutex);
  std::size_t sweep_at GRADWIRE_GUARDED_BY(mutex) = 64;
  // Runs watch() from the first watched message on. stop() takes it away.
  Thread thread GRADWIRE_GUARDED_BY(mutex);
  bool is_watching GRADWIRE_GUARDED_BY(mutex) = false;  // the thread runs watch()
  std::thread::id watching GRADWIRE_GUARDED_BY(mutex);  // the thread's, also when stop() has taken it
  bool stopping GRADWIRE_GUARDED_BY(mutex) = false;
  bool drain GRADWIRE_GUARDED_BY(mutex) = false;
  std::string reason GRADWIRE_GUARDED_BY(mutex);
};

PointToPointWork::PointToPointWork(bool receives, Messages messages, Deadline deadline,
                                   std::shared_ptr<Channel> channel, std::shared_ptr<CompletionWatcher> watcher,
                                   std::shared_ptr<const ProcessGroup> group)
    : owner_(std::move(group)),
      watcher_(std::move(watcher)),
      state_(std::make_shared<State>(label(), owner_, receives, std::move(messages), deadline, std::move(channel))) {
  if (!receives) watcher_->note_send(state_);
}

PointToPointWork::~PointToPointWork() {
  if (!watcher_->owner_.is_current()) {
    // Cancelling a request would reach into what belongs to the parent.
    static_cast<void>(std::make_unique<std::shared_ptr<State>>(std::move(state_)).release());
    return;
  }
  try {
    watcher_->take_over(state_);
  } catch (const std::exception& error) {  // no thread: the next message that is watched, or the group's end, is for it
    log::warn(concat(state_->what(), ": nobody watches this message until the group's next one: ", describe(error)));
  }
}

bool PointToPointWork::wait(Milliseconds timeout) {
  const WatchedWait watched(label().flight());
  if (timeout != kNoTimeout && !state_->wait_ready(Deadline::after(timeout))) throw_late(timeout);
  state_->finish();
  state_->rethrow();
  return true;
}

Future PointToPointWork::future() {
  const c10::TypePtr type = c10::ListType::ofTensors();
  Future made;
  bool ended = false;
  std::exception_ptr error;
  c10::IValue value;
  {
    MutexLock lock(state_->mutex);
    if (state_->future) return state_->future;
    made = state_->future = c10::make_intrusive<c10::ivalue::Future>(type);
    ended = state_->ended;
    error = state_->error;
    if (ended) value = state_->tensors();
    state_->watched = true;
  }
  if (!ended) {
    watcher_->add(state_);
  } else if (error) {
    made->setError(error);
  } else {
    made->markCompleted(std::move(value));
  }
  return made;
}

bool PointToPointWork::is_completed() {
  if (!state_->ready()) return false;
  state_->finish();  // a message that ended lies in the user's tensor
  return true;
}

bool PointToPointWork::is_success() { return is_completed() && exception() == nullptr; }

std::exception_ptr PointToPointWork::exception() {
  if (!state_->ready()) return nullptr;
  state_->finish();
  MutexLock lock(state_->mutex);
  return state_->error;
}

std::vector<at::Tensor> PointToPointWork::result() {
  if (!state_->ready())
    throw InvalidArgument(concat(state_->what(), ": result(): the message is under way; wait() for it first"));
  wait(kNoTimeout);
  MutexLock lock(state_->mutex);
  return state_->tensors();
}

int PointToPointWork::source_rank() const {
  if (!state_->receives) return Work::source_rank();
  MutexLock lock(state_->mutex);
  if (!state_->ended)
    throw InvalidArgument(concat(state_->what(), ": source_rank(): the message is under way; wait() for it first"));
  return state_->source;
}

CompletionWatcher::CompletionWatcher() : shared_(std::make_shared<Shared>()) {}

CompletionWatcher::~CompletionWatcher() {
  if (!owner_.is_current()) {
    static_cast<void>(std::make_unique<std::shared_ptr<Shared>>(std::move(shared_)).release());
    return;
  }
  stop(false, "its group was let go");
}

void CompletionWatcher::note_send(const std::shared_ptr<PointToPointWork::State>& state) {
  MutexLock lock(shared_->mutex);
  std::vector<std::weak_ptr<PointToPointWork::State>>& sends = shared_->sends;
  if (sends.size() >= shared_->sweep_at) {
    std::erase_if(sends, [](const auto& send) { return send.expired(); });
    shared_->sweep_at = std::max<std::size_t>(64, 2 * sends.size());
  }
  sends.push_back(state);
}

bool CompletionWatcher::stop(bool drain, const std::string& reason) {
  std::vector<std::weak_ptr<PointToPointWork::State>> sends;
  if (drain) {
    MutexLock lock(shared_->mutex);
    sends = std::exchange(shared_->sends, {});
  }
  for (const auto& send : sends) {
    const auto state = send.lock();
    if (!state) continue;
    try {
      take_over(state);
    } catch (const ResourceError&) {  // no thread: the calling thread watches, below
    }
  }
  Shared& shared = *shared_;
  MutexLock lock(shared.mutex);
  shared.drain = drain && (!shared.stopping || shared.drain);
  if (!shared.stopping) shared.reason = reason;
  shared.stopping = true;
  shared.changed.notify_all();
  if (!shared.is_watching) {  // no thread was started, or it was refused
    lock.unlock();
    watch(shared);
    return false;
  }
  if (shared.watching == std::this_thread::get_id()) {  // a callback, which may come here more than once
    if (shared.thread.joinable()) park_thread(std::move(shared.thread));
    return false;
  }
  bool interrupted = false;
  while (shared.is_watching) {
    shared.changed.wait_for(lock, kInterruptLook);
    if (!shared.drain || interrupt_check() == nullptr || !interrupt_check()()) continue;
    shared.drain = false;
    interrupted = true;
  }
  Thread ended = std::move(shared.thread);
  lock.unlock();
  if (ended.joinable()) ended.join();  // else another call has it
  return interrupted;
}

void CompletionWatcher::take_over(const std::shared_ptr<PointToPointWork::State>& state) {
  {
    MutexLock lock(state->mutex);
    if (state->ended || std::exchange(state->watched, true)) return;
  }
  add(state);
}

void CompletionWatcher::add(std::shared_ptr<PointToPointWork::State> state) {
  MutexLock lock(shared_->mutex);
  if (shared_->stopping) {
    lock.unlock();
    // Too late to be watched: what has come has come, and the rest fails.
    if (!state->ready())
      return state->end(std::make_exception_ptr(AbortedError(concat(state->what(), ": the group has ended"))), -1);
    return state->finish();
  }
  shared_->states.push_back(std::move(state));
  shared_->changed.notify_all();
  if (shared_->is_watching) return;
  // Where no thread can be had, stop() watches what was added.
  shared_->thread = Thread("gw-messages", [shared = shared_] {
    MutexLock own(shared->mutex);
    shared->watching = std::this_thread::get_id();
    own.unlock();
    watch(*shared);
  });
  shared_->is_watching = true;
}

void CompletionWatcher::watch(Shared& shared) {
  std::chrono::microseconds pause = kFirstPause;
  MutexLock lock(shared.mutex);
  while (true) {
    if (shared.states.empty()) {
      if (shared.stopping) {
        shared.is_watching = false;
        shared.changed.notify_all();
        return;
      }
      pause = kFirstPause;
      shared.changed.wait(lock);
      continue;
    }
    std::vector<std::shared_ptr<PointToPointWork::State>> states = shared.states;
    const bool give_up = shared.stopping && !shared.drain;
    const std::string reason = shared.reason;
    lock.unlock();
    std::erase_if(states, [](const auto& state) { return !state->ready(); });
    // Callbacks run here; they may call the group, so no lock is held.
    for (const auto& state : states) state->finish();
    lock.lock();
    const std::size_t before = shared.states.size();
    std::erase_if(shared.states,
                  [&](const auto& state) { return std::find(states.begin(), states.end(), state) != states.end(); });
    if (give_up) {
      const auto left = std::exchange(shared.states, {});
      lock.unlock();
      for (const auto& state : left)
        state->end(std::make_exception_ptr(AbortedError(concat(state->what(), ": ", reason))), -1);
      lock.lock();
      continue;
    }
    if (shared.states.size() < before) {
      pause = kFirstPause;
      continue;
    }
    shared.changed.wait_for(lock, pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace gradwire::internal
