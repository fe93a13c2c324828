// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Whether a group was shut down.
#pragma once

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// A group that can be asked whether it was shut down. Duplicates of a group still work after the group was shut down,
// so code that uses only duplicates asks the group itself. Thread-safe.
class Closable {
 public:
  virtual ~Closable() = default;
  // Returns false after shutdown(), true before.
  virtual bool is_open() const = 0;
};

// Returns false after shutdown() of a Closable group, as gradwire's own groups are; true otherwise, and for
// every group that is not Closable. Thread-safe.
inline bool is_open(const ProcessGroup& group) {
  const auto* const closable = dynamic_cast<const Closable*>(&group);
  return closable == nullptr || closable->is_open();
}

namespace internal {

// Throws InvalidArgument when is_open() is false. `owner`: the class that uses the group; `advice`: what to do with the
// owner once there is a new group, as "wrap the module again". Thread-safe.
void require_open_group(const ProcessGroup& group, const char* owner, const char* advice);

}  // namespace internal

}  // namespace gradwire
