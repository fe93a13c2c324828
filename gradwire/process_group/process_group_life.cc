// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The public half of ProcessGroup: its names and its time limit, its duplicates and parts, and its memory.
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/step_recorder.h"
#include "gradwire/observe/told_ranks.h"
#include "gradwire/process_group/group_record_internal.h"
#include "gradwire/process_group/lane_scope.h"
#include "gradwire/process_group/live_groups_internal.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/process_group_names_internal.h"
#include "gradwire/process_group/validate_internal.h"

namespace gradwire {

using internal::arguments_of;
using internal::Validator;
using observe::CallKind;

ProcessGroup::ProcessGroup(int rank, int size) : rank_(rank), size_(size), names_(std::make_unique<Names>()) {
  if (size < 1) throw InvalidArgument(concat("a group of ", size, " ranks; it needs at least one"));
  if (rank < 0 || rank >= size) {
    throw InvalidArgument(concat("rank ", rank, " in a group of ", size, "; its ranks are 0 to ", size - 1));
  }
  observe::tell_ranks(rank, size);
  observe::record_from_environment(rank, size);
  internal::list_group(*this);
}

ProcessGroup::~ProcessGroup() { internal::unlist_group(*this); }

Milliseconds ProcessGroup::timeout() const { return names_->timeout.load(std::memory_order_relaxed); }

void ProcessGroup::set_timeout(Milliseconds timeout) {
  if (timeout.count() <= 0)
    Validator(*this, "set_timeout").fail(concat("the timeout is ", timeout.count(), " ms; give a positive one"));
  names_->timeout.store(timeout, std::memory_order_relaxed);
}

std::uint32_t ProcessGroup::next_barrier() {
  MutexLock lock(names_->mutex);
  return names_->barriers++;
}

std::uint64_t ProcessGroup::payload_bytes() const noexcept { return names_->payload.load(std::memory_order_relaxed); }

std::string ProcessGroup::get_backend_name() const { return "user"; }

std::string ProcessGroup::get_group_name() const {
  MutexLock lock(names_->mutex);
  return names_->name;
}

void ProcessGroup::do_set_group_name(const std::string& name) {
  MutexLock lock(names_->mutex);
  names_->name = name;
}

std::string ProcessGroup::get_group_desc() const {
  MutexLock lock(names_->mutex);
  return names_->desc;
}

void ProcessGroup::do_set_group_desc(const std::string& desc) {
  MutexLock lock(names_->mutex);
  names_->desc = desc;
}

bool ProcessGroup::supports(c10::DeviceType device) const { return device == c10::DeviceType::CPU; }

void ProcessGroup::abort(const std::string&) {}

void ProcessGroup::shutdown() {}

// Where a call on this group goes: to the lane's duplicate, or here.
ProcessGroup& ProcessGroup::here() {
  const LaneScope* lane = LaneScope::current();
  return lane == nullptr ? *this : lane->route(*this);
}

std::shared_ptr<ProcessGroup> ProcessGroup::dup() {
  ProcessGroup& group = here();
  const LaneScope::Pause within_the_group;
  internal::GroupRecord& record = group.names_->record;
  const auto flight = record.begin(group, arguments_of(CallKind::dup, __builtin_return_address(0)));
  std::shared_ptr<ProcessGroup> made = internal::recorded(flight, [&] { return group.do_dup(); });
  const std::string path = record.next_duplicate(group);
  if (made == nullptr) return nullptr;
  made->names_->record.name_after(path);
  made->set_group_name(path);
  return made;
}

std::shared_ptr<ProcessGroup> ProcessGroup::split(int color, int key, std::optional<std::string> desc) {
  ProcessGroup& group = here();
  const LaneScope::Pause within_the_group;
  internal::GroupRecord& record = group.names_->record;
  const auto flight = record.begin(group, arguments_of(CallKind::split, __builtin_return_address(0)));
  std::shared_ptr<ProcessGroup> made = internal::recorded(flight, [&] { return group.do_split(color, key, desc); });
  const std::string path = record.next_part(group, color);
  if (made == nullptr) return nullptr;
  made->names_->record.name_after(path);
  made->set_group_name(path);
  internal::open_record(*made);
  return made;
}

void internal::open_record(ProcessGroup& group) noexcept { group.names_->record.open(group); }

at::Tensor ProcessGroup::allocate(std::int64_t numel, at::ScalarType dtype) {
  if (numel < 0) Validator(*this, "allocate").fail(concat("a number of elements of ", numel));
  const auto most =
      std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(at::elementSize(dtype)) / size();
  if (numel > most)
    Validator(*this, "allocate").fail(concat(numel, " elements of ", dtype, " a rank are more than any memory holds"));
  ProcessGroup& group = here();
  const LaneScope::Pause within_the_group;
  observe::CallArguments arguments = arguments_of(CallKind::allocate, __builtin_return_address(0));
  arguments.count = static_cast<std::uint64_t>(numel);
  const auto flight = group.names_->record.begin(group, arguments);
  return internal::recorded(flight, [&] { return group.do_allocate(numel, dtype); });
}

Tensors ProcessGroup::symmetric_memory(const at::Tensor& tensor) {
  const Validator validator(*this, "symmetric_memory");
  if (!tensor.defined()) validator.fail("an undefined tensor");
  if (!tensor.is_contiguous()) validator.fail("a tensor that is not contiguous");
  return here().do_symmetric_memory(tensor);
}

}  // namespace gradwire
