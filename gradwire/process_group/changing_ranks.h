// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which groups have other ranks later.
#pragma once

namespace gradwire {

// A group whose ranks may change between two calls (ElasticGroup). Objects over such a group make their duplicates when
// they are made, and not at their first call: ranks that come later have missed that call.
class ChangingRanks {
 public:
  virtual ~ChangingRanks() = default;
};

}  // namespace gradwire
