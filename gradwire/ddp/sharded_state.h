// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// State of which each rank holds a part. The parts are dealt anew when the ranks change (gradwire/elastic).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// The state consists of entries, such as the memory of an optimizer for one parameter. Each entry has one owner, a rank
// of the group. With copies, the next rank (the owner's rank plus one, modulo the size) holds the entry too, with the
// same bits. Entries have numbers from 0, the same on all ranks.
//
// No method communicates. One thread calls them, between steps.
class ShardedState {
 public:
  // Which entries a rank holds after undo_step(): `counted` are those from before the step, `undone` those from after
  // the step. Without an undone step there are only `counted` ones.
  enum class Version { counted, undone };
  // How a rank holds an entry.
  enum class Holds : char { no = 'n', copy = 'c', own = 'o' };
  // Entries that one rank sends to others: their numbers, and what save_entries() made of them.
  struct Parcel {
    std::vector<std::size_t> entries;  // their numbers
    std::string bytes;                 // of all of them
  };
  // What a rank gets in a new epoch.
  struct Deal {
    // The rank whose entries these are, in a group of this size; with copies, also those of the rank before it.
    int rank = 0;
    int size = 1;
    bool copies = true;
    Version version = Version::counted;  // this rank goes on with its own entries of this version
    std::vector<Parcel> parcels = {};    // take precedence over what this rank holds itself
  };

  virtual ~ShardedState() = default;

  // The group over whose ranks the state is shared out.
  virtual std::shared_ptr<ProcessGroup> sharding_group() const = 0;
  // Text that is equal on ranks that can take over each other's entries. Throws UnsupportedError for a state that
  // cannot be dealt anew.
  virtual std::string sharding_identity() const = 0;
  // The owner of each entry in a group of `size` ranks. A function of `size` alone.
  virtual std::vector<int> owners_among(int size) const = 0;

  // A step begins: from now on the object keeps what it changes, until the next begin_step() or deal().
  virtual void begin_step() = 0;
  // The step does not count on this rank. Brings the parameters back, and keeps the entries from before and after the
  // step (see Version). Returns the parameters that were brought back, with their version counters before the object
  // changed them. Nothing when the object has changed nothing.
  virtual std::vector<std::pair<at::Tensor, std::uint32_t>> undo_step() = 0;

  // How this rank holds each entry.
  virtual std::vector<Holds> held(Version version) const = 0;
  // The entries as bytes. The rank holds them.
  virtual std::string save_entries(const std::vector<std::size_t>& entries, Version version) const = 0;
  // The entries as bytes, from a checkpoint of the whole state in the file `path`. Throws an error when the file cannot
  // be read or is no such checkpoint.
  virtual std::string read_entries(const std::vector<std::size_t>& entries, const std::string& path) const = 0;
  // The bytes of entries that remember nothing.
  virtual std::string new_entries(const std::vector<std::size_t>& entries) const = 0;
  // What all ranks have in common besides the entries, such as learning rates; and back.
  virtual std::string save_common() const = 0;
  virtual void load_common(const std::string& bytes) = 0;
  // From now on this rank has the entries of rank `deal.rank` of `deal.size`. Each of these entries is in a parcel, or
  // is held by this rank in `deal.version`.
  virtual void deal(const Deal& deal) = 0;
};

}  // namespace gradwire
