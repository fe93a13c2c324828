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
                           Messages messages, Deadline deadline, std::shared_ptr<Channel> channel)
    : label_(label),
      group_(std::move(group)),
      receives_(receives),
      deadline_(deadline),
      channel_(std::move(channel)),
      messages_(std::move(messages)) {
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

Messages MessageState::under_way() {
  MutexLock lock(mutex_);
  return ended_ ? Messages() : messages_;
}

bool MessageState::ready() {
  for (const Message& message : under_way()) {
    if (message.request != nullptr && !message.request->done()) return deadline_.expired();
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
  int from = -1;
  std::exception_ptr problem;
  try {
    for (const Message& message : under_way()) {
      if (message.request == nullptr) continue;
      const Request::Status status = message.request->wait(deadline_);
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
    ended_ = true;
    changed_.notify_all();
    error_ = problem;
    source_ = source;
    told = future_;
    if (told) value = all_tensors();
    for (Message& message : messages_) message.request.reset();
    channel_.reset();
  }
  label_.flight().ended(problem);
  if (told)
    complete_future(
        told, problem, [&] { return std::move(value); }, what());
}

std::exception_ptr MessageState::copy_out() {
  try {
    for (const Message& message : messages_) copy_back(message.tensor, message.memory);
  } catch (const std::exception&) {
    return std::current_exception();
  }
  return nullptr;
}

bool MessageState::begin_watch() {
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
    value = all_tensors();
  }
  if (error) {
    made->setError(error);
  } else {
    made->markCompleted(std::move(value));
  }
  return {made, false};
}

std::exception_ptr MessageState::error() {
  MutexLock lock(mutex_);
  return error_;
}

std::optional<int> MessageState::source() {
  MutexLock lock(mutex_);
  return ended_ ? std::make_optional(source_) : std::nullopt;
}

std::vector<at::Tensor> MessageState::tensors() {
  MutexLock lock(mutex_);
  return all_tensors();
}

std::vector<at::Tensor> MessageState::all_tensors() {
  std::vector<at::Tensor> all;
  for (const Message& message : messages_) all.push_back(message.tensor);
  return all;
}

}  // namespace gradwire::internal
