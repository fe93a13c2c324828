// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Messages of a gradwire group over an engine of c10d, and the threads that wait for them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/mutex.h"
#include "gradwire/process_group/c10d/c10d_call_internal.h"

namespace gradwire::internal {

// Threads that wait for messages. A message of an engine may have no future (Gloo's), or a future whose callbacks run
// on a thread that also ends other messages. So a wait is for the message itself. A thread is started for a message
// when its future is asked for, when a wait has a timeout of its own or may be interrupted, or when its Work is
// destroyed before it has ended.
class MessageWaiters {
 public:
  ~MessageWaiters() { join(); }
  // Starts a thread that runs `body`, after it has joined those that have ended. Throws ResourceError where there can
  // be no further thread.
  void start(std::function<void()> body);
  // Waits until all threads have ended. A thread that calls join() itself is joined later.
  void join();

 private:
  struct Waiter {
    std::shared_ptr<std::atomic<bool>> has_ended;  // the body has returned
    Thread thread;
  };

  Mutex mutex_;
  std::vector<Waiter> waiters_ GRADWIRE_GUARDED_BY(mutex_);
};

// Returns a Work that ends when the messages `parts` have ended and `after` has run.
std::shared_ptr<Work> follow_messages(std::string what, const std::shared_ptr<C10dLedger>& ledger, C10dWorks parts,
                                      std::function<void()> after, Outputs outputs, Deadline deadline,
                                      const std::shared_ptr<MessageWaiters>& waiters, std::shared_ptr<void> owner);

}  // namespace gradwire::internal
