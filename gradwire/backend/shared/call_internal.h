// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a collective works with: the call under way, the steps in which it meets the other ranks, and the buffers.
//
// A call is *direct* when every rank's buffer lies where all can read it: each rank then works straight on the others'
// buffers, and a last step, the *exit*, keeps a buffer from going back to its owner while others use it. Any other call
// is *staged*: buffers pass through the ranks' staging areas. Which of the two is decided after entry from what all
// ranks published, hence equally on all of them.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "gradwire/backend/shared/buffers_internal.h"
#include "gradwire/base/trace.h"

namespace gradwire::shared {

class Call {
 public:
  // All of one channel; they outlive the object.
  Call(const World& world, HostMachine& machine, Steps<HostMachine>& steps, Buffers& buffers) noexcept
      : world_(world), machine_(machine), steps_(steps), buffers_(buffers) {}

  int rank() const noexcept { return steps_.rank(); }
  int size() const noexcept { return steps_.size(); }
  // "all_reduce (call 3) on rank 1 of 4", where calls count from 1, or as the caller names the call.
  std::string name() const;
  Deadline deadline() const noexcept { return options_.deadline; }
  Buffers& buffers() const noexcept { return buffers_; }
  std::uint32_t sequence() const noexcept { return sequence_; }

  void begin(Operation operation, const CallOptions& options) noexcept;
  void finish() noexcept;  // well, or with an error that all ranks agreed on

  // What this rank called.
  Fingerprint fingerprint(DType dtype, std::size_t count, ReduceOp op = {}, int root = -1) const noexcept;

  // The entry: meets the other ranks, compares fingerprints, learns where all buffers lie. Throws MismatchError,
  // PeerError, TimeoutError, AbortedError; so do the next two.
  void enter(const Fingerprint& mine, Location location);
  // A further step, and the last one of a call that worked on others' buffers.
  void meet();
  void exit();
  // A further step, at which `owners` (a bit a rank) stage `bytes` bytes of each part in pieces. While they still do,
  // `take(begin, length)` is called for consecutive ranges that all of them have staged; the return value says up to
  // where.
  template <class Take>
  std::size_t meet_and_take(std::uint64_t owners, std::size_t bytes, Take&& take);
  // Throws where nothing is left to wait for; called now and then by what waits for something other than a step.
  void check_others() { require(steps_.look(rank(), false)); }

  // After entry.
  bool all_in_place() const noexcept;  // the call is direct
  bool all_staged() const noexcept;    // every rank had to fill its staging area before entry
  std::byte* buffer_of(int peer) const noexcept { return buffers_.resolve(peer, steps_.card(peer).location.offset); }

  // Lists of buffers, one a rank: what this rank publishes before entry, and what a rank published, after it.
  void publish_parts(const Offer& offer, Location location, std::span<const std::size_t> expected);
  const PartEntry& part_of(int peer, std::size_t part) const noexcept {
    return buffers_.slot(peer).parts[steps_.step() & 1][part];
  }

 private:
  // Looks for a little while whether `owners` have staged more than `bytes` bytes of each part, and returns how many.
  std::size_t look_for_more_than(std::size_t bytes, std::uint64_t owners) const noexcept;
  void require(const StepEnd& end) const {
    if (!end.met()) [[unlikely]] {
      throw_end(end);
    }
  }
  [[noreturn]] void throw_end(const StepEnd& end) const;
  [[noreturn]] void throw_deaths(const std::vector<int>& dead) const;
  std::vector<int> dead_ranks() const;
  void compare_fingerprints(const Fingerprint& mine) const;
  std::vector<int> missing_ranks() const;

  const World& world_;
  HostMachine& machine_;
  Steps<HostMachine>& steps_;
  Buffers& buffers_;
  std::uint32_t sequence_ = 0;
  Operation operation_ = Operation::none;
  CallOptions options_;
};

template <class Take>
std::size_t Call::meet_and_take(std::uint64_t owners, std::size_t bytes, Take&& take) {
  steps_.arrive_at_next();
  std::size_t taken = 0;
  while (owners != 0 && taken < bytes) {
    const std::size_t staged = std::min(bytes, look_for_more_than(taken, owners));
    if (staged == taken) break;
    take(taken, staged - taken);
    taken = staged;
  }
  require(steps_.await_others());
  return taken;
}

// How staged data goes in a call.
struct Windows {
  std::size_t first;         // bytes of each part in the first window, the same on all ranks
  bool in_pieces = false;    // ranks stage the windows after it in pieces: the same on all ranks
  std::uint64_t owners = 0;  // of the pieces that this rank takes: a bit a rank
};

// One call in which ranks offer buffers and take from others' buffers. After entry it runs `direct()` once, with
// everybody's buffers readable through peer_part(), or `window(begin, at, length)` for consecutive ranges of the parts,
// with `length` bytes from `begin + at` on of every part readable from Buffers::staged_part() + at on. `longest()` is
// asked after entry for the largest number of bytes in a part, and must be the same on all ranks.
template <class Longest, class Direct, class Window>
void transfer(Call& call, const Fingerprint& mine, const Offer& offer, std::size_t parts, Location location,
              const Windows& windows, Longest&& longest, Direct&& direct, Window&& window) {
  Buffers& buffers = call.buffers();
  const std::size_t slice = buffers.slice_of(parts);
  // A private buffer makes the call a staged one whatever the others have, so its first window can be filled before
  // entry.
  const bool staged_early = location.is_staged();
  if (staged_early) buffers.stage(offer, 0, windows.first);
  call.enter(mine, location);
  const std::size_t bytes = longest();
  if (call.all_in_place()) {
    trace::point("collective.copy", call.rank(), call.sequence());
    direct();
    trace::point("collective.exit", call.rank(), call.sequence());
    call.exit();
    return;
  }
  if (!call.all_staged()) {
    if (!staged_early) buffers.stage(offer, 0, windows.first);
    call.meet();
  }
  trace::point("collective.copy", call.rank(), call.sequence());
  for (std::size_t begin = 0, length = windows.first; begin < bytes; begin += length, length = slice) {
    const std::size_t all = std::min(length, bytes - begin);
    std::size_t taken = 0;
    if (begin != 0) {
      if (windows.in_pieces && !offer.parts.empty()) {
        buffers.stage_in_pieces(offer, begin, all);
      } else {
        buffers.stage(offer, begin, all);
      }
      taken =
          call.meet_and_take(windows.owners, all, [&](std::size_t at, std::size_t some) { window(begin, at, some); });
    }
    if (taken < all) window(begin, taken, all - taken);
    buffers.next_window();
  }
  buffers.prepare_to_stage(offer);
  trace::point("collective.exit", call.rank(), call.sequence());
}

// What `peer` offers as its part `part` of `parts`; in a direct call.
inline const std::byte* peer_part(const Call& call, int peer, std::size_t part, std::size_t parts) noexcept {
  return parts == 1 ? call.buffer_of(peer) : call.buffers().resolve(peer, call.part_of(peer, part).offset);
}

}  // namespace gradwire::shared
