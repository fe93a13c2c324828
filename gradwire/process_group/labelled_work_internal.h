// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Works that know which call on a group they stand for, so that a wait that ends early names the call.
#pragma once

#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/process_group/work.h"

namespace gradwire::internal {

// The name of a call on a group. A default object names no call. The words are made when an error needs them.
class CallLabel {
 public:
  CallLabel() noexcept = default;
  // `operation` is a literal, the name of the method. `called`: when the call was made.
  CallLabel(const char* operation, int rank, int size, observe::FlightCall flight,
            Deadline::Clock::time_point called) noexcept
      : operation_(operation), rank_(rank), size_(size), flight_(flight), called_(called) {}

  explicit operator bool() const noexcept { return operation_ != nullptr; }
  // "all_reduce (call 17 of group default) on rank 0 of 2". Without the number and the group where the flight recorder
  // is off, and after 256 further calls of the group. "a call" for a default object.
  std::string words() const;
  observe::FlightCall flight() const noexcept { return flight_; }
  Deadline::Clock::time_point called() const noexcept { return called_; }
  const char* operation() const noexcept { return operation_; }
  // The same call, as if it were made now: for a part of the call whose time limit begins now.
  CallLabel from_now() const noexcept {
    CallLabel label = *this;
    label.called_ = Deadline::Clock::now();
    return label;
  }

 private:
  const char* operation_ = nullptr;
  int rank_ = 0;
  int size_ = 0;
  observe::FlightCall flight_;
  Deadline::Clock::time_point called_;
};

// When the call was made that this thread makes; now, where this thread makes none.
Deadline::Clock::time_point when_called() noexcept;

// While it exists, this thread makes the call that `label` names: each LabelledWork that it makes takes the label.
// Objects nest.
class LabelledCall {
 public:
  explicit LabelledCall(const CallLabel& label) noexcept;
  ~LabelledCall();
  LabelledCall(const LabelledCall&) = delete;
  LabelledCall& operator=(const LabelledCall&) = delete;

  // The label of the innermost object of this thread; null where there is none.
  static const CallLabel* current() noexcept;

 private:
  const CallLabel label_;
  const LabelledCall* const outer_;
};

// A Work that takes the label of the call that this thread makes; where it makes none, `otherwise`.
class LabelledWork : public Work {
 public:
  explicit LabelledWork(const CallLabel& otherwise = {}) noexcept;
  bool wait(Milliseconds timeout) override;
  const CallLabel& label() const noexcept { return label_; }
  // Where this thread runs a call of the group, as a then-callback does, and the call of this Work is queued behind it:
  // runs the calls up to it. Who waits for it here would else wait for itself.
  virtual void run_if_queued_here() {}

 protected:
  // Throws the TimeoutError of a wait that has waited `timeout`.
  [[noreturn]] void throw_late(Milliseconds timeout) const;

 private:
  const CallLabel label_;
};

// As LabelledWork::run_if_queued_here(), for any Work.
void run_if_queued_here(Work& work);

// The label of `work`; a default label where its class has none.
CallLabel label_of(const Work& work) noexcept;

}  // namespace gradwire::internal
