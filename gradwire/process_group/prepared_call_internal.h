// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a call of ProcessGroup whose arguments are checked goes to its virtual: on a lane to that of the lane's
// duplicate, with a record in the flight recorder.
#pragma once

#include <c10/core/GradMode.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>

#include "gradwire/base/call_name.h"
#include "gradwire/base/deadline.h"
#include "gradwire/process_group/given_outputs_internal.h"
#include "gradwire/process_group/group_record_internal.h"
#include "gradwire/process_group/labelled_work_internal.h"
#include "gradwire/process_group/lane_scope.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/process_group_names_internal.h"
#include "gradwire/process_group/validate_internal.h"
#include "gradwire/process_group/watched_call_internal.h"

namespace gradwire {
namespace internal {

using NoOutputs = Tensors;  // of a call that writes into nothing

// A call whose arguments are checked: what the flight recorder keeps of them, the tensors that the call writes into,
// and the call, which takes the group and, where it has options, the settled ones.
template <class Written, class Call>
struct PreparedCall {
  observe::CallArguments arguments;
  const Written& outputs;
  Call call;

  template <class... Settled>
  std::shared_ptr<Work> make(const char* operation, ProcessGroup& group, const Settled&... settled) const {
    return call_that_writes(operation, group, outputs, [&] { return call(group, settled...); });
  }
};
template <class Written, class Call>
PreparedCall(observe::CallArguments, const Written&, Call) -> PreparedCall<Written, Call>;

// The rank that the others send to or receive from, where there is one.
template <class Options>
std::int32_t root_of(const Options& options) {
  if constexpr (requires { options.root; }) return options.root;
  return -1;
}

// Makes `call` on `target`, and sees to it that its record ends when its Work ends.
template <class Call>
std::shared_ptr<Work> make_recorded(const char* operation, const ProcessGroup& target, GroupRecord& record,
                                    const observe::CallArguments& arguments, bool by_future, const Call& call) {
  const LaneScope::Pause within_the_group;
  const c10::NoGradGuard no_grad;  // a tensor that requires a gradient is written into as any other
  const observe::FlightCall flight = record.begin(target, arguments);
  const LabelledCall labelled({operation, target.rank(), target.size(), flight, arguments.called});
  const observe::CallInProgress in_progress(flight);
  const CallName name([](const void* made) { return static_cast<const observe::FlightCall*>(made)->name(); }, &flight);
  std::shared_ptr<Work> work;
  try {
    work = call();
  } catch (...) {
    flight.ended(std::current_exception());
    throw;
  }
  if (work != nullptr && !in_progress.taken()) follow(flight, *work, by_future);
  return work;
}

// What a lane promises: the Work that a hook gets has ended. Its error stays in it, and the lane knows of the error.
inline void settle(Work& work, LaneScope& lane) {
  try {
    work.wait();
  } catch (const std::exception&) {
    lane.note_error(std::current_exception());
  }
}

}  // namespace internal

template <class Options, class Call>
std::shared_ptr<Work> ProcessGroup::enter(const char* operation, const Options& options, std::uint64_t payload,
                                          const Call& prepared) {
  LaneScope* lane = LaneScope::current();
  Options settled = options;
  ProcessGroup& target = here();
  if (lane != nullptr) {
    settled.async = settled.async && lane->overlaps();
    settled.tag = lane->next_tag();
  }
  observe::CallArguments arguments = prepared.arguments;
  const internal::WatchedCall watched(operation, arguments.kind, target.rank(), arguments.bytes, payload);
  arguments.root = internal::root_of(options);
  arguments.tag = internal::packed(settled.tag);
  arguments.waits = !settled.async;
  arguments.called = Deadline::Clock::now();  // read once for the record and for the call's deadline
  std::shared_ptr<Work> work =
      internal::make_recorded(operation, target, target.names_->record, arguments, settled.async,
                              [&] { return prepared.make(operation, target, settled); });
  if (payload != 0) target.names_->payload.fetch_add(payload, std::memory_order_relaxed);
  internal::require_work(work, target, operation);
  if (lane != nullptr && !settled.async) internal::settle(*work, *lane);
  return work;
}

// Point to point calls have no options, and do not end at once on a lane: both sides may send first.
template <class Call>
std::shared_ptr<Work> ProcessGroup::enter(const char* operation, const Call& prepared) {
  ProcessGroup& target = here();
  observe::CallArguments arguments = prepared.arguments;
  arguments.waits = false;
  arguments.called = Deadline::Clock::now();
  const std::uint64_t sent = arguments.kind == observe::CallKind::send ? arguments.bytes : 0;
  const internal::WatchedCall watched(operation, arguments.kind, target.rank(), arguments.bytes, sent);
  std::shared_ptr<Work> work =
      internal::make_recorded(operation, target, target.names_->record, arguments, /*by_future=*/false,
                              [&] { return prepared.make(operation, target); });
  internal::require_work(work, target, operation);
  return work;
}

}  // namespace gradwire
