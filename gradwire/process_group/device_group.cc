// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/device_group_internal.h"
#include "gradwire/process_group/shut_down_internal.h"
#include "gradwire/process_group/validate_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {
namespace {

std::shared_ptr<ProcessGroup> make_on(const DeviceGroup::Maker& maker, const std::shared_ptr<Store>& store,
                                      const ProcessGroup& cpu) {
  return maker(std::make_shared<PrefixStore>("device", store), cpu.rank(), cpu.size(), cpu.timeout());
}

}  // namespace

DeviceGroup::DeviceGroup(std::shared_ptr<ProcessGroup> cpu, c10::DeviceType device, std::shared_ptr<Store> store,
                         Maker maker)
    : CallGroup(cpu->rank(), cpu->size()),
      cpu_(std::move(cpu)),
      device_(device),
      store_(std::move(store)),
      maker_(std::move(maker)),
      on_device_(make_on(maker_, store_, *cpu_)),
      is_duplicate_(false) {
  set_timeout(cpu_->timeout());
}

DeviceGroup::DeviceGroup(const DeviceGroup& origin, std::shared_ptr<ProcessGroup> cpu, std::shared_ptr<Store> store)
    : CallGroup(cpu->rank(), cpu->size()),
      cpu_(std::move(cpu)),
      device_(origin.device_),
      store_(std::move(store)),
      maker_(origin.maker_),
      on_device_(origin.on_device_),
      is_duplicate_(true) {}

bool DeviceGroup::supports(c10::DeviceType device) const { return device == device_ || cpu_->supports(device); }

bool DeviceGroup::multiplies_as_it_sums() const {
  return cpu_->multiplies_as_it_sums() && on_device_->multiplies_as_it_sums();
}

ProcessGroup& DeviceGroup::group_for(const GroupCall& call) const {
  std::optional<at::Device> place;
  for_each_tensor(call, [&](const at::Tensor& tensor) {
    if (!place) place = tensor.device();
    if (tensor.device().type() == place->type()) return;
    throw InvalidArgument(concat(name_group(*this), ": ", name_of(call), " was given tensors on ", *place, " and on ",
                                 tensor.device(), "; all tensors of a call must be in one place"));
  });
  ProcessGroup& group = place && place->type() == device_ ? *on_device_ : *cpu_;
  if (place && !group.supports(place->type())) {
    throw InvalidArgument(concat(name_group(*this), ": ", name_of(call), ": a tensor is on ", *place,
                                 ", which this group does not serve"));
  }
  return group;
}

std::shared_ptr<Work> DeviceGroup::do_call(GroupCall& call) { return call_on(group_for(call), call, timeout()); }

void DeviceGroup::do_monitored_barrier(Milliseconds timeout, bool wait_all) {
  cpu_->monitored_barrier(timeout, wait_all);
}

std::uint64_t DeviceGroup::next() {
  MutexLock lock(mutex_);
  return made_++;
}

std::shared_ptr<Store> DeviceGroup::part(const std::string& place) const {
  return std::make_shared<PrefixStore>(place, store_);
}

std::shared_ptr<ProcessGroup> DeviceGroup::named(std::shared_ptr<DeviceGroup> made, const std::string& place) const {
  made->set_timeout(timeout());
  made->set_group_name(concat(group_name(), "/", place));
  made->set_group_desc(group_desc());
  return made;
}

std::shared_ptr<ProcessGroup> DeviceGroup::do_dup() {
  const std::uint64_t number = next();
  auto cpu = cpu_->dup();
  if (cpu == nullptr) return nullptr;
  const std::string place = concat("dup", number);
  auto made = named(std::make_shared<DeviceGroup>(*this, std::move(cpu), part(place)), place);
  duplicates_.add(made);
  return made;
}

std::shared_ptr<ProcessGroup> DeviceGroup::do_split(int color, int key, const std::optional<std::string>& desc) {
  const std::uint64_t number = next();
  auto cpu = cpu_->split(color, key, desc);
  if (cpu == nullptr) return nullptr;
  const std::string place = concat("split", number, "/", color);
  auto made = named(std::make_shared<DeviceGroup>(std::move(cpu), device_, part(place), maker_), place);
  if (desc) made->set_group_desc(*desc);
  return made;
}

// Memory of the CPU; a bucket on a device is the device's own.
at::Tensor DeviceGroup::do_allocate(std::int64_t numel, at::ScalarType dtype) { return cpu_->allocate(numel, dtype); }

void DeviceGroup::abort(const std::string& reason) {
  // The CPU's first: its other ranks learn of it at once.
  cpu_->abort(reason);
  on_device_->abort(reason);
  duplicates_.abort_all(*this, reason);
}

void DeviceGroup::require_well() { internal::require_well(*on_device_); }

void DeviceGroup::shutdown() {
  const std::shared_ptr<ProcessGroup> parts[] = {is_duplicate_ ? nullptr : on_device_, cpu_};
  const std::exception_ptr error = shut_down_all(parts);
  duplicates_.release(*this);
  if (error != nullptr) std::rethrow_exception(error);
}

bool DeviceGroup::is_open() const { return gradwire::is_open(*cpu_); }

}  // namespace gradwire::internal
