// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a step calls goes onto the tape.
#include "gradwire/elastic/tape_internal.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

bool is_message(const GroupCall& call) {
  return std::holds_alternative<SendCall>(call) || std::holds_alternative<RecvCall>(call) ||
         std::holds_alternative<RecvAnySourceCall>(call);
}

// The values of all tensors, one after another. What is on a device comes in the order of the present stream.
at::Tensor copy_of(const Tensors& tensors, TapeMemory& memory) {
  const c10::NoGradGuard no_grad;
  at::Tensor bytes = memory.take(total_bytes(tensors));
  auto* to = bytes.mutable_data_ptr<std::uint8_t>();
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor dense = tensor.cpu().contiguous();
    if (dense.nbytes() > 0) std::memcpy(to, dense.const_data_ptr(), dense.nbytes());
    to += dense.nbytes();
  }
  return bytes;
}

}  // namespace

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
    try {
      const at::Tensor bytes = copy_of(written_, *memory_);
      for (const auto& [reader, slot] : slots_) reader->fill(*slot, bytes);
    } catch (const std::exception&) {
      // The call itself is well: a member does not end for want of memory for a newcomer.
      give_up(std::current_exception());
    }
    copied_ = true;
    written_.clear();
  }

 private:
  void give_up(const std::exception_ptr& error) noexcept {
    try {
      for (const auto& [reader, slot] : slots_)
        reader->give_up(concat("a member has no room for the tape: ", describe(error)));
    } catch (const std::exception&) {
      // No memory for the words either: whoever reads the tape gives up by itself.
    }
  }

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

}  // namespace gradwire::internal
