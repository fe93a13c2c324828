// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How node 0 learns in an attempt that is watched how the ranks of the other nodes get on.
#pragma once

#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/mutex.h"
#include "launch/node_store.h"

namespace gradwire::launch {

// What is told last counts, on every node. Thread-safe; exchange() and clear() are for one thread.
class StepsExchange final {
 public:
  StepsExchange(int node, int nodes) : node_(node), nodes_(nodes) {}

  // As the methods of NodeCoordinator with the names tell_steps() and told_steps().
  void tell(std::string lines);
  std::vector<std::string> told() const;

  // A node other than 0 puts what is new into the store, and node 0 asks for it, about once a second. Throws as
  // NodeStore does.
  void exchange(NodeStore& store, int round);
  // A new attempt begins: forgets what was told in the attempt before.
  void clear();

 private:
  const int node_;
  const int nodes_;
  Deadline next_ = Deadline::after(Milliseconds::zero());
  mutable Mutex mutex_;
  std::string own_ GRADWIRE_GUARDED_BY(mutex_);                // not yet in the store
  std::vector<std::string> told_ GRADWIRE_GUARDED_BY(mutex_);  // by node
};

}  // namespace gradwire::launch
