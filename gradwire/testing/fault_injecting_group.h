// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A process group that wraps another one and injects faults, to test what a training program does after a fault.
//
//   auto group = std::make_shared<FaultInjectingGroup>(make_process_group("threads", store, rank, 3));
//   if (rank == 2) group->lose_after(10);          // rank 2 is lost before its 11th call
//   ... train over `group` ...                     // ranks 0 and 1 get a PeerError that says why
//   EXPECT_EQ(group->calls("all_reduce"), 10);
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "gradwire/process_group/call_group.h"
#include "gradwire/process_group/device_engine.h"
#include "gradwire/process_group/device_stager.h"

namespace gradwire::testing {

// This group counts each call, delays it, makes it fail if a fault is set, and otherwise passes it to the wrapped
// group. The results and errors are those of the wrapped group. The groups that dup() and split() return are wrapped
// too, and share counts and faults with this group, so DDP runs with lanes, as over the wrapped group. The name is
// "fault_injecting(NAME)", so DDP treats this group as a user's own.
//
// Thread-safe. Faults take effect from the next call on. A caller may also use the wrapped group directly; such calls
// are neither counted nor delayed.
class FaultInjectingGroup final : public CallGroup, public DeviceEngine, public DeviceStager {
 public:
  // Takes rank, size, timeout, group name and description from `wrapped`, and shares its ownership. Throws
  // InvalidArgument for a null group.
  explicit FaultInjectingGroup(std::shared_ptr<ProcessGroup> wrapped);

  // Return the number of calls so far: for each operation ("all_reduce", "send", "dup", ...), of one operation, and of
  // all operations. Calls of duplicates and splits count too.
  std::map<std::string, std::size_t> calls() const;
  std::size_t calls(const std::string& operation) const;
  std::size_t total_calls() const;

  // Makes each call wait for `latency`, on the caller's thread, before the call is passed on.
  void set_latency(std::chrono::microseconds latency);
  // Sets a function that runs on the caller's thread before each call is passed on. `number` is the number of earlier
  // calls of all operations. When `fault` throws, the call throws the same exception and does not reach the wrapped
  // group. An empty function removes the fault.
  void set_fault(std::function<void(const std::string& operation, std::size_t number)> fault);
  // Loses this rank after `calls` calls of all operations; calls before lose_after() count too. The next call then
  // aborts the wrapped groups, so the other ranks learn of the loss in the way of the wrapped group. This call and
  // every later call of this rank throw AbortedError.
  void lose_after(std::size_t calls);

  // The group of the constructor.
  const std::shared_ptr<ProcessGroup>& wrapped() const noexcept { return wrapped_; }

  // These go to the wrapped group as they are: not counted, not delayed, never failed.
  bool supports(c10::DeviceType device) const override;
  bool multiplies_as_it_sums() const override;
  bool stages_devices() const override;
  void require_well() override;
  void before_next_call(const Tensors& inputs, std::function<void()> copy) override {
    gradwire::before_next_call(*wrapped_, inputs, std::move(copy));
  }
  void abort(const std::string& reason) override;
  void shutdown() override;

 protected:
  std::string get_backend_name() const override;
  std::shared_ptr<Work> do_call(GroupCall& call) override;
  void do_monitored_barrier(Milliseconds timeout, bool wait_all) override;
  std::shared_ptr<ProcessGroup> do_dup() override;
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override;
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override;

 private:
  struct Faults;  // shared with duplicates
  FaultInjectingGroup(std::shared_ptr<ProcessGroup> wrapped, std::shared_ptr<Faults> faults);
  void enter(const char* operation);
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> group) const;

  const std::shared_ptr<ProcessGroup> wrapped_;
  const std::shared_ptr<Faults> faults_;
};

}  // namespace gradwire::testing
