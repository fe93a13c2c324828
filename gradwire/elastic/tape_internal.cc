// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/tape_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "gradwire/base/deadline.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"

namespace gradwire::internal {
namespace {

// How often a rank that waits for the tape looks whether it should go on waiting.
constexpr Milliseconds kTapeLook{50};
// The entries of so many steps may wait in any case.
constexpr std::size_t kStepsThatMayWait = 5;

bool is_message(const GroupCall& call) {
  return std::holds_alternative<SendCall>(call) || std::holds_alternative<RecvCall>(call) ||
         std::holds_alternative<RecvAnySourceCall>(call);
}

std::int64_t signature_of(const GroupCall& call, const Tensors& written) {
  std::string text = name_of(call);
  for (const at::Tensor& tensor : written) text += concat(" ", c10::toString(tensor.scalar_type()), tensor.numel());
  return static_cast<std::int64_t>(stable_hash(text));
}

std::size_t total_bytes(const Tensors& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

// The values of all tensors, one after another.
at::Tensor copy_of(const Tensors& tensors, TapeMemory& memory) {
  const c10::NoGradGuard no_grad;
  at::Tensor bytes = memory.take(total_bytes(tensors));
  auto* to = bytes.mutable_data_ptr<std::uint8_t>();
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor dense = tensor.contiguous();
    if (dense.nbytes() > 0) std::memcpy(to, dense.const_data_ptr(), dense.nbytes());
    to += dense.nbytes();
  }
  return bytes;
}

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

TapeEntry TapeReader::next() {
  MutexLock lock(mutex_);
  silent_ = Deadline::never();
  is_waited_for_ = true;
  while (slots_.empty() || !slots_.front()->filled) changed_.wait(lock);
  is_waited_for_ = false;
  // The last entry was taken when the readers held less than `held_` of those before it.
  if (read_ - last_read_ >= held_) patience_ = silence_;
  silent_ = Deadline::after(patience_);
  const std::shared_ptr<Slot> slot = std::move(slots_.front());
  slots_.pop_front();
  waiting_ -= slot->size;
  last_read_ = slot->size;
  read_ += last_read_;
  return slot->entry;
}

void TapeReader::has_passed_piece() {
  const MutexLock lock(mutex_);
  silent_ = Deadline::after(patience_);
}

bool TapeReader::is_waited_for() const {
  const MutexLock lock(mutex_);
  return is_waited_for_;
}

std::int64_t TapeReader::newest_step() const {
  const MutexLock lock(mutex_);
  return newest_step_;
}

bool TapeReader::has_ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

std::shared_ptr<TapeReader::Slot> TapeReader::mark(TapeEntry::Kind kind, std::int64_t step) {
  auto slot = std::make_shared<Slot>();
  slot->entry.kind = kind;
  slot->entry.step = step;
  slot->filled = true;
  return slot;
}

bool TapeReader::gave_up() const {
  const MutexLock lock(mutex_);
  return gave_up_;
}

void TapeReader::finish(const std::shared_ptr<Slot>& slot) {
  ended_ = true;
  slots_.push_back(slot);
  changed_.notify_all();
}

void TapeReader::drop(const std::string& reason) {
  gave_up_ = true;
  slots_.clear();
  waiting_ = 0;
  const auto slot = mark(TapeEntry::Kind::gave_up, 0);
  slot->entry.bytes = tensor_of_text(reason);
  finish(slot);
}

void TapeReader::end(std::int64_t step) {
  const MutexLock lock(mutex_);
  if (ended_) return;
  if (std::all_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot->filled; })) {
    finish(mark(TapeEntry::Kind::end, step));
  } else {
    drop(concat("the members stopped before step ", step, " while a call of an earlier step was under way"));
  }
}

void TapeReader::give_up(const std::string& reason) {
  const MutexLock lock(mutex_);
  if (!ended_) drop(reason);
}

std::string TapeReader::reason_to_give_up(const Slot& slot) const {
  if (silent_.expired())
    return concat("the newcomer has taken nothing for ", patience_.count() / 1000, " s while the members trained");
  if (waiting_ + slot.size <= limit_ + kStepsThatMayWait * std::max(largest_step_, step_bytes_)) return "";
  return concat("the newcomer is too slow, or the link to it: ", waiting_ + slot.size, " bytes wait for it");
}

void TapeReader::add(const std::shared_ptr<Slot>& slot) {
  const MutexLock lock(mutex_);
  if (ended_) return;
  if (slot->entry.kind == TapeEntry::Kind::step) {
    newest_step_ = slot->entry.step;
    largest_step_ = std::max(largest_step_, std::exchange(step_bytes_, 0));
  }
  step_bytes_ += slot->size;
  if (const std::string reason = reason_to_give_up(*slot); !reason.empty()) return drop(reason);
  waiting_ += slot->size;
  slots_.push_back(slot);
  changed_.notify_all();
}

void TapeReader::fill(Slot& slot, at::Tensor bytes) {
  const MutexLock lock(mutex_);
  slot.entry.bytes = std::move(bytes);
  slot.filled = true;
  changed_.notify_all();
}

// A call whose results are copied as soon as somebody learns that it has ended, and before that somebody can change
// them.
class RecordedCall final {
 public:
  RecordedCall(Tensors written, TapeRecorder::Slots slots, std::shared_ptr<TapeMemory> memory)
      : memory_(std::move(memory)), written_(std::move(written)), slots_(std::move(slots)) {}
  // Nobody waited for the call, or the call failed.
  ~RecordedCall() {
    const MutexLock lock(mutex_);
    if (copied_) return;
    for (const auto& [reader, slot] : slots_) reader->give_up("a call failed, or the step did not wait for it");
  }
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;

  void has_ended() {
    const MutexLock lock(mutex_);
    if (copied_) return;
    const at::Tensor bytes = copy_of(written_, *memory_);  // may find no memory: then the readers give up
    for (const auto& [reader, slot] : slots_) reader->fill(*slot, bytes);
    copied_ = true;
    written_.clear();
  }

 private:
  Mutex mutex_;
  const std::shared_ptr<TapeMemory> memory_;
  bool copied_ GRADWIRE_GUARDED_BY(mutex_) = false;
  Tensors written_ GRADWIRE_GUARDED_BY(mutex_);
  const TapeRecorder::Slots slots_;
};

namespace {

class RecordedWork final : public Work {
 public:
  RecordedWork(std::shared_ptr<Work> work, std::shared_ptr<RecordedCall> call)
      : work_(std::move(work)), call_(std::move(call)) {}

  bool wait(Milliseconds timeout) override {
    const bool done = work_->wait(timeout);
    call_->has_ended();
    return done;
  }
  Future future() override {
    const MutexLock lock(mutex_);
    if (!future_) {
      const Future inner = work_->future();
      future_ = inner->then(
          [call = call_](c10::ivalue::Future& ended) {
            c10::IValue value = ended.value();  // throws the error of the call
            call->has_ended();
            return value;
          },
          inner->elementType());
    }
    return future_;
  }
  bool is_completed() override { return work_->is_completed() && (!work_->is_success() || copied()); }
  bool is_success() override { return work_->is_success() && copied(); }
  std::exception_ptr exception() override { return work_->exception(); }
  Tensors result() override {
    Tensors result = work_->result();
    call_->has_ended();
    return result;
  }
  void block_current_stream() override { wait(kNoTimeout); }

 private:
  bool copied() {
    call_->has_ended();
    return true;
  }

  const std::shared_ptr<Work> work_;
  const std::shared_ptr<RecordedCall> call_;
  Mutex mutex_;
  Future future_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace

void TapeRecorder::add(std::shared_ptr<TapeReader> reader) {
  const MutexLock lock(mutex_);
  readers_.push_back(std::move(reader));
}

void TapeRecorder::begin_step(std::int64_t step) {
  memory_->begin_step();
  const MutexLock lock(mutex_);
  in_step_ = true;
  step_ = step;
  std::erase_if(readers_, [](const auto& reader) { return reader->has_ended(); });
  for (const auto& reader : readers_) reader->add(TapeReader::mark(TapeEntry::Kind::step, step));
}

void TapeRecorder::end_step() {
  const MutexLock lock(mutex_);
  in_step_ = false;
}

std::shared_ptr<Work> TapeRecorder::call(int group, GroupCall& call,
                                         const std::function<std::shared_ptr<Work>()>& make) {
  MutexLock lock(mutex_);
  if (!in_step_ || readers_.empty()) {
    if (in_step_ && !is_message(call)) memory_->expect(total_bytes(written_by(call)));
    lock.unlock();
    return make();
  }
  if (is_message(call)) {
    for (const auto& reader : readers_) {
      reader->give_up(concat("step ", step_, " calls ", name_of(call),
                             "(): messages between two ranks are not on the tape of a step"));
    }
    lock.unlock();
    return make();
  }
  const Tensors written = written_by(call);
  const TapeEntry entry{.step = step_, .group = group, .signature = signature_of(call, written)};
  const std::size_t size = total_bytes(written);
  Slots slots;
  for (const auto& reader : readers_) {
    const auto slot = std::make_shared<TapeReader::Slot>();
    slot->entry = entry;
    slot->size = size;
    reader->add(slot);
    slots.emplace_back(reader, slot);
  }
  lock.unlock();
  const auto recorded = std::make_shared<RecordedCall>(written, std::move(slots), memory_);
  const auto work = std::make_shared<RecordedWork>(make(), recorded);
  // The caller need not ask whether the call has ended.
  if (const CollectiveOptions* const options = options_of(call); options != nullptr && !options->async)
    work->is_completed();
  return work;
}

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
    changed_.wait_for(lock, kTapeLook);
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
