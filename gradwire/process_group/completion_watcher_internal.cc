// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/completion_watcher_internal.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/parked_threads_internal.h"

namespace gradwire::internal {

struct CompletionWatcher::Shared {
  Mutex mutex;
  ConditionVariable changed;
  std::vector<std::shared_ptr<MessageState>> states GRADWIRE_GUARDED_BY(mutex);
  // Of sends whose Works are held. Those that have gone are taken out now and then.
  std::vector<std::weak_ptr<MessageState>> sends GRADWIRE_GUARDED_BY(mutex);
  std::size_t sweep_at GRADWIRE_GUARDED_BY(mutex) = 64;
  // Runs watch() from the first watched message on. stop() takes it away.
  Thread thread GRADWIRE_GUARDED_BY(mutex);
  bool is_watching GRADWIRE_GUARDED_BY(mutex) = false;  // the thread runs watch()
  std::thread::id watching GRADWIRE_GUARDED_BY(mutex);  // the thread's, also when stop() has taken it
  bool stopping GRADWIRE_GUARDED_BY(mutex) = false;
  bool drain GRADWIRE_GUARDED_BY(mutex) = false;
  std::string reason GRADWIRE_GUARDED_BY(mutex);
};

CompletionWatcher::CompletionWatcher() : shared_(std::make_shared<Shared>()) {}

CompletionWatcher::~CompletionWatcher() {
  if (!owner_.is_current()) {
    static_cast<void>(std::make_unique<std::shared_ptr<Shared>>(std::move(shared_)).release());
    return;
  }
  stop(false, "its group was let go");
}

void CompletionWatcher::note_send(const std::shared_ptr<MessageState>& state) {
  MutexLock lock(shared_->mutex);
  std::vector<std::weak_ptr<MessageState>>& sends = shared_->sends;
  if (sends.size() >= shared_->sweep_at) {
    std::erase_if(sends, [](const auto& send) { return send.expired(); });
    shared_->sweep_at = std::max<std::size_t>(64, 2 * sends.size());
  }
  sends.push_back(state);
}

bool CompletionWatcher::stop(bool drain, const std::string& reason) {
  std::vector<std::weak_ptr<MessageState>> sends;
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

void CompletionWatcher::take_over(const std::shared_ptr<MessageState>& state) {
  if (state->begin_watch()) add(state);
}

void CompletionWatcher::add(std::shared_ptr<MessageState> state) {
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
  RequestPause pause;
  MutexLock lock(shared.mutex);
  while (true) {
    if (shared.states.empty()) {
      if (shared.stopping) {
        shared.is_watching = false;
        shared.changed.notify_all();
        return;
      }
      pause = RequestPause();
      shared.changed.wait(lock);
      continue;
    }
    std::vector<std::shared_ptr<MessageState>> states = shared.states;
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
      pause = RequestPause();
      continue;
    }
    shared.changed.wait_for(lock, pause.next());
  }
}

}  // namespace gradwire::internal
