// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/work.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/labelled_work_internal.h"
#include "gradwire/process_group/stream_hold_internal.h"
#include "gradwire/process_group/wait_for_future_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire {
namespace {

void append_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) append_tensors(element, tensors);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) append_tensors(element, tensors);
  } else if (!value.isNone()) {
    throw UnsupportedError(
        concat("Work::result(): the future holds a ", value.tagKind(), ", not tensors; take it from future()"));
  }
}

class FutureWork final : public internal::LabelledWork {
 public:
  using Works = std::vector<std::shared_ptr<Work>>;

  // `parts`: the Works that it stands for.
  FutureWork(Future future, std::shared_ptr<void> owner, Works parts = {}, const internal::CallLabel& label = {})
      : LabelledWork(label), owner_(std::move(owner)), parts_(std::move(parts)), future_(std::move(future)) {}
  Future future() override { return future_; }
  bool wait(Milliseconds timeout) override {
    if (!future_->completed()) process_.require_current("this Work");
    run_if_queued_here();
    return LabelledWork::wait(timeout);
  }
  void run_if_queued_here() override {
    for (std::size_t i = 0; i < parts_.size() && !future_->completed(); ++i) internal::run_if_queued_here(*parts_[i]);
  }

 private:
  const OwnerProcess process_;         // the thread that ends the call is there alone
  const std::shared_ptr<void> owner_;  // goes after the future, as the next
  const Works parts_;
  Future future_;
};

class CompletedWork final : public Work {
 public:
  explicit CompletedWork(internal::Outputs outputs) : outputs_(std::move(outputs)) {}
  bool wait(Milliseconds) override { return true; }
  bool is_completed() override { return true; }
  bool is_success() override { return true; }
  std::exception_ptr exception() override { return nullptr; }
  std::vector<at::Tensor> result() override { return outputs_.flattened(); }
  void block_current_stream() override {}
  Future future() override {
    MutexLock lock(mutex_);
    if (!future_) {
      future_ = internal::make_future(outputs_.type(), outputs_.flattened());
      future_->markCompleted(outputs_.value());
    }
    return future_;
  }

 private:
  const internal::Outputs outputs_;
  Mutex mutex_;
  Future future_ GRADWIRE_GUARDED_BY(mutex_);
};

// What follows a call that ended on the CPU, but whose outputs are on devices: `then` runs with the streams that are
// current now, on whatever thread, and who waits for the future waits for these streams.
Future future_on_devices(c10::ivalue::Future& before, std::function<void()> then, internal::Outputs outputs) {
  std::vector<c10::Stream> streams;
  for (const c10::Device& device : internal::devices_of(outputs.flattened()))
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  Future after = internal::make_future(outputs.type(), outputs.flattened());
  before.addCallback([after, streams, then = std::move(then), outputs = std::move(outputs)](c10::ivalue::Future& done) {
    if (done.hasError()) return after->setError(done.exception_ptr());
    const c10::MultiStreamGuard callers(streams);
    try {
      then();
    } catch (...) {
      return after->setError(std::current_exception());
    }
    after->markCompleted(outputs.value());
  });
  return after;
}

Future failed_future(std::exception_ptr error, const c10::TypePtr& type) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(type);
  future->setError(std::move(error));
  return future;
}

}  // namespace

bool Work::wait(Milliseconds timeout) {
  internal::wait_for(future(), timeout, {});
  return true;
}

Future Work::future() {
  throw UnsupportedError(
      "Work::future(): this kind of Work has no future; wait() for it, or override future() in its class");
}

bool Work::is_completed() { return future()->completed(); }

bool Work::is_success() { return future()->hasValue(); }

std::exception_ptr Work::exception() { return future()->exception_ptr(); }

std::vector<at::Tensor> Work::result() {
  const Future future = this->future();
  if (!future->completed()) {
    throw InvalidArgument("Work::result(): the call has not ended; wait() for it first");
  }
  std::vector<at::Tensor> tensors;
  append_tensors(future->value(), tensors);
  return tensors;
}

void Work::block_current_stream() {
  if (internal::current_stream_can_wait()) {
    const Future own = internal::future_or_null(*this);
    if (own != nullptr && internal::hold_current_stream(own)) return;
  }
  wait(kNoTimeout);
}

int Work::source_rank() const { throw UnsupportedError("Work::source_rank(): only a receive has a source"); }

std::shared_ptr<Work> work_from_future(Future future) { return internal::work_from_future(std::move(future), nullptr); }

std::shared_ptr<Work> completed_work(std::vector<at::Tensor> outputs) {
  return internal::completed_work(internal::Outputs::list(std::move(outputs)));
}

std::shared_ptr<Work> failed_work(std::exception_ptr error) {
  if (error == nullptr) throw InvalidArgument("failed_work(): the error is null");
  return work_from_future(failed_future(std::move(error), c10::ListType::ofTensors()));
}

Future completed_future(at::Tensor tensor) {
  Future future = internal::make_future(c10::TensorType::get(), {tensor});
  future->markCompleted(c10::IValue(std::move(tensor)));
  return future;
}

namespace internal {

c10::IValue Outputs::value() const { return is_nested ? c10::IValue(nested) : c10::IValue(flat); }

c10::TypePtr Outputs::type() const {
  const c10::TypePtr list = c10::ListType::ofTensors();
  return is_nested ? c10::TypePtr(c10::ListType::create(list)) : list;
}

std::vector<at::Tensor> Outputs::flattened() const {
  std::vector<at::Tensor> tensors = flat;
  for (const auto& some : nested) tensors.insert(tensors.end(), some.begin(), some.end());
  return tensors;
}

std::size_t Outputs::bytes() const {
  std::size_t sum = 0;
  const auto add = [&sum](const std::vector<at::Tensor>& list) {
    for (const at::Tensor& tensor : list) sum += tensor.nbytes();
  };
  add(flat);
  for (const auto& list : nested) add(list);
  return sum;
}

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu()) continue;
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) devices.push_back(tensor.device());
  }
  return devices;
}

Future make_future(const c10::TypePtr& type, const std::vector<at::Tensor>& tensors) {
  return c10::make_intrusive<c10::ivalue::Future>(type, devices_of(tensors));
}

bool may_be_asked(const Work& work) noexcept {
  return dynamic_cast<const FutureWork*>(&work) != nullptr || dynamic_cast<const CompletedWork*>(&work) != nullptr;
}

std::shared_ptr<Work> completed_work(Outputs outputs) { return std::make_shared<CompletedWork>(std::move(outputs)); }

std::shared_ptr<Work> work_from_future(Future future, std::shared_ptr<void> owner) {
  if (!future) throw InvalidArgument("work_from_future(): the future is null");
  return std::make_shared<FutureWork>(std::move(future), std::move(owner));
}

namespace {

// A Work that keeps `work` alive, and stands for the same call where this thread makes none.
std::shared_ptr<Work> labelled(Future future, std::shared_ptr<Work> work) {
  const CallLabel label = label_of(*work);
  return std::make_shared<FutureWork>(std::move(future), nullptr, FutureWork::Works{std::move(work)}, label);
}

}  // namespace

Future future_or_null(Work& work) {
  try {
    return work.future();
  } catch (const UnsupportedError&) {
    return {};
  }
}

std::shared_ptr<Work> work_after(std::shared_ptr<Work> work, std::function<void()> then, Outputs outputs) {
  const Future before = future_or_null(*work);
  if (before == nullptr) {
    work->wait();
    then();
    return completed_work(std::move(outputs));
  }
  if (before->devices().empty() && !devices_of(outputs.flattened()).empty()) {
    Future on_devices = future_on_devices(*before, std::move(then), std::move(outputs));
    return labelled(std::move(on_devices), std::move(work));
  }
  const c10::TypePtr type = outputs.type();
  Future after = before->then(
      [then = std::move(then), outputs = std::move(outputs)](c10::ivalue::Future& done) -> c10::IValue {
        if (done.hasError()) std::rethrow_exception(done.exception_ptr());
        then();
        return outputs.value();
      },
      type);
  return labelled(std::move(after), std::move(work));
}

namespace {

// The state that the callbacks of work_of_all share.
struct Gathering {
  Mutex mutex;
  std::size_t left GRADWIRE_GUARDED_BY(mutex) = 0;
  std::vector<Future> parts;
  Outputs outputs;
  Future whole;

  void one_ended() {
    {
      MutexLock lock(mutex);
      if (--left > 0) return;
    }
    for (const Future& part : parts) {
      if (part->hasError()) return whole->setError(part->exception_ptr());
      part->wait();  // it has ended: on a device, the callback's stream follows the part's
    }
    whole->markCompleted(outputs.value());
  }
};

}  // namespace

std::shared_ptr<Work> work_of_all(std::vector<std::shared_ptr<Work>> works, Outputs outputs) {
  auto state = std::make_shared<Gathering>();
  for (const auto& work : works) {
    Future part = future_or_null(*work);
    if (part == nullptr) {
      for (const auto& each : works) each->wait();
      return completed_work(std::move(outputs));
    }
    state->parts.push_back(std::move(part));
  }
  if (works.empty()) return completed_work(std::move(outputs));
  {
    MutexLock lock(state->mutex);
    state->left = works.size();
  }
  state->whole = make_future(outputs.type(), outputs.flattened());
  const bool on_device = !state->whole->devices().empty();
  state->outputs = std::move(outputs);
  // A copy: the last callback may run here and now, and `state` must outlive the loop.
  const std::vector<Future> parts = state->parts;
  for (const Future& part : parts) {
    // A callback that uses the future runs with a stream of its own as the current one.
    part->addCallback([state](c10::ivalue::Future&) { state->one_ended(); }, /*uses_future=*/on_device);
  }
  const CallLabel label = label_of(*works.front());
  return std::make_shared<FutureWork>(state->whole, nullptr, std::move(works), label);
}

}  // namespace internal
}  // namespace gradwire
