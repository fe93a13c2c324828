// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/tape_internal.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/deadline.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"

namespace gradwire::internal {
namespace {

// The entries of so many steps may wait in any case.
constexpr std::size_t kStepsThatMayWait = 5;

}  // namespace

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

}  // namespace gradwire::internal
