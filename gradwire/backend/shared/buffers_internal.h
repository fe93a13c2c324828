// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Where data lies during a call: the ranks' own buffers, and the staging areas that data passes through where some
// buffer lies in private memory.
//
// Staged data goes a *window* at a time. A rank has two areas, used in turn, so one step a window is enough: whoever
// fills window w + 2 has passed step w + 1, at which all had finished reading window w. So a rank that has arrived at
// step w may read what an owner says it has staged of window w before all have arrived there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/shared/layout_internal.h"
#include "gradwire/backend/shared/rank_list_internal.h"
#include "gradwire/backend/shared/world_internal.h"

namespace gradwire::shared {

// What a rank offers to the others: buffers of so many bytes each (`count`), one or one a rank.
struct Offer {
  Offer() = default;
  explicit Offer(ConstSlice only) { parts.push_back(only); }

  RankList<ConstSlice> parts;
  bool reachable = true;  // false: pretend that it is private memory
};

// Of one channel, for the thread that runs its collectives.
class Buffers {
 public:
  // `region` has ChannelLayout(world.size()).stride bytes a rank. The world outlives the object.
  Buffers(World& world, Region region);

  const Region& region() const noexcept { return region_; }
  RankSlot& slot(int rank) const noexcept { return *reinterpret_cast<RankSlot*>(region_.part(rank)); }

  // Where a buffer of this rank lies for the others: in a segment, or it is staged.
  Location locate(const void* data, std::size_t bytes);
  // The same for all buffers of an offer: the first one's location where they lie in one segment; an offer of nothing
  // lies where `otherwise` does.
  Location locate(const Offer& offer, const void* otherwise, std::size_t bytes);
  // What this rank publishes of one part of an offer that lies at `location`.
  std::uint64_t offset_of(const void* part, Location location) const noexcept;
  // What `peer` published as `offset`, in the segment that this rank's last located buffer lies in.
  std::byte* resolve(int peer, std::uint64_t offset) const noexcept;
  // Whether memory of this rank that the others reach may go away with the call: that of threads may, memory of
  // allocate() stays.
  bool lends(Location location) const noexcept { return world_.shares_all_memory() && location.segment != 0; }

  std::size_t window_bytes() const noexcept { return layout_.window; }
  std::byte* input_area(int rank) const noexcept { return region_.part(rank) + layout_.input_offset(window_ & 1); }
  std::byte* result_area(int rank) const noexcept { return region_.part(rank) + layout_.result_offset(window_ & 1); }
  std::byte* last_result_area(int rank) const noexcept {
    return region_.part(rank) + layout_.result_offset((window_ - 1) & 1);
  }
  void next_window() noexcept { ++window_; }

  // The bytes that each of `parts` buffers gets of a window.
  std::size_t slice_of(std::size_t parts) const noexcept;
  // The bytes that each of `parts` buffers of `bytes` bytes gets of the first window where others take pieces of the
  // windows after it: they wait until the first one is full.
  std::size_t first_slice_of(std::size_t parts, std::size_t bytes) const noexcept;
  // Copies `bytes` bytes, at most slice_of(), from `begin` on of each buffer into this rank's input area.
  void stage(const Offer& offer, std::size_t begin, std::size_t bytes) const noexcept;
  // The same, a piece of each at a time; says after each piece how far this rank is.
  void stage_in_pieces(const Offer& offer, std::size_t begin, std::size_t bytes) const noexcept;
  // How many bytes of each part of the window under way all `owners` (a bit a rank), which stage in pieces, have
  // staged.
  std::size_t staged_by(std::uint64_t owners) const noexcept;
  // Prepares the next window, after next_window(), for an offer such as this one.
  void prepare_to_stage(const Offer& offer) const noexcept;
  const std::byte* staged_part(int peer, std::size_t part, std::size_t parts) const noexcept;

 private:
  // Bytes [from, to) of the window that begins with byte `begin` of each buffer.
  void stage_range(const Offer& offer, std::size_t begin, std::size_t from, std::size_t to) const noexcept;

  World& world_;
  const Region region_;
  const ChannelLayout layout_;
  std::uint64_t window_ = 0;  // windows staged so far, over all calls
  struct {
    std::uint64_t generation = 0;
    bool none = false;  // there is no segment at all
    std::uint64_t segment = 0;
    const std::byte* begin = nullptr;
    std::size_t bytes = 0;
    std::byte* base = nullptr;
    std::size_t stride = 0;
  } cached_segment_;
};

}  // namespace gradwire::shared
