// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_call_internal.h"
#include "gradwire/process_group/c10d/c10d_error_internal.h"
#include "gradwire/process_group/wait_for_future_internal.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace gradwire::internal {
namespace {

thread_local int callbacks_on_this_thread = 0;

struct InCallback {
  InCallback() { ++callbacks_on_this_thread; }
  ~InCallback() { --callbacks_on_this_thread; }
};

// A collective under way; shared by the callbacks of its parts.
struct Call {
  std::string what;
  std::shared_ptr<C10dLedger> ledger;
  C10dWorks parts;
  std::function<void()> after;
  Outputs outputs;
  Future future;
  std::atomic<std::size_t> left{0};

  std::exception_ptr first_error() {
    for (const auto& part : parts) {
      const Future done = part->getFuture();
      if (done->hasError()) return ledger->fail(what, done->exception_ptr(), false);
    }
    try {
      if (after) after();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  void one_ended() {
    if (left.fetch_sub(1) != 1) return;
    const InCallback here;
    const std::exception_ptr error = first_error();
    complete_once(future, error, [&] { return outputs.value(); });
  }
};

// The futures of `parts`; none where a part has none.
std::vector<Future> futures_of(const C10dWorks& parts) {
  std::vector<Future> futures;
  try {
    for (const auto& part : parts) futures.push_back(part->getFuture());
  } catch (const c10::Error&) {
    return {};
  }
  return futures;
}

}  // namespace

bool in_engine_callback() noexcept { return callbacks_on_this_thread > 0; }

bool complete_once(const Future& future, const std::exception_ptr& error, const std::function<c10::IValue()>& value) {
  if (future->completed()) return false;
  try {
    if (error) {
      future->setErrorIfNeeded(error);
    } else {
      future->markCompleted(value());
    }
    return true;
  } catch (const std::exception& problem) {
    // Either end_all() was faster, or a callback threw; both are told elsewhere.
    log::debug(concat("a future of a c10d call: ", problem.what()));
    return false;
  }
}

std::exception_ptr C10dLedger::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

std::exception_ptr C10dLedger::fail(const std::string& what, const std::exception_ptr& error, bool at_call) {
  if (const std::exception_ptr first = failure()) return first;
  const std::exception_ptr explained = explain_(what, error, at_call);
  if (!ends_the_group(explained)) return explained;
  MutexLock lock(mutex_);
  if (!failure_) failure_ = explained;
  return failure_;
}

void C10dLedger::add(const Future& future, std::function<void()> drive, std::vector<at::Tensor> written) {
  {
    MutexLock lock(mutex_);
    open_.push_back({future, std::move(drive), std::move(written)});
  }
  future->addCallback(
      [weak = weak_from_this()](c10::ivalue::Future& ended) {
        if (const auto ledger = weak.lock()) ledger->forget(ended);
      },
      /*uses_future=*/false);
}

void C10dLedger::forget(const c10::ivalue::Future& ended) {
  Open held;  // goes without the lock: what frees its tensors is the program's
  MutexLock lock(mutex_);
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const Open& each) { return each.future.get() == &ended; });
  if (found == open_.end()) return;
  held = std::move(*found);
  open_.erase(found);
}

std::vector<C10dLedger::Open> C10dLedger::open() {
  MutexLock lock(mutex_);
  std::vector<Open> under_way = open_;
  std::erase_if(under_way, [](const Open& each) { return each.future->completed(); });
  return under_way;
}

std::size_t C10dLedger::under_way() { return open().size(); }

void C10dLedger::wait_all() {
  for (const Open& each : open()) {
    if (each.drive) each.drive();
    wait_for_end(each);
  }
}

bool C10dLedger::writes_into(const Open& call, const std::vector<at::Tensor>& inputs) {
  return std::any_of(call.written.begin(), call.written.end(), [&](const at::Tensor& written) {
    return std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
      return written.defined() && input.defined() && written.is_alias_of(input);
    });
  });
}

bool C10dLedger::has_writer_of(const std::vector<at::Tensor>& inputs) {
  MutexLock lock(mutex_);
  return std::any_of(open_.begin(), open_.end(),
                     [&](const Open& each) { return !each.future->completed() && writes_into(each, inputs); });
}

void C10dLedger::wait_for_writers(const std::vector<at::Tensor>& inputs) {
  for (const Open& each : open()) {
    if (writes_into(each, inputs)) wait_for_end(each);
  }
}

void C10dLedger::wait_for_end(const Open& call) {
  try {
    wait_for(call.future, Work::kNoTimeout, CallLabel());
  } catch (...) {
    if (!call.future->completed()) throw;  // else the error of the call, which is told to those who wait for the call
  }
}

void C10dLedger::end_all(const std::exception_ptr& error) {
  for (const Open& each : open()) complete_once(each.future, error, {});
}

std::shared_ptr<Work> follow_call(std::string what, const std::shared_ptr<C10dLedger>& ledger, C10dWorks parts,
                                  std::function<void()> after, Outputs outputs, std::shared_ptr<void> owner) {
  if (!devices_of(outputs.flattened()).empty())
    return follow_on_streams(std::move(what), ledger, std::move(parts), after, std::move(outputs), std::move(owner));
  const std::vector<Future> futures = futures_of(parts);
  if (futures.size() != parts.size() || parts.empty()) {
    try {
      for (const auto& part : parts) part->wait();
      if (after) after();
      return completed_work(std::move(outputs));
    } catch (...) {
      return failed_work(ledger->fail(what, std::current_exception(), false));
    }
  }
  auto call = std::make_shared<Call>();
  call->what = std::move(what);
  call->ledger = ledger;
  call->parts = std::move(parts);
  call->after = std::move(after);
  call->outputs = std::move(outputs);
  call->future = c10::make_intrusive<c10::ivalue::Future>(call->outputs.type());
  call->left = futures.size();
  ledger->add(call->future, nullptr, call->outputs.flattened());
  const Future whole = call->future;
  for (const Future& future : futures)
    future->addCallback([call](c10::ivalue::Future&) { call->one_ended(); }, /*uses_future=*/false);
  return work_from_future(whole, std::move(owner));
}

}  // namespace gradwire::internal
