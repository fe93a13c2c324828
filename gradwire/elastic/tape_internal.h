// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A tape: what the calls on a group brought to one rank, step by step. Whoever has the state before a step, and the
// tape of the step, comes to the state after it alone: the tape answers the calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/mutex.h"
#include "gradwire/elastic/call_tap_internal.h"
#include "gradwire/elastic/tape_memory_internal.h"

namespace gradwire::internal {

struct TapeEntry {
  enum class Kind : std::int64_t {
    step,    // the entries from here on are those of `step`
    call,    // the results of a call
    end,     // there are no steps from `step` on
    gave_up  // the rest is missing; `bytes` says why, as text
  };
  Kind kind = Kind::call;
  std::int64_t step = 0;       // of calls: the step in which the call was made; of `end`: see there
  std::int64_t group = 0;      // CallTap::call()
  std::int64_t signature = 0;  // a hash of the call's name, and of the dtypes and sizes of the tensors that it writes
  at::Tensor bytes = {};       // of the tensors that the call wrote, one after another; undefined where it wrote none
};

// The end of a tape at which the entries come out. Thread-safe.
class TapeReader final {
 public:
  // Gives up when more bytes wait than `limit` and the entries of five steps have. So those who read the tape may do a
  // few steps first. Also gives up when they have read nothing for `at_first`, or for `silence` once they must have
  // used an entry, because they take none while they hold `held` bytes or more that they have not used.
  explicit TapeReader(std::size_t limit, Milliseconds at_first = std::chrono::seconds(60),
                      Milliseconds silence = std::chrono::seconds(60), std::size_t held = 0)
      : limit_(limit), silence_(silence), held_(held), patience_(at_first), silent_(Deadline::after(at_first)) {}

  // The next entry, in the order in which the calls began. Waits for it, and for the end of the call.
  TapeEntry next() GRADWIRE_EXCLUDES(mutex_);
  // A part of the last entry has reached the newcomer, which is not silent.
  void has_passed_piece() GRADWIRE_EXCLUDES(mutex_);
  // The last step that has begun.
  std::int64_t newest_step() const GRADWIRE_EXCLUDES(mutex_);
  // Whether a thread is in next(), and there is nothing to read.
  bool is_waited_for() const GRADWIRE_EXCLUDES(mutex_);
  // No more entries come: there are no steps from `step` on. Gives up instead when a call has not ended: nobody may
  // wait for it any more.
  void end(std::int64_t step) GRADWIRE_EXCLUDES(mutex_);
  // No more entries come, and those that wait are dropped.
  void give_up(const std::string& reason) GRADWIRE_EXCLUDES(mutex_);
  // end() or give_up() was called.
  bool has_ended() const GRADWIRE_EXCLUDES(mutex_);
  bool gave_up() const GRADWIRE_EXCLUDES(mutex_);

 private:
  friend class TapeRecorder;
  friend class RecordedCall;
  // An entry whose call may be under way.
  struct Slot {
    TapeEntry entry;
    std::size_t size = 0;  // of the bytes
    bool filled = false;
  };
  // That of an entry which is no call.
  static std::shared_ptr<Slot> mark(TapeEntry::Kind kind, std::int64_t step);
  void add(const std::shared_ptr<Slot>& slot) GRADWIRE_EXCLUDES(mutex_);
  void fill(Slot& slot, at::Tensor bytes) GRADWIRE_EXCLUDES(mutex_);
  void finish(const std::shared_ptr<Slot>& slot) GRADWIRE_REQUIRES(mutex_);
  void drop(const std::string& reason) GRADWIRE_REQUIRES(mutex_);
  std::string reason_to_give_up(const Slot& slot) const GRADWIRE_REQUIRES(mutex_);

  const std::size_t limit_;
  const Milliseconds silence_;
  const std::size_t held_;
  mutable Mutex mutex_;
  Milliseconds patience_ GRADWIRE_GUARDED_BY(mutex_);  // that of silent_
  ConditionVariable changed_;
  std::deque<std::shared_ptr<Slot>> slots_ GRADWIRE_GUARDED_BY(mutex_);
  std::size_t waiting_ GRADWIRE_GUARDED_BY(mutex_) = 0;       // bytes
  std::size_t read_ GRADWIRE_GUARDED_BY(mutex_) = 0;          // bytes
  std::size_t last_read_ GRADWIRE_GUARDED_BY(mutex_) = 0;     // bytes of the last entry that was read
  std::size_t step_bytes_ GRADWIRE_GUARDED_BY(mutex_) = 0;    // of the newest step
  std::size_t largest_step_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // bytes
  bool is_waited_for_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::int64_t newest_step_ GRADWIRE_GUARDED_BY(mutex_) = -1;
  Deadline silent_ GRADWIRE_GUARDED_BY(mutex_);  // never: next() waits
  bool ended_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool gave_up_ GRADWIRE_GUARDED_BY(mutex_) = false;
};

// Makes the calls, and records the steps for all readers. A step that sends messages to single ranks makes the readers
// give up. Thread-safe; begin_step(), end_step() and add() are for one thread.
class TapeRecorder final : public CallTap {
 public:
  // `memory`: for the entries. Without a reader, it is told what a step would take.
  explicit TapeRecorder(std::shared_ptr<TapeMemory> memory = std::make_shared<TapeMemory>())
      : memory_(std::move(memory)) {}

  // Records from the next step on.
  void add(std::shared_ptr<TapeReader> reader) GRADWIRE_EXCLUDES(mutex_);
  // Calls count as those of `step` until end_step(); other calls are not recorded.
  void begin_step(std::int64_t step) GRADWIRE_EXCLUDES(mutex_);
  void end_step() GRADWIRE_EXCLUDES(mutex_);

  std::shared_ptr<Work> call(int group, GroupCall& call, const std::function<std::shared_ptr<Work>()>& make) override;

 private:
  friend class RecordedCall;
  using Slots = std::vector<std::pair<std::shared_ptr<TapeReader>, std::shared_ptr<TapeReader::Slot>>>;

  const std::shared_ptr<TapeMemory> memory_;
  Mutex mutex_;
  std::vector<std::shared_ptr<TapeReader>> readers_ GRADWIRE_GUARDED_BY(mutex_);
  bool in_step_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::int64_t step_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

// Answers the calls of the steps with the entries of a tape. One thread adds entries; any threads make calls.
class TapePlayer final : public CallTap {
 public:
  void add(TapeEntry entry) GRADWIRE_EXCLUDES(mutex_);
  // No more entries come: calls that need them throw `error`.
  void fail(std::exception_ptr error) GRADWIRE_EXCLUDES(mutex_);
  // Waits while entries of more than `limit` bytes have not been used, unless a call waits for an entry. Returns false
  // after close().
  bool wait_for_room(std::size_t limit) GRADWIRE_EXCLUDES(mutex_);
  void close() GRADWIRE_EXCLUDES(mutex_);

  // Calls are those of `step` from here on. Waits until the tape has the beginning of the step. Returns false when the
  // tape ends before that, and within 50 ms when `gives_up` returns true. Throws the error of fail(); MismatchError
  // when the tape has calls of earlier steps that were not made; AbortedError with the reason when the recorder gave
  // up, and when the wait is interrupted.
  bool wait_for_step(std::int64_t step, const std::function<bool()>& gives_up) GRADWIRE_EXCLUDES(mutex_);

  // Waits for the result. Throws MismatchError when the tape has another call in this place, or none.
  std::shared_ptr<Work> call(int group, GroupCall& call, const std::function<std::shared_ptr<Work>()>& make) override;

 private:
  TapeEntry take(int group, const char* name) GRADWIRE_EXCLUDES(mutex_);
  void require_no_call_before(std::int64_t step) const GRADWIRE_REQUIRES(mutex_);

  Mutex mutex_;
  ConditionVariable changed_;
  std::int64_t step_ GRADWIRE_GUARDED_BY(mutex_) = -1;
  std::map<std::int64_t, std::deque<TapeEntry>> calls_ GRADWIRE_GUARDED_BY(mutex_);  // by group
  std::size_t waiting_ GRADWIRE_GUARDED_BY(mutex_) = 0;                              // bytes
  int starved_ GRADWIRE_GUARDED_BY(mutex_) = 0;                                      // calls that wait for an entry
  std::int64_t newest_step_ GRADWIRE_GUARDED_BY(mutex_) = -1;
  std::optional<std::int64_t> end_ GRADWIRE_GUARDED_BY(mutex_);  // there are no steps from this one on
  bool closed_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ GRADWIRE_GUARDED_BY(mutex_);
};

// Returns a hash of what ranks have to agree about in a call: its name, and the dtypes and sizes of what it writes.
std::int64_t signature_of(const GroupCall& call, const Tensors& written);

// Returns the bytes of all tensors together.
std::size_t total_bytes(const Tensors& tensors);

}  // namespace gradwire::internal
