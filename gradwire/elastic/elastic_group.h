// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group whose ranks change.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/process_group/call_group.h"
#include "gradwire/process_group/changing_ranks.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/device_engine.h"
#include "gradwire/process_group/device_stager.h"

namespace gradwire {

namespace internal {
class CallTap;
}

// Passes every call on to the group of the present epoch, which is one of gradwire's own groups, or any other.
// rank(), size() and name() are those of that group. A new object is a group of this rank alone, with which objects
// that need a group can be made (DistributedDataParallel, an optimizer) before the first epoch.
//
// An error of the present group ends that group, not this object: every later call fails with the first reason until
// move_to(). Calls that are under way stay calls on the group on which they were made.
//
// Duplicates are elastic too: move_to() gives them duplicates of the new group. So whoever holds this group or a
// duplicate keeps the pointer. Groups of split() and memory of allocate() belong to the epoch in which they were made;
// DistributedDataParallel gets new memory by DdpCore::leave_group() and enter_group().
//
// Threads: as ProcessGroup; one thread at a time calls move_to(), while no other thread calls this object.
class ElasticGroup final : public CallGroup,
                           public Closable,
                           public ChangingRanks,
                           public DeviceEngine,
                           public DeviceStager {
 public:
  // A group of this rank alone.
  ElasticGroup();
  ~ElasticGroup() override;
  ElasticGroup(const ElasticGroup&) = delete;
  ElasticGroup& operator=(const ElasticGroup&) = delete;

  // Collective over `group`: all of its ranks call move_to(), each on its own ElasticGroup. From now on this object's
  // ranks are those of `group`. The duplicates that are still held are made anew, in the order in which they were made.
  // Throws InvalidArgument for a null group, MismatchError on all ranks when they hold different duplicates (they made
  // calls of dup() that others did not make), UnsupportedError when a duplicate is held and `group` cannot be
  // duplicated, and what dup() throws.
  void move_to(std::shared_ptr<ProcessGroup> group);
  // Becomes a group of this rank alone again. Duplicates that are still held keep the group that they had. Not
  // collective.
  void move_out();

  void before_next_call(const Tensors& inputs, std::function<void()> copy) override;

  // The group of the present epoch.
  std::shared_ptr<ProcessGroup> current() const override;

  bool has_hosts() const override;
  bool has_stand_ins() const override;
  std::shared_ptr<Work> call_over_hosts(GroupCall& call, const std::function<std::shared_ptr<Work>()>& make) override {
    return call_by(call, make);
  }
  std::uint64_t sent_over_networks() const noexcept override;

  // From here on, calls on this object and its duplicates go to `tap` (call_tap_internal.h); null: to the group of the
  // epoch again. No call may be under way.
  void set_tap(std::shared_ptr<internal::CallTap> tap);

  bool supports(c10::DeviceType device) const override { return current()->supports(device); }
  bool multiplies_as_it_sums() const override { return current()->multiplies_as_it_sums(); }
  void abort(const std::string& reason) override { current()->abort(reason); }
  void shutdown() override { current()->shutdown(); }
  bool is_open() const override { return gradwire::is_open(*current()); }
  // Of the present epoch: DistributedDataParallel asks when it enters the epoch.
  bool stages_devices() const override { return gradwire::stages_devices(*current()); }
  void require_well() override;

 protected:
  int get_rank() const override { return current()->rank(); }
  int get_size() const override { return current()->size(); }
  std::string get_backend_name() const override { return current()->name(); }
  std::shared_ptr<Work> do_call(GroupCall& call) override;
  void do_monitored_barrier(Milliseconds timeout, bool wait_all) override {
    current()->monitored_barrier(timeout, wait_all);
  }
  std::shared_ptr<ProcessGroup> do_dup() override;
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override {
    return current()->split(color, key, desc);
  }
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override {
    return current()->allocate(numel, dtype);
  }
  Tensors do_symmetric_memory(const at::Tensor& tensor) override { return current()->symmetric_memory(tensor); }

 private:
  explicit ElasticGroup(std::shared_ptr<ProcessGroup> group);
  // The duplicates that somebody still holds, in the order in which they were made.
  std::vector<std::shared_ptr<ElasticGroup>> duplicates();
  // The shape of the tree of duplicates, as text.
  std::string shape();
  void adopt(std::shared_ptr<ProcessGroup> group);
  // Makes `call` by `make`, or hands both to the tap.
  std::shared_ptr<Work> call_by(GroupCall& call, const std::function<std::shared_ptr<Work>()>& make);
  void replace_current(std::shared_ptr<ProcessGroup> group) GRADWIRE_EXCLUDES(mutex_);
  void leave_tap() GRADWIRE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::shared_ptr<ProcessGroup> current_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint64_t sent_before_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // by the groups before
  std::vector<std::weak_ptr<ElasticGroup>> duplicates_ GRADWIRE_GUARDED_BY(mutex_);
  std::shared_ptr<internal::CallTap> tap_ GRADWIRE_GUARDED_BY(mutex_);
  int number_in_tap_ GRADWIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire
