// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How state of which each member holds a part comes to the members of a new epoch.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "gradwire/ddp/sharded_state.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

struct ShardOptions {
  bool copies = true;      // each member keeps a copy of the entries of the member before it
  std::string checkpoint;  // a file with the whole state, for entries that no member holds; empty: none
};

// Entries that this member held before an exchange that does not count yet, and was not dealt again: by number, as
// save_entries() writes the entry alone. They come back when those to which they were dealt die before a step counts.
using KeptEntries = std::map<std::size_t, std::string>;

// Collective over `group`, at the beginning of an epoch. `version`: the entries of this member that are those of the
// job; nothing when it has none. Each entry goes from a member that holds it to its new owner and, with copies, to the
// member after that. An entry that no member holds any more comes from the checkpoint on its new owner, or begins anew
// where there is none; the new owner logs a line that says which.
//
// `kept`: from the exchanges since the last step that counted; empty after a step has counted. Becomes what this member
// keeps once the deal is dealt, so the caller passes a copy: until then the entries before are needed.
//
// Returns what to pass to state.deal(), and does not change the state: an error of the group leaves the state as it
// was. Throws what the group throws.
ShardedState::Deal exchange_shards(ProcessGroup& group, const ShardedState& state, const ShardOptions& options,
                                   std::optional<ShardedState::Version> version, KeptEntries& kept);

}  // namespace gradwire::internal
