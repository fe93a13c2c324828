// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/testing/fault_injecting_group.h"

#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/device_engine_internal.h"

namespace gradwire::testing {

struct FaultInjectingGroup::Faults {
  std::mutex mutex;
  std::map<std::string, std::size_t> calls;
  std::size_t total = 0;
  std::size_t lost_after = std::numeric_limits<std::size_t>::max();
  std::chrono::microseconds latency{0};
  std::function<void(const std::string&, std::size_t)> fault;
  std::vector<std::weak_ptr<ProcessGroup>> wrapped;  // all of them, to abort when the rank is lost
};

FaultInjectingGroup::FaultInjectingGroup(std::shared_ptr<ProcessGroup> wrapped)
    : FaultInjectingGroup(std::move(wrapped), std::make_shared<Faults>()) {}

namespace {

const std::shared_ptr<ProcessGroup>& required(const std::shared_ptr<ProcessGroup>& group) {
  if (group == nullptr) throw InvalidArgument("FaultInjectingGroup: there is no group to wrap");
  return group;
}

}  // namespace

FaultInjectingGroup::FaultInjectingGroup(std::shared_ptr<ProcessGroup> wrapped, std::shared_ptr<Faults> faults)
    : CallGroup(required(wrapped)->rank(), required(wrapped)->size()),
      wrapped_(std::move(wrapped)),
      faults_(std::move(faults)) {
  set_timeout(wrapped_->timeout());
  set_group_name(wrapped_->group_name());
  set_group_desc(wrapped_->group_desc());
  const std::lock_guard lock(faults_->mutex);
  faults_->wrapped.push_back(wrapped_);
}

std::map<std::string, std::size_t> FaultInjectingGroup::calls() const {
  const std::lock_guard lock(faults_->mutex);
  return faults_->calls;
}

std::size_t FaultInjectingGroup::calls(const std::string& operation) const {
  const std::lock_guard lock(faults_->mutex);
  const auto found = faults_->calls.find(operation);
  return found == faults_->calls.end() ? 0 : found->second;
}

std::size_t FaultInjectingGroup::total_calls() const {
  const std::lock_guard lock(faults_->mutex);
  return faults_->total;
}

void FaultInjectingGroup::set_latency(std::chrono::microseconds latency) {
  const std::lock_guard lock(faults_->mutex);
  faults_->latency = latency;
}

void FaultInjectingGroup::set_fault(std::function<void(const std::string&, std::size_t)> fault) {
  const std::lock_guard lock(faults_->mutex);
  faults_->fault = std::move(fault);
}

void FaultInjectingGroup::lose_after(std::size_t calls) {
  const std::lock_guard lock(faults_->mutex);
  faults_->lost_after = calls;
}

void FaultInjectingGroup::enter(const char* operation) {
  std::unique_lock lock(faults_->mutex);
  const std::size_t number = faults_->total;
  if (number >= faults_->lost_after) {
    const std::string reason =
        concat("rank ", get_rank(), " was lost on purpose, before its ", operation, ", after ", number, " calls");
    const auto all = faults_->wrapped;
    lock.unlock();
    for (const auto& weak : all) {
      if (const auto group = weak.lock()) group->abort(reason);
    }
    throw AbortedError(concat(operation, ": ", reason));
  }
  ++faults_->total;
  ++faults_->calls[operation];
  const std::chrono::microseconds latency = faults_->latency;
  const auto fault = faults_->fault;
  lock.unlock();
  if (latency.count() > 0) std::this_thread::sleep_for(latency);
  if (fault) fault(operation, number);
}

std::shared_ptr<ProcessGroup> FaultInjectingGroup::wrap(std::shared_ptr<ProcessGroup> group) const {
  if (group == nullptr) return nullptr;
  return std::shared_ptr<ProcessGroup>(new FaultInjectingGroup(std::move(group), faults_));
}

bool FaultInjectingGroup::supports(c10::DeviceType device) const { return wrapped_->supports(device); }

bool FaultInjectingGroup::multiplies_as_it_sums() const { return wrapped_->multiplies_as_it_sums(); }
bool FaultInjectingGroup::stages_devices() const { return gradwire::stages_devices(*wrapped_); }
void FaultInjectingGroup::require_well() { gradwire::internal::require_well(*wrapped_); }
void FaultInjectingGroup::abort(const std::string& reason) { wrapped_->abort(reason); }
void FaultInjectingGroup::shutdown() { wrapped_->shutdown(); }
std::string FaultInjectingGroup::get_backend_name() const { return concat("fault_injecting(", wrapped_->name(), ")"); }

std::shared_ptr<Work> FaultInjectingGroup::do_call(GroupCall& call) {
  enter(name_of(call));
  return call_on(*wrapped_, call, timeout());
}

void FaultInjectingGroup::do_monitored_barrier(Milliseconds timeout, bool wait_all) {
  enter("monitored_barrier");
  wrapped_->monitored_barrier(timeout, wait_all);
}

std::shared_ptr<ProcessGroup> FaultInjectingGroup::do_dup() {
  enter("dup");
  return wrap(wrapped_->dup());
}

std::shared_ptr<ProcessGroup> FaultInjectingGroup::do_split(int color, int key,
                                                            const std::optional<std::string>& desc) {
  enter("split");
  return wrap(wrapped_->split(color, key, desc));
}

at::Tensor FaultInjectingGroup::do_allocate(std::int64_t numel, at::ScalarType dtype) {
  enter("allocate");
  return wrapped_->allocate(numel, dtype);
}

}  // namespace gradwire::testing
