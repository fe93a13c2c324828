// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/device_group_internal.h"
#include "gradwire/process_group/validate_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {
namespace {

// As the caller gave them, with this group's time-out where he gave none.
template <class Options>
Options within(const ProcessGroup& group, Options options) {
  if (options.timeout.count() == 0) options.timeout = group.timeout();
  return options;
}

std::shared_ptr<ProcessGroup> make_on(const DeviceGroup::Maker& maker, const std::shared_ptr<Store>& store,
                                      const ProcessGroup& cpu) {
  return maker(std::make_shared<PrefixStore>("device", store), cpu.rank(), cpu.size(), cpu.timeout());
}

}  // namespace

DeviceGroup::DeviceGroup(std::shared_ptr<ProcessGroup> cpu, c10::DeviceType device, std::shared_ptr<Store> store,
                         Maker maker)
    : ProcessGroup(cpu->rank(), cpu->size()),
      cpu_(std::move(cpu)),
      device_(device),
      store_(std::move(store)),
      maker_(std::move(maker)),
      on_device_(make_on(maker_, store_, *cpu_)) {
  set_timeout(cpu_->timeout());
}

bool DeviceGroup::supports(c10::DeviceType device) const { return device == device_ || cpu_->supports(device); }

ProcessGroup& DeviceGroup::group_for(const char* operation, const at::Tensor& tensor) const {
  ProcessGroup& group = tensor.device().type() == device_ ? *on_device_ : *cpu_;
  // Messages take their time-out from the group.
  if (group.timeout() != timeout()) group.set_timeout(timeout());
  if (!group.supports(tensor.device().type())) {
    throw InvalidArgument(concat(name_group(*this), ": ", operation, ": a tensor is on ", tensor.device(),
                                 ", which this group does not serve"));
  }
  return group;
}

ProcessGroup& DeviceGroup::group_for(const char* operation, const Tensors& tensors) const {
  if (tensors.empty()) return *cpu_;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.device().type() == tensors.front().device().type()) continue;
    throw InvalidArgument(concat(name_group(*this), ": ", operation, " was given tensors on ", tensors.front().device(),
                                 " and on ", tensor.device(), "; all tensors of a call must be in one place"));
  }
  return group_for(operation, tensors.front());
}

ProcessGroup& DeviceGroup::group_for(const char* operation, const std::vector<Tensors>& lists,
                                     const Tensors& tensors) const {
  Tensors all = tensors;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return group_for(operation, all);
}

std::shared_ptr<Work> DeviceGroup::do_broadcast(Tensors& tensors, const BroadcastOptions& options) {
  return group_for("broadcast", tensors).broadcast(tensors, within(*this, options));
}

std::shared_ptr<Work> DeviceGroup::do_all_reduce(Tensors& tensors, const AllReduceOptions& options) {
  return group_for("all_reduce", tensors).all_reduce(tensors, within(*this, options));
}

std::shared_ptr<Work> DeviceGroup::do_reduce(Tensors& tensors, const ReduceOptions& options) {
  return group_for("reduce", tensors).reduce(tensors, within(*this, options));
}

std::shared_ptr<Work> DeviceGroup::do_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const AllGatherOptions& options) {
  return group_for("all_gather", outputs, inputs).all_gather(outputs, inputs, within(*this, options));
}

std::shared_ptr<Work> DeviceGroup::do_all_gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                             const AllGatherOptions& options) {
  return group_for("all_gather_into_tensor", Tensors{input, output})
      .all_gather_into_tensor(output, input, within(*this, options));
}

std::shared_ptr<Work> DeviceGroup::do_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const GatherOptions& options) {
  return group_for("gather", outputs, inputs).gather(outputs, inputs, within(*this, options));
}

std::shared_ptr<Work> DeviceGroup::do_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const ScatterOptions& options) {
  return group_for("scatter", inputs, outputs).scatter(outputs, inputs, within(*this, options));
}

std::shared_ptr<Work> DeviceGroup::do_reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                     const ReduceScatterOptions& options) {
  return group_for("reduce_scatter", inputs, outputs).reduce_scatter(outputs, inputs, within(*this, options));
}

std::shared_ptr<Work> DeviceGroup::do_reduce_scatter_tensor(at::Tensor& output, at::Tensor& input,
                                                            const ReduceScatterOptions& options) {
  return group_for("reduce_scatter_tensor", Tensors{input, output})
      .reduce_scatter_tensor(output, input, within(*this, options));
}

std::shared_ptr<Work> DeviceGroup::do_all_to_all(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options) {
  return group_for("all_to_all", {outputs}, inputs).all_to_all(outputs, inputs, within(*this, options));
}

std::shared_ptr<Work> DeviceGroup::do_all_to_all_single(at::Tensor& output, at::Tensor& input,
                                                        std::vector<std::int64_t>& output_splits,
                                                        std::vector<std::int64_t>& input_splits,
                                                        const AllToAllOptions& options) {
  return group_for("all_to_all_single", Tensors{input, output})
      .all_to_all_single(output, input, output_splits, input_splits, within(*this, options));
}

std::shared_ptr<Work> DeviceGroup::do_barrier(const BarrierOptions& options) {
  return cpu_->barrier(within(*this, options));
}

void DeviceGroup::do_monitored_barrier(Milliseconds timeout, bool wait_all) {
  cpu_->monitored_barrier(timeout, wait_all);
}

std::shared_ptr<Work> DeviceGroup::do_send(Tensors& tensors, int destination, int tag) {
  return group_for("send", tensors).send(tensors, destination, tag);
}

std::shared_ptr<Work> DeviceGroup::do_recv(Tensors& tensors, int source, int tag) {
  return group_for("recv", tensors).recv(tensors, source, tag);
}

std::shared_ptr<Work> DeviceGroup::do_recv_anysource(Tensors& tensors, int tag) {
  return group_for("recv_anysource", tensors).recv_anysource(tensors, tag);
}

std::uint64_t DeviceGroup::next() {
  MutexLock lock(mutex_);
  return made_++;
}

std::shared_ptr<ProcessGroup> DeviceGroup::around(std::shared_ptr<ProcessGroup> cpu, const std::string& place) {
  auto made =
      std::make_shared<DeviceGroup>(std::move(cpu), device_, std::make_shared<PrefixStore>(place, store_), maker_);
  made->set_timeout(timeout());
  made->set_group_name(concat(group_name(), "/", place));
  made->set_group_desc(group_desc());
  return made;
}

std::shared_ptr<ProcessGroup> DeviceGroup::do_dup() {
  const std::uint64_t number = next();
  auto cpu = cpu_->dup();
  if (cpu == nullptr) return nullptr;
  auto made = around(std::move(cpu), concat("dup", number));
  duplicates_.add(made);
  return made;
}

std::shared_ptr<ProcessGroup> DeviceGroup::do_split(int color, int key, const std::optional<std::string>& desc) {
  const std::uint64_t number = next();
  auto cpu = cpu_->split(color, key, desc);
  if (cpu == nullptr) return nullptr;
  auto made = around(std::move(cpu), concat("split", number, "/", color));
  if (desc) made->set_group_desc(*desc);
  return made;
}

// Memory of the CPU; a bucket on a device is the device's own.
at::Tensor DeviceGroup::do_allocate(std::int64_t numel, at::ScalarType dtype) { return cpu_->allocate(numel, dtype); }

void DeviceGroup::abort(const std::string& reason) {
  // The CPU's first: its other ranks learn of it at once.
  cpu_->abort(reason);
  on_device_->abort(reason);
  duplicates_.abort_all(reason);
}

void DeviceGroup::shutdown() {
  on_device_->shutdown();
  cpu_->shutdown();
  duplicates_.clear();
}

bool DeviceGroup::is_open() const { return gradwire::is_open(*cpu_); }

}  // namespace gradwire::internal
