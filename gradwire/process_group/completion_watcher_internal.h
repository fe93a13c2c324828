// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A thread that ends messages for which no other thread waits.
#pragma once

#include <memory>
#include <string>

#include "gradwire/base/process.h"
#include "gradwire/process_group/message_state_internal.h"

namespace gradwire::internal {

// Ends messages for which perhaps no thread waits: those whose Work was asked for its future, and those whose Work was
// destroyed. One thread, started with the first such message. A Request must be asked whether it has ended, so the
// thread asks all of them, at first often, then every 2 ms. Thread-safe.
class CompletionWatcher {
 public:
  CompletionWatcher();
  // In a forked child the destructor does nothing.
  ~CompletionWatcher();
  CompletionWatcher(const CompletionWatcher&) = delete;
  CompletionWatcher& operator=(const CompletionWatcher&) = delete;

  // The process that made this object. In a forked child the other methods are not called.
  const OwnerProcess& owner() const noexcept { return owner_; }

  // Remembers a send, for which stop() waits while its Work is held.
  void note_send(const std::shared_ptr<MessageState>& state);
  // Watches messages until they have ended. After stop(), those that have not ended fail at once.
  void add(std::shared_ptr<MessageState> state);
  // The same, unless they have ended or are watched. Throws ResourceError where no thread can be had.
  void take_over(const std::shared_ptr<MessageState>& state);

  // Refuses further messages, and ends the thread. With `drain`, the thread first waits until all watched messages have
  // ended, and all sends: another rank waits for these. Without it, futures of messages that have not ended fail with
  // AbortedError and `reason`, and messages whose Work was destroyed are cancelled. Returns whether the calling thread
  // was interrupted (gradwire/base/interrupt.h), and the rest was not waited for.
  bool stop(bool drain, const std::string& reason);

 private:
  struct Shared;
  static void watch(Shared& shared);

  const OwnerProcess owner_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace gradwire::internal
