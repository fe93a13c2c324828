// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The group of a layer that communicates in its forward and backward passes.
#pragma once

#include <memory>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Holds a group, and the duplicate of the group (ProcessGroup::dup()) over which a layer makes its collectives, so that
// they never match those of the program or of DDP. All layers over one group share one duplicate, which lives as long
// as the group: ranks may drop and keep their layers as they like.
//
// A copy has the same group and the same duplicate. Threads: one thread at a time uses an object.
class LayerGroup {
 public:
  // A null `group` means the default group at the time of duplicate(); without a default group, this rank alone. Does
  // not communicate, but for the group of an elastic job (elastic/elastic.h), which is duplicated here: all ranks make
  // their layers in the same order, before run(), also those that come later.
  explicit LayerGroup(std::shared_ptr<ProcessGroup> group);

  // The group that the constructor got; may be null.
  const std::shared_ptr<ProcessGroup>& group() const noexcept { return group_; }

  // The group for the layer's collectives: the duplicate, or the group itself where it has no duplicates. Null in a
  // group of one rank. The first call of all layers over the group is collective; it throws what ProcessGroup::dup()
  // throws.
  std::shared_ptr<ProcessGroup> duplicate();

 private:
  void duplicate_of(const std::shared_ptr<ProcessGroup>& group);

  std::shared_ptr<ProcessGroup> group_;
  // The group that `duplicate_` was made of: the default group may be another one the next time.
  std::weak_ptr<ProcessGroup> duplicated_;
  std::shared_ptr<ProcessGroup> duplicate_;
};

}  // namespace gradwire
