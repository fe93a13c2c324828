// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One call of ours on an engine of c10d, from its start to its end.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/process_group/work.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::internal {

using C10dWorks = std::vector<c10::intrusive_ptr<c10d::Work>>;

// What outlives a group as long as a call of it is under way: its first error, and the calls that have not ended.
// Thread-safe.
class C10dLedger {
 public:
  // Turns an engine's error into the one that the group reports; may ask the store who aborted.
  using Explain = std::function<std::exception_ptr(const std::string& what, std::exception_ptr error, bool at_call)>;
  explicit C10dLedger(Explain explain) : explain_(std::move(explain)) {}

  // Null while all is well.
  std::exception_ptr failure() const;
  // Keeps the first of those that end the group; returns `error` explained.
  std::exception_ptr fail(const std::string& what, const std::exception_ptr& error, bool at_call);

  // A future that completes with its call, or with the error of end_all(). `drive`: what wait_all() calls for one that
  // nobody else brings to its end.
  void add(const Future& future, std::function<void()> drive = nullptr);
  std::size_t under_way();
  void wait_all();
  void end_all(const std::exception_ptr& error);

 private:
  struct Open {
    Future future;
    std::function<void()> drive;
  };
  std::vector<Open> open();

  const Explain explain_;
  mutable Mutex mutex_;
  std::exception_ptr failure_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<Open> open_ GRADWIRE_GUARDED_BY(mutex_);
};

// Completes `future` unless it is completed already; whether it did. What callbacks throw stays here.
bool complete_once(const Future& future, const std::exception_ptr& error, const std::function<c10::IValue()>& value);

// Whether this thread runs a callback of an engine's: the engine cannot be destroyed on it.
bool in_engine_callback() noexcept;

// A Work that ends when all of `parts` have and `after` has run. Where a part has no future, waits here and now.
std::shared_ptr<Work> follow_call(std::string what, const std::shared_ptr<C10dLedger>& ledger, C10dWorks parts,
                                  std::function<void()> after, Outputs outputs, std::shared_ptr<void> owner);

// The same where `outputs` are on devices. The engine's calls run on streams of its own: who waits lets the streams
// that are current on his thread wait for those, the CPU goes on. With `after` that happens here and now, and `after`
// runs on the current streams. A time-out of wait() has no meaning, because nothing blocks; the engine keeps the call's
// own.
std::shared_ptr<Work> follow_on_streams(std::string what, const std::shared_ptr<C10dLedger>& ledger, C10dWorks parts,
                                        const std::function<void()>& after, Outputs outputs,
                                        std::shared_ptr<void> owner);

// Threads that wait for messages. An engine's message may have no future (Gloo's), or one whose callbacks run where
// other messages are brought to their end, so whoever waits waits for the message itself, and a thread is started for
// one when someone asks for its future, waits with a time-out of his own, or drops it before its end.
class MessageWaiters {
 public:
  ~MessageWaiters() { join(); }
  void start(std::function<void()> body);
  // Waits until all have ended. A waiter that calls it itself is joined later.
  void join();

 private:
  Mutex mutex_;
  std::vector<Thread> threads_ GRADWIRE_GUARDED_BY(mutex_);
};

// A Work of messages.
std::shared_ptr<Work> follow_messages(std::string what, const std::shared_ptr<C10dLedger>& ledger, C10dWorks parts,
                                      std::function<void()> after, Outputs outputs, Deadline deadline,
                                      const std::shared_ptr<MessageWaiters>& waiters, std::shared_ptr<void> owner);

}  // namespace gradwire::internal
