// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A process group around another one that misbehaves on purpose, to test what a training program does then.
//
//   auto group = std::make_shared<FaultInjectingGroup>(make_process_group("threads", store, rank, 3));
//   if (rank == 2) group->lose_after(10);          // its 11th call does not come
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

namespace gradwire::testing {

// Every call goes on to the wrapped group, after it was counted, delayed and perhaps made to fail. Duplicates (dup) and
// parts (split) are wrapped too, and share counts and faults with the group they come from: DDP runs over it with
// lanes, as over the wrapped group. Its name is "fault_injecting(NAME)", so DDP treats it as a group of the user's.
//
// Thread-safe. Faults take effect from the next call on. The wrapped group may be used beside it; those calls are
// neither counted nor delayed.
class FaultInjectingGroup final : public CallGroup {
 public:
  // Throws InvalidArgument for a null group.
  explicit FaultInjectingGroup(std::shared_ptr<ProcessGroup> wrapped);

  // Calls so far by operation ("all_reduce", "send", "dup", ...), or of one operation, or of all.
  std::map<std::string, std::size_t> calls() const;
  std::size_t calls(const std::string& operation) const;
  std::size_t total_calls() const;

  // Every call waits so long, on the caller's thread, before it goes on.
  void set_latency(std::chrono::microseconds latency);
  // Runs before each call goes on, with the operation and how many calls came before it in all; what it throws is what
  // the call throws, and the wrapped group does not see the call. An empty one is none.
  void set_fault(std::function<void(const std::string& operation, std::size_t number)> fault);
  // After `calls` calls in all (those before included), this rank is lost: the wrapped groups are aborted, so that the
  // other ranks learn of it as the group tells them, and every further call of this rank throws AbortedError.
  void lose_after(std::size_t calls);

  const std::shared_ptr<ProcessGroup>& wrapped() const noexcept { return wrapped_; }

  bool supports(c10::DeviceType device) const override;
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
