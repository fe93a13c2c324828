// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group whose ranks all hold what this rank holds, without any communication.
#pragma once

#include <memory>
#include <string>

#include "gradwire/process_group/call_group.h"
#include "gradwire/process_group/device_stager.h"

namespace gradwire::internal {

// What DistributedDataParallel compares and agrees on at the beginning of an epoch comes out as this rank has it, and
// the mean of gradients is this rank's gradient. Duplicates are mirrors too. Messages to single ranks and split() are
// refused with UnsupportedError. Thread-safe.
class MirrorGroup final : public CallGroup, public DeviceStager {
 public:
  // What the group that is mirrored has: ProcessGroup::multiplies_as_it_sums(), ChangingRanks::has_hosts(),
  // stages_devices().
  struct Traits {
    bool multiplies = false;
    bool has_hosts = false;
    bool stages_devices = false;
  };
  // Rank `rank` of `size`.
  MirrorGroup(int rank, int size, Traits traits) : CallGroup(rank, size), traits_(traits) {}

  bool has_hosts() const noexcept { return traits_.has_hosts; }
  bool multiplies_as_it_sums() const override { return traits_.multiplies; }
  bool supports(c10::DeviceType device) const override {
    return device == c10::DeviceType::CPU || traits_.stages_devices;
  }
  bool stages_devices() const override { return traits_.stages_devices; }

 protected:
  std::string get_backend_name() const override { return "mirror"; }
  std::shared_ptr<Work> do_call(GroupCall& call) override;
  void do_monitored_barrier(Milliseconds, bool) override {}
  std::shared_ptr<ProcessGroup> do_dup() override { return std::make_shared<MirrorGroup>(rank(), size(), traits_); }

 private:
  const Traits traits_;
};

}  // namespace gradwire::internal
