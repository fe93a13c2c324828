// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Calls of engines that work on streams of devices (NCCL). c10's generic streams, so nothing here needs CUDA.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/mutex.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/c10d/c10d_call_internal.h"

namespace gradwire::internal {
namespace {

std::vector<c10::Stream> side_streams(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Stream> streams;
  for (const c10::Device& device : devices_of(tensors))
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  return streams;
}

class StreamWork final : public Work {
 public:
  StreamWork(std::string what, std::shared_ptr<C10dLedger> ledger, C10dWorks parts, Outputs outputs,
             std::shared_ptr<void> owner)
      : owner_(std::move(owner)),
        what_(std::move(what)),
        ledger_(std::move(ledger)),
        parts_(std::move(parts)),
        outputs_(std::move(outputs)) {}

  bool wait(Milliseconds) override {
    try {
      for (const auto& part : parts_) part->wait();
    } catch (...) {
      std::rethrow_exception(ledger_->fail(what_, std::current_exception(), false));
    }
    return true;
  }
  void block_current_stream() override { wait(kNoTimeout); }

  // Made when asked for, on streams of its own, so that those of the caller do not wait.
  Future future() override {
    MutexLock lock(mutex_);
    if (future_) return future_;
    const std::vector<at::Tensor> tensors = outputs_.flattened();
    future_ = make_future(outputs_.type(), tensors);
    const std::vector<c10::Stream> streams = side_streams(tensors);
    const c10::MultiStreamGuard aside(streams);
    try {
      wait(kNoTimeout);
      future_->markCompleted(outputs_.value());
    } catch (...) {
      future_->setErrorIfNeeded(std::current_exception());
    }
    return future_;
  }

  // Of the devices, not of the future.
  bool is_completed() override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isCompleted(); });
  }
  bool is_success() override { return is_completed() && exception() == nullptr; }
  std::exception_ptr exception() override {
    for (const auto& part : parts_) {
      if (const std::exception_ptr error = part->exception()) return ledger_->fail(what_, error, false);
    }
    return nullptr;
  }
  std::vector<at::Tensor> result() override {
    if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
    return outputs_.flattened();
  }

 private:
  const std::shared_ptr<void> owner_;  // goes last
  const std::string what_;
  const std::shared_ptr<C10dLedger> ledger_;
  const C10dWorks parts_;
  const Outputs outputs_;
  Mutex mutex_;
  Future future_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<Work> follow_on_streams(std::string what, const std::shared_ptr<C10dLedger>& ledger, C10dWorks parts,
                                        const std::function<void()>& after, Outputs outputs,
                                        std::shared_ptr<void> owner) {
  if (!after && !parts.empty()) {
    observe::take_call().lost();  // a future, which would tell, has streams of its own and is not made unasked
    return std::make_shared<StreamWork>(std::move(what), ledger, std::move(parts), std::move(outputs),
                                        std::move(owner));
  }
  try {
    for (const auto& part : parts) part->wait();
    if (after) after();
  } catch (...) {
    return failed_work(ledger->fail(what, std::current_exception(), false));
  }
  // Marks the current streams: who waits elsewhere gets his in order.
  const Future done = make_future(outputs.type(), outputs.flattened());
  done->markCompleted(outputs.value());
  return work_from_future(done, std::move(owner));
}

}  // namespace gradwire::internal
