// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// ProcessGroup, from which Python classes may derive. The names of the methods that they override are c10d's.
#pragma once

#include <pybind11/trampoline_self_life_support.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "binding.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::python {

using WorkPtr = std::shared_ptr<Work>;
using GroupPtr = std::shared_ptr<ProcessGroup>;
using Lists = std::vector<Tensors>;
using Splits = std::vector<std::int64_t>;

// Calls the methods of a Python class, and ProcessGroup's own where the class has none.
class PyProcessGroup final : public ProcessGroup, public py::trampoline_self_life_support {
 public:
  using ProcessGroup::ProcessGroup;

  bool supports(c10::DeviceType device) const override {
    const std::string name = c10::DeviceTypeName(device, true);
    return overridden(
        base(), "supports", cast<bool>, [&] { return ProcessGroup::supports(device); }, name);
  }
  void abort(const std::string& reason) override {
    overridden(
        base(), "abort", [](const py::object&) {}, [&] { ProcessGroup::abort(reason); });
  }
  void shutdown() override {
    overridden(
        base(), "shutdown", [](const py::object&) {}, [&] { ProcessGroup::shutdown(); });
  }

 protected:
  int get_rank() const override {
    return overridden(base(), "getRank", cast<int>, [&] { return ProcessGroup::get_rank(); });
  }
  int get_size() const override {
    return overridden(base(), "getSize", cast<int>, [&] { return ProcessGroup::get_size(); });
  }
  std::string get_backend_name() const override {
    return overridden(base(), "getBackendName", cast<std::string>, [&] { return ProcessGroup::get_backend_name(); });
  }
  std::string get_group_name() const override {
    return overridden(base(), "getGroupName", cast<std::string>, [&] { return ProcessGroup::get_group_name(); });
  }
  void do_set_group_name(const std::string& name) override {
    const auto otherwise = [&] { ProcessGroup::do_set_group_name(name); };
    overridden(
        base(), "setGroupName", [](const py::object&) {}, otherwise, name);
  }
  std::string get_group_desc() const override {
    return overridden(base(), "getGroupDesc", cast<std::string>, [&] { return ProcessGroup::get_group_desc(); });
  }
  void do_set_group_desc(const std::string& desc) override {
    const auto otherwise = [&] { ProcessGroup::do_set_group_desc(desc); };
    overridden(
        base(), "setGroupDesc", [](const py::object&) {}, otherwise, desc);
  }

  WorkPtr do_broadcast(Tensors& tensors, const BroadcastOptions& options) override {
    return work(
        "broadcast", [&] { return ProcessGroup::do_broadcast(tensors, options); }, tensors, options);
  }
  WorkPtr do_all_reduce(Tensors& tensors, const AllReduceOptions& options) override {
    return work(
        "allreduce", [&] { return ProcessGroup::do_all_reduce(tensors, options); }, tensors, options);
  }
  WorkPtr do_reduce(Tensors& tensors, const ReduceOptions& options) override {
    return work(
        "reduce", [&] { return ProcessGroup::do_reduce(tensors, options); }, tensors, options);
  }
  WorkPtr do_all_gather(Lists& outputs, Tensors& inputs, const AllGatherOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_all_gather(outputs, inputs, options); };
    return work("allgather", otherwise, outputs, inputs, options);
  }
  WorkPtr do_all_gather_into_tensor(at::Tensor& output, at::Tensor& input, const AllGatherOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_all_gather_into_tensor(output, input, options); };
    return work("_allgather_base", otherwise, output, input, options);
  }
  WorkPtr do_gather(Lists& outputs, Tensors& inputs, const GatherOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_gather(outputs, inputs, options); };
    return work("gather", otherwise, outputs, inputs, options);
  }
  WorkPtr do_scatter(Tensors& outputs, Lists& inputs, const ScatterOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_scatter(outputs, inputs, options); };
    return work("scatter", otherwise, outputs, inputs, options);
  }
  WorkPtr do_reduce_scatter(Tensors& outputs, Lists& inputs, const ReduceScatterOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_reduce_scatter(outputs, inputs, options); };
    return work("reduce_scatter", otherwise, outputs, inputs, options);
  }
  WorkPtr do_reduce_scatter_tensor(at::Tensor& output, at::Tensor& input,
                                   const ReduceScatterOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_reduce_scatter_tensor(output, input, options); };
    return work("_reduce_scatter_base", otherwise, output, input, options);
  }
  WorkPtr do_all_to_all(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_all_to_all(outputs, inputs, options); };
    return work("alltoall", otherwise, outputs, inputs, options);
  }
  WorkPtr do_all_to_all_single(at::Tensor& output, at::Tensor& input, Splits& output_splits, Splits& input_splits,
                               const AllToAllOptions& options) override {
    const auto otherwise = [&] {
      return ProcessGroup::do_all_to_all_single(output, input, output_splits, input_splits, options);
    };
    return work("alltoall_base", otherwise, output, input, output_splits, input_splits, options);
  }
  WorkPtr do_barrier(const BarrierOptions& options) override {
    return work(
        "barrier", [&] { return ProcessGroup::do_barrier(options); }, options);
  }
  void do_monitored_barrier(Milliseconds timeout, bool wait_all) override {
    const auto otherwise = [&] { ProcessGroup::do_monitored_barrier(timeout, wait_all); };
    overridden(
        base(), "monitored_barrier", [](const py::object&) {}, otherwise, timeout, wait_all);
  }
  WorkPtr do_send(Tensors& tensors, int destination, int tag) override {
    return work(
        "send", [&] { return ProcessGroup::do_send(tensors, destination, tag); }, tensors, destination, tag);
  }
  WorkPtr do_recv(Tensors& tensors, int source, int tag) override {
    return work(
        "recv", [&] { return ProcessGroup::do_recv(tensors, source, tag); }, tensors, source, tag);
  }
  WorkPtr do_recv_anysource(Tensors& tensors, int tag) override {
    return work(
        "recv_anysource", [&] { return ProcessGroup::do_recv_anysource(tensors, tag); }, tensors, tag);
  }
  GroupPtr do_dup() override {
    return overridden(base(), "dup", cast<GroupPtr>, [&] { return ProcessGroup::do_dup(); });
  }
  GroupPtr do_split(int color, int key, const std::optional<std::string>& desc) override {
    const auto otherwise = [&] { return ProcessGroup::do_split(color, key, desc); };
    return overridden(base(), "split", cast<GroupPtr>, otherwise, color, key, desc);
  }
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override {
    const auto otherwise = [&] { return ProcessGroup::do_allocate(numel, dtype); };
    return overridden(base(), "allocate", cast<at::Tensor>, otherwise, numel, dtype);
  }

 private:
  const ProcessGroup* base() const noexcept { return this; }
  template <class T>
  static T cast(const py::object& object) {
    return object.cast<T>();
  }
  template <class Otherwise, class... Args>
  WorkPtr work(const char* name, const Otherwise& otherwise, Args&... args) {
    return overridden(base(), name, cast<WorkPtr>, otherwise, args...);
  }
};

using ProcessGroupClass = py::class_<ProcessGroup, PyProcessGroup, py::smart_holder>;

// Adds PyTorch's newer names of collectives, and its short forms, which take what the options would hold.
void bind_newer_names(ProcessGroupClass& group);
void bind_short_forms(ProcessGroupClass& group);

}  // namespace gradwire::python
