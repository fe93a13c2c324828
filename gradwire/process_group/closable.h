// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Whether a group was shut down.
#pragma once

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// A group that knows. Its duplicates live on without it, so who uses duplicates alone asks here. Thread-safe.
class Closable {
 public:
  virtual ~Closable() = default;
  // False after shutdown().
  virtual bool is_open() const = 0;
};

// False after shutdown() of one of gradwire's own groups; true otherwise, and for a user's group.
inline bool is_open(const ProcessGroup& group) {
  const auto* const closable = dynamic_cast<const Closable*>(&group);
  return closable == nullptr || closable->is_open();
}

}  // namespace gradwire
