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
#include "gradwire/process_group/duplicate_list_internal.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// Each call goes to the group that serves its tensors; all tensors of a call are in one place. Calls without tensors
// (barrier, monitored_barrier) go to the CPU's group, and do not wait for work that a device has queued. Each of the
// two groups has its own order of calls. Thread-safe.
class DeviceGroup final : public CallGroup, public Closable {
 public:
  // Makes the device's group, of `size` ranks that meet in `store`; only that group uses the keys of `store`.
  using Maker = std::function<std::shared_ptr<ProcessGroup>(const std::shared_ptr<Store>& store, int rank, int size,
                                                            Milliseconds timeout)>;

  // Collective in `store`: makes the device's group, which has the ranks of `cpu` and serves tensors of `device`.
  DeviceGroup(std::shared_ptr<ProcessGroup> cpu, c10::DeviceType device, std::shared_ptr<Store> store, Maker maker);

  bool supports(c10::DeviceType device) const override;
  bool multiplies_as_it_sums() const override;
  void abort(const std::string& reason) override;
  void shutdown() override;
  bool is_open() const override;

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
  // Makes a further DeviceGroup around `cpu`, a new group for the CPU. `place` is the part of the store for it: the
  // same on its ranks, and different for every other group.
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
