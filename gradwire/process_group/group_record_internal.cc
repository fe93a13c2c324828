// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/group_record_internal.h"

#include <map>

#include "gradwire/base/strings.h"
#include "gradwire/observe/flight_table.h"
#include "gradwire/process_group/changing_ranks.h"
#include "gradwire/process_group/dtype_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::internal {
namespace {

// Groups that were made from no other group, by name: "default", and "default#2" for the next one of that name.
// Programs make such groups in one order on all ranks.
std::string path_of_root(const std::string& name) {
  // Never destroyed: groups in static variables may begin late.
  static auto* const mutex = std::make_unique<Mutex>().release();
  static auto* const uses = std::make_unique<std::map<std::string, int>>().release();
  MutexLock lock(*mutex);
  const std::string stem = name.empty() ? "group" : name;
  const int use = ++(*uses)[stem];
  return use == 1 ? stem : concat(stem, "#", use);
}

void add(observe::CallArguments& arguments, const at::Tensor& tensor) {
  arguments.count += static_cast<std::uint64_t>(tensor.numel());
  arguments.bytes += static_cast<std::uint64_t>(tensor.nbytes());
}

}  // namespace

void GroupRecord::open(const ProcessGroup& group) noexcept {
  try {
    // Before the lock: these may be methods of a user's class.
    const std::string name = group.group_name();
    const bool changes_ranks = dynamic_cast<const ChangingRanks*>(&group) != nullptr;
    const std::string backend = changes_ranks ? std::string(observe::kChangingRanks) : group.name();
    const int rank = group.rank();
    const int size = group.size();
    MutexLock lock(mutex_);
    if (is_open_.load(std::memory_order_relaxed)) return;
    if (path_.empty()) path_ = path_of_root(name);
    flight_.open(path_, backend, name, rank, size);
    is_open_.store(true, std::memory_order_release);
  } catch (const std::exception&) {
    // No memory for names, or a user's method that throws: this call is not recorded.
  }
}

observe::FlightCall GroupRecord::begin(const ProcessGroup& group, const observe::CallArguments& arguments) noexcept {
  if (!is_open_.load(std::memory_order_acquire)) [[unlikely]] {
    open(group);
    if (!is_open_.load(std::memory_order_acquire)) return {};
  }
  return flight_.begin(arguments);
}

void GroupRecord::name_after(const std::string& path) noexcept {
  MutexLock lock(mutex_);
  if (path_.empty()) path_ = path;
}

std::string GroupRecord::path(const ProcessGroup& group) {
  if (!is_open_.load(std::memory_order_acquire)) open(group);
  MutexLock lock(mutex_);
  return path_;
}

std::string GroupRecord::next_duplicate(const ProcessGroup& group) {
  const std::string own = path(group);
  MutexLock lock(mutex_);
  return concat(own, ".dup", ++duplicates_);
}

std::string GroupRecord::next_part(const ProcessGroup& group, int color) {
  const std::string own = path(group);
  MutexLock lock(mutex_);
  return concat(own, ".split", ++parts_, ":", color);
}

observe::CallArguments arguments_of(observe::CallKind kind, const void* return_address) {
  observe::CallArguments arguments;
  arguments.kind = kind;
  arguments.return_address = return_address;
  return arguments;
}

observe::CallArguments arguments_of(observe::CallKind kind, const void* return_address, const at::Tensor& tensor) {
  observe::CallArguments arguments = arguments_of(kind, return_address);
  if (const auto dtype = to_dtype(tensor.scalar_type())) arguments.dtype = static_cast<std::uint8_t>(*dtype);
  add(arguments, tensor);
  return arguments;
}

observe::CallArguments arguments_of(observe::CallKind kind, const void* return_address, const Tensors& tensors) {
  observe::CallArguments arguments = arguments_of(kind, return_address);
  if (tensors.empty()) return arguments;
  if (const auto dtype = to_dtype(tensors.front().scalar_type())) arguments.dtype = static_cast<std::uint8_t>(*dtype);
  for (const at::Tensor& tensor : tensors) add(arguments, tensor);
  return arguments;
}

std::uint64_t packed(const CallTag& tag) noexcept {
  return std::uint64_t{tag.iteration} << 32 | std::uint64_t{tag.bucket} << 16 | std::uint64_t{tag.stage} << 8 |
         tag.hook;
}

void follow(observe::FlightCall flight, Work& work, bool by_future) noexcept {
  if (!flight) return;
  try {
    if (!by_future && !may_be_asked(work)) return flight.lost();
    if (may_be_asked(work) && work.is_completed()) return flight.ended(work.exception());
    work.future()->addCallback(
        [flight](c10::ivalue::Future& future) {
          flight.ended(future.hasError() ? future.exception_ptr() : std::exception_ptr());
        },
        /*uses_future=*/false);
  } catch (...) {
    flight.lost();
  }
}

}  // namespace gradwire::internal
