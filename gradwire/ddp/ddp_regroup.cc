// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The part of DistributedDataParallel that goes on over other ranks.
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_core_internal.h"

namespace gradwire {

void DdpCore::leave_group() {
  Parts& p = *parts_;
  if (p.reducer == nullptr) return;
  p.reducer->require_outside_hook("leave_group()");
  p.reducer->retire();
  // Their duplicates of the group go with them.
  p.set_reducer(nullptr);
  p.delayed_reduction.reset();
  if (p.low_precision) p.low_precision->restore();
}

void DdpCore::enter_group(const std::vector<std::string>& order) {
  Parts& p = *parts_;
  if (p.reducer != nullptr) {
    throw InvalidArgument("enter_group() of a DistributedDataParallel was called without leave_group() before it.");
  }
  try {
    p.make_reducer();
    p.reducer->set_bucket_order(order);
    if (p.hook != nullptr) p.reducer->set_hook(p.hook);
    p.reducer->attach();
  } catch (...) {
    p.set_reducer(nullptr);
    p.delayed_reduction.reset();
    throw;
  }
  p.sync = true;
  p.buffers_due = true;
  p.synchronized_forward = false;
  p.joined_ever = false;
  p.divide_by_initial_world_size = true;
  p.has_taken_part.clear();
}

}  // namespace gradwire
