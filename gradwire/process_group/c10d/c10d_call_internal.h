// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One call of a gradwire group on an engine of c10d, from its start to its end.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/process_group/work.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::internal {

using C10dWorks = std::vector<c10::intrusive_ptr<c10d::Work>>;

// The first error of a group, and its calls that have not ended. Calls under way hold the ledger, which may therefore
// outlive the group. Thread-safe.
class C10dLedger : public std::enable_shared_from_this<C10dLedger> {
 public:
  // Turns an engine's error into the error that the group reports; may ask the store which rank aborted.
  using Explain = std::function<std::exception_ptr(const std::string& what, std::exception_ptr error, bool at_call)>;
  explicit C10dLedger(Explain explain) : explain_(std::move(explain)) {}

  // The error that ended the group; null before.
  std::exception_ptr failure() const;
  // Explains `error`. Keeps the first error that ends the group. Returns the kept error, else the explained one.
  std::exception_ptr fail(const std::string& what, const std::exception_ptr& error, bool at_call);

  // Adds a future that completes with its call, or with the error of end_all(), and which the ledger holds until then.
  // `drive`: wait_all() calls it for a call that no other thread ends. `written`: the tensors that a collective writes
  // into.
  void add(const Future& future, std::function<void()> drive = nullptr, std::vector<at::Tensor> written = {});
  std::size_t under_way();
  // Waits until all calls have ended. Throws AbortedError when this thread is interrupted (gradwire/base/interrupt.h).
  void wait_all();
  // Whether a call that has not ended writes into memory of one of `inputs`.
  bool has_writer_of(const std::vector<at::Tensor>& inputs);
  // As wait_all(), but waits only for calls that write into memory of `inputs`.
  void wait_for_writers(const std::vector<at::Tensor>& inputs);
  void end_all(const std::exception_ptr& error);

 private:
  struct Open {
    Future future;
    std::function<void()> drive;
    std::vector<at::Tensor> written;
  };
  std::vector<Open> open();
  void forget(const c10::ivalue::Future& ended);
  static bool writes_into(const Open& call, const std::vector<at::Tensor>& inputs);
  static void wait_for_end(const Open& call);

  const Explain explain_;
  mutable Mutex mutex_;
  std::exception_ptr failure_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<Open> open_ GRADWIRE_GUARDED_BY(mutex_);
};

// Completes `future` unless it is completed already, and returns whether it did. Exceptions of callbacks are not passed
// on.
bool complete_once(const Future& future, const std::exception_ptr& error, const std::function<c10::IValue()>& value);

// Whether this thread runs a callback of an engine; the engine cannot be destroyed on such a thread.
bool in_engine_callback() noexcept;

// Returns a Work that ends when all of `parts` have ended and `after` has run. Where a part has no future, waits for
// the parts before it returns.
std::shared_ptr<Work> follow_call(std::string what, const std::shared_ptr<C10dLedger>& ledger, C10dWorks parts,
                                  std::function<void()> after, Outputs outputs, std::shared_ptr<void> owner);

// The same where `outputs` are on devices. The engine's calls run on streams of the engine: a wait makes the current
// streams of the waiting thread wait for these streams, and the CPU goes on. With `after`, this function makes the
// current streams wait, and runs `after` on them. A timeout of wait() has no effect, because nothing blocks; the engine
// observes the timeout of the call.
std::shared_ptr<Work> follow_on_streams(std::string what, const std::shared_ptr<C10dLedger>& ledger, C10dWorks parts,
                                        const std::function<void()>& after, Outputs outputs,
                                        std::shared_ptr<void> owner);

}  // namespace gradwire::internal
