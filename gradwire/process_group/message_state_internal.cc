// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/message_state_internal.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/completed_future_internal.h"
#include "gradwire/process_group/tensor_memory_internal.h"
#include "gradwire/process_group/validate_internal.h"

namespace gradwire::internal {

MessageState::MessageState(const CallLabel& label, std::weak_ptr<const ProcessGroup> group, bool receives,
                           Messages messages, Requests requests, Deadline deadline, std::shared_ptr<Channel> channel)
    : label_(label),
      group_(std::move(group)),
      receives_(receives),
      deadline_(deadline),
      messages_(std::move(messages)),
      channel_(std::move(channel)),
      requests_(std::move(requests)) {
  observe::take_call();  // the record ends with this
}

std::string MessageState::what() const {
  const std::shared_ptr<const ProcessGroup> alive = group_.lock();
  return alive == nullptr || !label_ ? label_.words() : concat(name_group(*alive), ": ", label_.operation());
}

std::string MessageState::name() const {
  const std::string recorded = label_.flight().name();
  return recorded.empty() ? what() : recorded;
}

Requests MessageState::under_way() {
  if (ended_) return {};
  MutexLock lock(mutex_);
  return requests_;
}

bool MessageState::ready() {
  for (const auto& request : under_way()) {
    if (!request->done()) return deadline_.expired();
  }
  return true;
}

bool MessageState::wait_ready(Deadline until) {
  // A request that misses the deadline of its own wait() is given up, so this asks it instead of waiting for it.
  RequestPause pause;
  while (!ready()) {
    if (until.expired()) return false;
    if (const InterruptCheck check = interrupt_check(); check != nullptr && check())
      throw AbortedError(concat(name(), ": wait(): interrupted on this rank; the message goes on"));
    MutexLock lock(mutex_);
    if (ended_) return true;
    changed_.wait_until(lock, std::min(until.point(), Deadline::Clock::now() + pause.next()));
  }
  return true;
}

void MessageState::finish() {
  if (ended_) return;
  int from = -1;
  std::exception_ptr problem;
  try {
    const Requests requests = under_way();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const Message& message = messages_[i];
      const Request::Status status = requests[i]->wait(deadline_);
      from = status.source;
      const std::size_t expected = message.memory.nbytes();
      if (receives_ && status.bytes != expected) {
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

void MessageState::end(std::exception_ptr problem, int source) {
  Future told;
  c10::IValue value;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    if (receives_ && !problem) problem = copy_out();
    error_ = problem;
    source_ = source;
    ended_ = true;
    changed_.notify_all();
    told = future_;
    if (told) value = tensors();
    requests_.clear();
    channel_.reset();
  }
  label_.flight().ended(problem);
  if (told)
    complete_future(
        told, problem, [&] { return std::move(value); }, what());
}

std::exception_ptr MessageState::copy_out() const {
  try {
    for (const Message& message : messages_) copy_back(message.tensor, message.memory);
  } catch (const std::exception&) {
    return std::current_exception();
  }
  return nullptr;
}

bool MessageState::begin_watch() {
  if (ended_) return false;
  MutexLock lock(mutex_);
  return !ended_ && !std::exchange(watched_, true);
}

std::pair<Future, bool> MessageState::future() {
  const c10::TypePtr type = c10::ListType::ofTensors();
  Future made;
  std::exception_ptr error;
  c10::IValue value;
  {
    MutexLock lock(mutex_);
    if (future_) return {future_, false};
    made = future_ = c10::make_intrusive<c10::ivalue::Future>(type);
    watched_ = true;
    if (!ended_) return {made, true};
    error = error_;
    value = tensors();
  }
  if (error) {
    made->setError(error);
  } else {
    made->markCompleted(std::move(value));
  }
  return {made, false};
}

std::exception_ptr MessageState::error() const { return ended_ ? error_ : nullptr; }

std::optional<int> MessageState::source() const { return ended_ ? std::make_optional(source_) : std::nullopt; }

std::vector<at::Tensor> MessageState::tensors() const {
  std::vector<at::Tensor> all;
  for (const Message& message : messages_) all.push_back(message.tensor);
  return all;
}

}  // namespace gradwire::internal
