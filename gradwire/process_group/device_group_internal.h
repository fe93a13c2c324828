// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group for tensors on the CPU and a group for tensors on a kind of device, as one group.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/process_group/call_group.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/device_engine_internal.h"
#include "gradwire/process_group/duplicate_list_internal.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// Each call goes to the group that serves its tensors; all tensors of a call are in one place. Calls without tensors
// (barrier, monitored_barrier) go to the CPU's group, and do not wait for work that a device has queued. Each of the
// two groups has its own order of calls.
//
// A duplicate has a CPU group of its own, and shares the device's group: an engine such as NCCL may deadlock when a
// device has calls of several communicators under way at once (docs/decisions/0028). So all calls on a device, those of
// the duplicates too, are one sequence, in the order in which this rank makes them; all ranks make them in one order.
// abort() of a duplicate ends the shared group too, because its calls may wait for a rank that has failed. Thread-safe.
class DeviceGroup final : public CallGroup, public Closable, public DeviceEngine {
 public:
  // Makes the device's group, of `size` ranks that meet in `store`; only that group uses the keys of `store`.
  using Maker = std::function<std::shared_ptr<ProcessGroup>(const std::shared_ptr<Store>& store, int rank, int size,
                                                            Milliseconds timeout)>;

  // Collective in `store`: makes the device's group, which has the ranks of `cpu` and serves tensors of `device`.
  DeviceGroup(std::shared_ptr<ProcessGroup> cpu, c10::DeviceType device, std::shared_ptr<Store> store, Maker maker);
  // A duplicate of `origin` around `cpu`, a duplicate of its CPU group. Groups that it splits off meet in `store`.
  DeviceGroup(const DeviceGroup& origin, std::shared_ptr<ProcessGroup> cpu, std::shared_ptr<Store> store);

  bool supports(c10::DeviceType device) const override;
  bool multiplies_as_it_sums() const override;
  void abort(const std::string& reason) override;
  void shutdown() override;
  bool is_open() const override;
  void before_next_call(const Tensors& inputs, std::function<void()> copy) override {
    gradwire::before_next_call(*cpu_, inputs, std::move(copy));
  }
  void require_well() override;

 protected:
  std::string get_backend_name() const override { return on_device_->name(); }
  std::shared_ptr<Work> do_call(GroupCall& call) override;
  void do_monitored_barrier(Milliseconds timeout, bool wait_all) override;
  std::shared_ptr<ProcessGroup> do_dup() override;
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override;
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override;

 private:
  // The group for the call's tensors. Throws InvalidArgument unless they are all in one place.
  ProcessGroup& group_for(const GroupCall& call) const;
  // The part of the store for a group made of this one. `place`: the same on its ranks, and different for every other
  // group.
  std::shared_ptr<Store> part(const std::string& place) const;
  // Gives `made`, a group made of this one, the timeout and the names that follow from this group's.
  std::shared_ptr<ProcessGroup> named(std::shared_ptr<DeviceGroup> made, const std::string& place) const;
  std::uint64_t next();

  const std::shared_ptr<ProcessGroup> cpu_;
  const c10::DeviceType device_;
  const std::shared_ptr<Store> store_;
  const Maker maker_;
  const std::shared_ptr<ProcessGroup> on_device_;  // a duplicate shares it
  const bool is_duplicate_;
  Mutex mutex_;
  std::uint64_t made_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // duplicates and splits
  DuplicateList duplicates_;
};

}  // namespace gradwire::internal
