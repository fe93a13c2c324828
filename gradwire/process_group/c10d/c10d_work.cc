// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_work_internal.h"
#include "gradwire/process_group/completed_future_internal.h"

namespace gradwire::internal {
namespace {

bool is_message(c10d::OpType type) { return c10d::isP2POp(type) || type == c10d::OpType::RECVANYSOURCE; }

// Programs written for c10d's engines look for "Timed out" in what a late call says.
std::exception_ptr for_c10d(const std::exception_ptr& error) {
  if (!error) return error;
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError& late) {
    const std::string what = late.what();
    const char* const before = what.starts_with("rank") ? ": " : " in ";  // of a group within a group: who is late
    return std::make_exception_ptr(TimeoutError(concat("gradwire: Timed out", before, what), late.peers()));
  } catch (...) {
    return error;
  }
}

}  // namespace

WorkForC10d::WorkForC10d(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                         std::uint64_t sequence)
    : c10d::Work(rank, type, title, inputs), sequence_(sequence), asks_(is_message(type)) {}

void WorkForC10d::follow(std::shared_ptr<gradwire::Work> work) {
  work_ = std::move(work);
  if (asks_) return;
  try {
    if (work_->is_completed()) return end(work_->exception());
  } catch (const UnsupportedError&) {
    asks_ = true;
    return;
  }
  const Future before = future_or_null(*work_);
  if (!before) {
    asks_ = true;
    return;
  }
  future_ = c10::make_intrusive<c10::ivalue::Future>(before->elementType());
  auto self = c10::intrusive_ptr<WorkForC10d>::reclaim_copy(this);
  before->addCallback([self = std::move(self)](
                          c10::ivalue::Future& done) { self->end(done.hasError() ? done.exception_ptr() : nullptr); },
                      /*uses_future=*/false);
}

void WorkForC10d::end(const std::exception_ptr& ours) {
  std::call_once(ended_, [&] {
    const std::exception_ptr error = for_c10d(ours);
    std::function<void()> end_of_event;
    {
      const std::lock_guard lock(mutex_);
      end_of_event.swap(recordFunctionEndCallback_);
    }
    if (end_of_event) end_of_event();
    if (future_) {
      c10::IValue value;
      {
        // This may be the group's own thread, and the Work holds the group, which should not end on it.
        const std::lock_guard lock(mutex_);
        if (!error) {
          value = work_->future()->value();
          take_result();
        }
        work_.reset();
      }
      complete_future(
          future_, error, [&] { return std::move(value); }, "a call over c10d");
    }
    finish(error);
  });
}

void WorkForC10d::take_result() {
  try {
    result_ = work_->result();
  } catch (...) {
    no_result_ = std::current_exception();  // its future holds no tensors
  }
}

bool WorkForC10d::isCompleted() {
  if (asks_) {
    try {
      if (work_->is_completed()) end(work_->exception());
    } catch (const UnsupportedError&) {
      // It can only be waited for.
    }
  }
  return c10d::Work::isCompleted();
}

bool WorkForC10d::isSuccess() const { return asks_ ? work_->is_success() : c10d::Work::isSuccess(); }

std::exception_ptr WorkForC10d::exception() const { return asks_ ? work_->exception() : c10d::Work::exception(); }

std::shared_ptr<gradwire::Work> WorkForC10d::followed() const {
  const std::lock_guard lock(mutex_);
  return work_;
}

int WorkForC10d::sourceRank() const {
  const auto work = followed();
  if (work == nullptr) throw UnsupportedError("sourceRank(): only a receive has a source");
  return work->source_rank();
}

std::vector<at::Tensor> WorkForC10d::result() {
  if (const auto work = followed()) return work->result();
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  if (no_result_) std::rethrow_exception(no_result_);
  return result_;
}

bool WorkForC10d::wait(std::chrono::milliseconds timeout) {
  if (!asks_) {
    const Deadline deadline = timeout == kNoTimeout ? Deadline::never() : Deadline::after(timeout);
    const auto work = followed();
    // c10d's own wait would not say what it waits for.
    try {
      if (work) work->wait(timeout);
    } catch (...) {
      // An error of the call is thrown below. This one may be of the wait alone.
      if (!work->is_completed() || work->is_success()) std::rethrow_exception(for_c10d(std::current_exception()));
    }
    // For what comes after the call, up to finish().
    return c10d::Work::wait(timeout == kNoTimeout ? timeout : std::max(deadline.remaining(), Milliseconds(1)));
  }
  try {
    work_->wait(timeout);
  } catch (const TimeoutError&) {
    isCompleted();  // it may be this wait alone that has ended
    std::rethrow_exception(for_c10d(std::current_exception()));
  } catch (...) {
    end(std::current_exception());
    throw;
  }
  end(nullptr);
  return true;
}

void WorkForC10d::blockCurrentStream() {
  if (const auto work = followed()) work->block_current_stream();
}

Future WorkForC10d::getFuture() { return future_ ? future_ : work_->future(); }

}  // namespace gradwire::internal
