// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The tape answers the calls of a step.
#include "gradwire/elastic/tape_internal.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "gradwire/base/deadline.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"

namespace gradwire::internal {
namespace {

std::size_t bytes_of(const TapeEntry& entry) { return entry.bytes.defined() ? entry.bytes.nbytes() : 0; }

void copy_to(const Tensors& tensors, const at::Tensor& bytes) {
  const c10::NoGradGuard no_grad;
  std::int64_t begin = 0;
  for (at::Tensor tensor : tensors) {
    const auto size = static_cast<std::int64_t>(tensor.nbytes());
    if (size == 0) continue;
    at::Tensor part = bytes.narrow(0, begin, size);
    begin += size;
    // A view as another dtype needs memory that is aligned for it.
    if (reinterpret_cast<std::uintptr_t>(part.const_data_ptr()) % 16 != 0) part = part.clone();
    tensor.copy_(part.view(tensor.scalar_type()).view(tensor.sizes()));
  }
}

}  // namespace

void TapePlayer::add(TapeEntry entry) {
  const MutexLock lock(mutex_);
  switch (entry.kind) {
    case TapeEntry::Kind::step:
      newest_step_ = entry.step;
      break;
    case TapeEntry::Kind::call:
      waiting_ += bytes_of(entry);
      calls_[entry.group].push_back(std::move(entry));
      break;
    case TapeEntry::Kind::end:
      end_ = entry.step;
      break;
    case TapeEntry::Kind::gave_up:
      error_ =
          std::make_exception_ptr(AbortedError(entry.bytes.defined() ? text_of_tensor(entry.bytes) : std::string()));
      break;
  }
  changed_.notify_all();
}

bool TapePlayer::wait_for_room(std::size_t limit) {
  MutexLock lock(mutex_);
  while (!closed_ && waiting_ > limit && starved_ == 0) changed_.wait(lock);
  return !closed_;
}

void TapePlayer::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void TapePlayer::fail(std::exception_ptr error) {
  const MutexLock lock(mutex_);
  error_ = std::move(error);
  changed_.notify_all();
}

bool TapePlayer::wait_for_step(std::int64_t step, const std::function<bool()>& gives_up) {
  MutexLock lock(mutex_);
  step_ = step;
  for (;;) {
    require_no_call_before(step);
    if (newest_step_ >= step) return true;
    if (end_) return false;
    if (error_) std::rethrow_exception(error_);
    changed_.wait_for(lock, kInterruptLook);
    lock.unlock();
    if (gives_up()) return false;
    throw_if_interrupted("following an elastic job");
    lock.lock();
  }
}

// Not only once the next step is there: calls that nobody makes may fill the room.
void TapePlayer::require_no_call_before(std::int64_t step) const {
  for (const auto& [group, calls] : calls_) {
    if (calls.empty() || calls.front().step >= step) continue;
    throw MismatchError(concat("a member that follows an elastic job made fewer calls on group ", group, " in step ",
                               calls.front().step, " than the member that it follows"));
  }
}

TapeEntry TapePlayer::take(int group, const char* name) {
  MutexLock lock(mutex_);
  auto& calls = calls_[group];
  ++starved_;
  changed_.notify_all();
  while (calls.empty() && newest_step_ == step_ && !end_ && !error_) changed_.wait(lock);
  --starved_;
  if (calls.empty() && error_) std::rethrow_exception(error_);
  if (calls.empty() || calls.front().step != step_) {
    throw MismatchError(concat("a member that follows an elastic job called ", name, "() on group ", group, " in step ",
                               step_, ", and the member that it follows made no such call"));
  }
  TapeEntry entry = std::move(calls.front());
  calls.pop_front();
  waiting_ -= bytes_of(entry);
  changed_.notify_all();
  return entry;
}

std::shared_ptr<Work> TapePlayer::call(int group, GroupCall& call, const std::function<std::shared_ptr<Work>()>&) {
  const TapeEntry entry = take(group, name_of(call));
  const Tensors written = written_by(call);
  if (entry.signature != signature_of(call, written)) {
    throw MismatchError(concat("a member that follows an elastic job called ", name_of(call), "() on group ", group,
                               " in step ", entry.step, " with ", total_bytes(written),
                               " bytes, and the member that it follows made another call there (",
                               entry.bytes.defined() ? entry.bytes.numel() : 0, " bytes)"));
  }
  if (entry.bytes.defined()) copy_to(written, entry.bytes);
  return completed_work(written);
}

}  // namespace gradwire::internal
