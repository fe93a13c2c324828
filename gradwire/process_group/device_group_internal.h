// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One group for tensors on the CPU and another for those on a kind of device, as one.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/duplicate_list_internal.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// Each call goes to the group that serves its tensors; all tensors of a call are in one place. Calls without tensors
// (barrier, monitored_barrier) go to the CPU's group, and say nothing of what a device has queued. Each of the two has
// an order of its own. Thread-safe.
class DeviceGroup final : public ProcessGroup, public Closable {
 public:
  // Makes the device's group of `rank` of `size` ranks that meet in `store`, whose keys are its alone.
  using Maker = std::function<std::shared_ptr<ProcessGroup>(const std::shared_ptr<Store>& store, int rank, int size,
                                                            Milliseconds timeout)>;

  // Collective in `store`: the device's group is made here, after `cpu`, whose ranks it has. It serves tensors of
  // `device`.
  DeviceGroup(std::shared_ptr<ProcessGroup> cpu, c10::DeviceType device, std::shared_ptr<Store> store, Maker maker);

  bool supports(c10::DeviceType device) const override;
  void abort(const std::string& reason) override;
  void shutdown() override;
  bool is_open() const override;

 protected:
  std::string get_backend_name() const override { return on_device_->name(); }
  std::shared_ptr<Work> do_broadcast(Tensors& tensors, const BroadcastOptions& options) override;
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions& options) override;
  std::shared_ptr<Work> do_reduce(Tensors& tensors, const ReduceOptions& options) override;
  std::shared_ptr<Work> do_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const AllGatherOptions& options) override;
  std::shared_ptr<Work> do_all_gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                  const AllGatherOptions& options) override;
  std::shared_ptr<Work> do_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const GatherOptions& options) override;
  std::shared_ptr<Work> do_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const ScatterOptions& options) override;
  std::shared_ptr<Work> do_reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const ReduceScatterOptions& options) override;
  std::shared_ptr<Work> do_reduce_scatter_tensor(at::Tensor& output, at::Tensor& input,
                                                 const ReduceScatterOptions& options) override;
  std::shared_ptr<Work> do_all_to_all(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options) override;
  std::shared_ptr<Work> do_all_to_all_single(at::Tensor& output, at::Tensor& input,
                                             std::vector<std::int64_t>& output_splits,
                                             std::vector<std::int64_t>& input_splits,
                                             const AllToAllOptions& options) override;
  std::shared_ptr<Work> do_barrier(const BarrierOptions& options) override;
  void do_monitored_barrier(Milliseconds timeout, bool wait_all) override;
  std::shared_ptr<Work> do_send(Tensors& tensors, int destination, int tag) override;
  std::shared_ptr<Work> do_recv(Tensors& tensors, int source, int tag) override;
  std::shared_ptr<Work> do_recv_anysource(Tensors& tensors, int tag) override;
  std::shared_ptr<ProcessGroup> do_dup() override;
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override;
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override;

 private:
  // The group for `tensor`, and for lists whose tensors are all in one place. Throws InvalidArgument otherwise.
  ProcessGroup& group_for(const char* operation, const at::Tensor& tensor) const;
  ProcessGroup& group_for(const char* operation, const Tensors& tensors) const;
  ProcessGroup& group_for(const char* operation, const std::vector<Tensors>& lists, const Tensors& tensors) const;
  // The same as one more group, out of a new one for the CPU. `place` is the same on its ranks and no others'.
  std::shared_ptr<ProcessGroup> around(std::shared_ptr<ProcessGroup> cpu, const std::string& place);
  std::uint64_t next();

  const std::shared_ptr<ProcessGroup> cpu_;
  const c10::DeviceType device_;
  const std::shared_ptr<Store> store_;
  const Maker maker_;
  const std::shared_ptr<ProcessGroup> on_device_;
  Mutex mutex_;
  std::uint64_t made_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // duplicates and splits
  DuplicateList duplicates_;
};

}  // namespace gradwire::internal
