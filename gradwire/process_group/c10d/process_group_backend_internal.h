// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A c10d::ProcessGroup as a c10d::Backend: for a group with several backends, or of a class that overrides the calls
// themselves, as Python's may.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace gradwire::internal {

// The calls that libtorch 2.13 calls deprecated are the ones that 2.11 has.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

// Each call is the same call on the group, which this object keeps alive.
class ProcessGroupBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using Splits = std::vector<std::int64_t>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  explicit ProcessGroupBackend(c10::intrusive_ptr<c10d::ProcessGroup> group)
      : c10d::Backend(group->getRank(), group->getSize()), group_(std::move(group)) {}

  const std::string getBackendName() const override { return group_->getBackendName(); }
  // That of the backend for devices: on the CPU a call tells its error itself.
  c10d::ErrorType getError() override {
    for (const c10::Device& device : group_->getDeviceTypes()) {
      if (!device.is_cpu()) return group_->getBackend(device.type())->getError();
    }
    return c10d::ErrorType::SUCCESS;
  }
  void abort() override { group_->abort(); }
  void shutdown() override { group_->shutdown(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return group_->broadcast(tensors, options);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return group_->allreduce(tensors, options);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return group_->reduce(tensors, options);
  }
  WorkPtr allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return group_->allgather(outputs, inputs, options);
  }
  // Many groups that override the calls have only allgather.
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    if (group_->hasBackends()) return group_->_allgather_base(output, input, options);
    Lists outputs{output.chunk(getSize())};
    Tensors inputs{input};
    return group_->allgather(outputs, inputs, options);
  }
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return group_->gather(outputs, inputs, options);
  }
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override {
    return group_->scatter(outputs, inputs, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    if (group_->hasBackends()) return group_->_reduce_scatter_base(output, input, options);
    Tensors outputs{output};
    Lists inputs{input.chunk(getSize())};
    return group_->reduce_scatter(outputs, inputs, options);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, Splits& output_splits, Splits& input_splits,
                        const c10d::AllToAllOptions& options) override {
    return group_->alltoall_base(output, input, output_splits, input_splits, options);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return group_->alltoall(outputs, inputs, options);
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) override {
    group_->monitoredBarrier(options, wait_all);
  }
  WorkPtr send(Tensors& tensors, int destination, int tag) override { return group_->send(tensors, destination, tag); }
  WorkPtr recv(Tensors& tensors, int source, int tag) override { return group_->recv(tensors, source, tag); }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override { return group_->recvAnysource(tensors, tag); }
  WorkPtr barrier(const c10d::BarrierOptions& options) override { return group_->barrier(options); }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

#pragma GCC diagnostic pop

}  // namespace gradwire::internal
