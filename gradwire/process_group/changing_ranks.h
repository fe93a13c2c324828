// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which groups have other ranks later.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "gradwire/process_group/group_call.h"
#include "gradwire/process_group/work.h"

namespace gradwire {

class ProcessGroup;

// A group whose ranks may change between two calls (ElasticGroup). Objects over such a group make their duplicates when
// they are made, and not at their first call: ranks that come later have missed that call. Thread-safe.
class ChangingRanks {
 public:
  virtual ~ChangingRanks() = default;
  // The group that calls go to now.
  virtual std::shared_ptr<ProcessGroup> current() const = 0;

  // Whether that group has groups within and between hosts (hosts_of()), and several ranks on a host. Also true on a
  // rank that follows ranks whose group is such a one, and has no such group itself.
  virtual bool has_hosts() const = 0;
  // Makes `call` on this group by `make`, which calls the groups within and between hosts instead, and brings what
  // `call` is to write on all ranks. So for a rank that follows, which does not call `make`, all that `make` does is
  // one call. Returns the Work that `make` returns, or one that stands for it, and throws what `make` throws.
  virtual std::shared_ptr<Work> call_over_hosts(GroupCall& call,
                                                const std::function<std::shared_ptr<Work>()>& make) = 0;
  // Whether the other ranks are stand-ins, which hold what this rank holds: true on a rank that follows.
  virtual bool has_stand_ins() const = 0;
  // network_payload_bytes() of all groups that calls have gone to.
  virtual std::uint64_t sent_over_networks() const noexcept = 0;
};

}  // namespace gradwire
