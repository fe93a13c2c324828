// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One call of a HybridGroup, as its body sees it.
#pragma once

#include <ATen/Functions.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"

namespace gradwire {

class HybridGroup::Call {
 public:
  Call(const HybridGroup& whole, Deadline deadline, CallTag tag) : whole_(whole), deadline_(deadline), tag_(tag) {}

  // The groups below. The body asks for a group just before it calls the group or waits for the group's Work, so that
  // an error is known to concern that group's ranks.
  ProcessGroup& everyone() {
    ++steps_;
    members_ = nullptr;
    return *whole_.groups_.everyone;
  }
  ProcessGroup& local() {
    ++steps_;
    members_ = &whole_.ranks_of(whole_.host());
    return *whole_.groups_.local;
  }
  // Only where has_cross() is true.
  ProcessGroup& cross() {
    ++steps_;
    members_ = &whole_.cross_ranks_;
    return *whole_.groups_.cross;
  }
  // All calls begin with a step in which the ranks of a host meet. Then at least one rank of each host takes a step on
  // cross(), where the hosts meet. So ranks that call different things are told, and none waits in one of the groups
  // below while another waits in another one. A call whose own steps are not so calls first, with no elements, what its
  // own step calls: with meet_within_host() before a step on cross(), with meet() before a step on everyone().
  // `step(call, group)` calls `group` and waits. The calls with no elements do not count as steps.
  template <class Step>
  void meet_within_host(const Step& step) {
    step(*this, local());
    forget_steps();
  }
  template <class Step>
  void meet(const Step& step) {
    has_met_ = true;
    step(*this, local());
    if (whole_.is_leader()) step(*this, cross());
    forget_steps();
  }
  // Such a step of gather().
  void gather_nothing(ProcessGroup& group) const {
    const Tensors none(static_cast<std::size_t>(group.size()), at::empty({0}));
    const std::vector<Tensors> room(group.rank() == 0 ? 1 : 0, none);
    group.gather(room, {at::empty({0})}, rooted<GatherOptions>(0))->wait();
  }
  // Whether other ranks may wait for the steps after meet(), so that the call cannot be refused on this rank alone.
  bool has_met() const noexcept { return has_met_; }
  bool has_cross() const { return whole_.groups_.cross != nullptr; }

  // The ranks of the group that was asked for last, in the numbers of the whole; null where they are the same.
  const std::vector<int>* members() const noexcept { return members_; }

  // Whether all ranks throw a ResourceError that comes now, and none of them has changed anything: they have agreed, or
  // their first step, which is the same for all, was refused.
  bool is_refused_to_all() const noexcept { return refused_to_all_ || (steps_ == 1 && members_ == nullptr); }
  void refuse_to_all() noexcept { refused_to_all_ = true; }

  // Options for the next step, which runs at once on this thread, within the time that is left of the call's deadline.
  template <class Options>
  Options options() const {
    Options options;
    options.async = false;
    options.timeout = std::max(deadline_.remaining(), Milliseconds{1});
    options.tag = tag_;
    return options;
  }
  template <class Options>
  Options rooted(int root) const {
    auto options = this->options<Options>();
    options.root = root;
    return options;
  }
  template <class Options>
  Options reducing(ReduceOp op) const {
    auto options = this->options<Options>();
    options.op = op;
    return options;
  }

 private:
  void forget_steps() noexcept {
    members_ = nullptr;
    steps_ = 0;
  }

  const HybridGroup& whole_;
  const std::vector<int>* members_ = nullptr;
  int steps_ = 0;  // how often the body asked for a group
  bool refused_to_all_ = false;
  bool has_met_ = false;
  const Deadline deadline_;
  const CallTag tag_;
};

// The ranks take all steps of such a call, also after one that was refused: the ranks of the other groups may not know
// of that.
struct HybridGroup::Refusal {
  std::exception_ptr error;

  // Returns what `step` does, or null where the machine refuses what the step needs.
  template <class Step>
  auto unless_refused(const Step& step) -> decltype(step()) {
    try {
      return step();
    } catch (const ResourceError&) {
      error = std::current_exception();
      return {};
    }
  }
};

}  // namespace gradwire
