// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which groups have other ranks later.
#pragma once

#include <memory>

namespace gradwire {

class ProcessGroup;

// A group whose ranks may change between two calls (ElasticGroup). Objects over such a group make their duplicates when
// they are made, and not at their first call: ranks that come later have missed that call.
class ChangingRanks {
 public:
  virtual ~ChangingRanks() = default;
  // The group that calls go to now. Thread-safe.
  virtual std::shared_ptr<ProcessGroup> current() const = 0;
};

}  // namespace gradwire
