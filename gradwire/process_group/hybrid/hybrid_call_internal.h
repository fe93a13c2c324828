// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One call of a HybridGroup, as its body sees it.
#pragma once

#include <algorithm>

#include "gradwire/process_group/hybrid/hybrid_group.h"

namespace gradwire {

class HybridGroup::Call {
 public:
  Call(const Groups& groups, Deadline deadline, CallTag tag)
      : everyone(*groups.everyone), local(*groups.local), cross(groups.cross.get()), deadline_(deadline), tag_(tag) {}

  ProcessGroup& everyone;
  ProcessGroup& local;
  ProcessGroup* const cross;  // as Groups::cross

  // For the next step: at once on this thread, within what is left of the call's time.
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
  const Deadline deadline_;
  const CallTag tag_;
};

}  // namespace gradwire
