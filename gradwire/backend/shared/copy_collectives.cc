// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// broadcast, all_gather, gather, scatter, all_to_all over shared memory.
//
// Direct: every rank copies what it takes out of its owner's buffer; two steps. Staged: every rank copies what it
// offers into its staging area, a window at a time, and takes from the others' areas; one step a window. What is staged
// of a window may be taken before all of it is (decision 0039). With B bytes a part and N ranks a rank writes to and
// reads from memory that others read and write
//   broadcast   B once (root) and B (others)        all_gather  B and (N-1) B
//   gather      B (others), (N-1) B (root)          scatter     (N-1) B (root) and B    all_to_all  (N-1) B and (N-1) B
#include <algorithm>

#include "gradwire/backend/shared/collectives_internal.h"
#include "gradwire/backend/shared/max_ranks.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/kernels/copy.h"

namespace gradwire::shared {
namespace {

// What a rank takes: part `part` of rank `peer`, `bytes` long, to `to`.
struct Take {
  int peer;
  std::size_t part;
  std::byte* to;
  std::size_t bytes;
};

std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }

// All that a rank takes in a call.
class Takes {
 public:
  // `result_bytes`: what the call brings this rank, its own part included.
  Takes(const Call& call, std::size_t parts, std::size_t result_bytes) noexcept
      : call_(call), parts_(parts), result_bytes_(result_bytes) {}
  void add(const Take& take) noexcept { takes_.push_back(take); }

  // How parts of `bytes` bytes go where those that offer do not take.
  Windows in_pieces(std::size_t bytes) const noexcept {
    Windows windows{call_.buffers().first_slice_of(parts_, bytes), true};
    for (const Take& take : takes_) windows.owners |= bit_of_rank(take.peer);
    return windows;
  }
  // Out of the owners' buffers.
  void copy_directly() const noexcept {
    for (const Take& take : takes_) copy(take.to, peer_part(call_, take.peer, take.part, parts_), take.bytes);
  }
  // `bytes` bytes of each, from `begin + at` on, out of the staging areas that hold a window from `begin` on.
  void copy_staged(std::size_t begin, std::size_t at, std::size_t bytes) const noexcept {
    for (const Take& take : takes_) {
      if (take.bytes <= begin + at) continue;
      copy(take.to + begin + at, call_.buffers().staged_part(take.peer, take.part, parts_) + at,
           std::min(bytes, take.bytes - begin - at));
    }
  }
  // What this rank gives itself.
  void copy_own(void* to, const void* from, std::size_t bytes) const noexcept { copy(to, from, bytes); }

 private:
  void copy(void* to, const void* from, std::size_t bytes) const noexcept {
    kernels::copy_from_peer(to, from, bytes, result_bytes_);
  }

  const Call& call_;
  const std::size_t parts_;
  const std::size_t result_bytes_;
  RankList<Take> takes_;
};

template <class Longest>
void copy(Call& call, const Fingerprint& mine, const Offer& offer, std::size_t parts, Location location,
          const Windows& windows, const Takes& takes, Longest&& longest) {
  transfer(
      call, mine, offer, parts, location, windows, longest, [&] { takes.copy_directly(); },
      [&](std::size_t begin, std::size_t at, std::size_t length) { takes.copy_staged(begin, at, length); });
}

// The largest part of an all_to_all; throws MismatchError, on all ranks, when what one sends is not what the other
// expects.
std::size_t longest_agreed_part(const Call& call, std::size_t element) {
  std::size_t longest = 0;
  std::vector<std::string> disagreements;
  for (int from = 0; from < call.size(); ++from) {
    for (int to = 0; to < call.size(); ++to) {
      const std::size_t sent = call.part_of(from, static_cast<std::size_t>(to)).bytes;
      const std::size_t expected = call.part_of(to, static_cast<std::size_t>(from)).expected;
      longest = std::max(longest, sent);
      if (sent == expected) continue;
      disagreements.push_back(concat("rank ", from, " sends ", sent / element, " elements to rank ", to,
                                     ", which expects ", expected / element));
    }
  }
  if (!disagreements.empty()) throw MismatchError(concat(call.name(), ": ", join(disagreements, "; ")));
  return longest;
}

}  // namespace

void broadcast(Call& call, void* data, std::size_t count, DType dtype, int root) {
  const std::size_t bytes = count * size_of(dtype);
  Buffers& buffers = call.buffers();
  Offer offer;
  Takes takes(call, 1, bytes);
  if (call.rank() == root) {
    offer.parts.push_back({data, bytes});
  } else {
    takes.add({root, 0, bytes_of(data), bytes});
  }
  copy(call, call.fingerprint(dtype, count, {}, root), offer, 1, buffers.locate(data, bytes), takes.in_pieces(bytes),
       takes, [&] { return bytes; });
}

void all_gather(Call& call, const void* input, std::span<void* const> outputs, std::size_t count, DType dtype) {
  const std::size_t bytes = count * size_of(dtype);
  Buffers& buffers = call.buffers();
  Takes takes(call, 1, bytes * outputs.size());
  for (int peer = 0; peer < call.size(); ++peer) {
    if (peer != call.rank()) takes.add({peer, 0, bytes_of(outputs[static_cast<std::size_t>(peer)]), bytes});
  }
  copy(call, call.fingerprint(dtype, count), Offer({input, bytes}), 1, buffers.locate(input, bytes),
       {buffers.slice_of(1)}, takes, [&] { return bytes; });
  takes.copy_own(outputs[static_cast<std::size_t>(call.rank())], input, bytes);
}

void gather(Call& call, const void* input, std::span<void* const> outputs, std::size_t count, DType dtype, int root) {
  const std::size_t bytes = count * size_of(dtype);
  Buffers& buffers = call.buffers();
  Takes takes(call, 1, bytes * outputs.size());
  for (int peer = 0; call.rank() == root && peer < call.size(); ++peer) {
    if (peer != call.rank()) takes.add({peer, 0, bytes_of(outputs[static_cast<std::size_t>(peer)]), bytes});
  }
  // Nobody takes what the root has.
  const Offer offer({input, call.rank() == root ? 0 : bytes});
  copy(call, call.fingerprint(dtype, count, {}, root), offer, 1, buffers.locate(input, bytes), takes.in_pieces(bytes),
       takes, [&] { return bytes; });
  if (call.rank() == root) takes.copy_own(outputs[static_cast<std::size_t>(root)], input, bytes);
}

void scatter(Call& call, std::span<const void* const> inputs, void* output, std::size_t count, DType dtype, int root) {
  const std::size_t bytes = count * size_of(dtype);
  const auto own = static_cast<std::size_t>(call.rank());
  const auto parts = static_cast<std::size_t>(call.size());
  Buffers& buffers = call.buffers();
  Offer offer;
  Takes takes(call, parts, bytes);
  if (call.rank() == root) {
    // What the root sends to itself stays out of the exchange.
    for (std::size_t i = 0; i < inputs.size(); ++i) offer.parts.push_back({inputs[i], i == own ? 0 : bytes});
  } else {
    takes.add({root, own, bytes_of(output), bytes});
  }
  const Location location = buffers.locate(offer, output, bytes);
  call.publish_parts(offer, location, {});
  copy(call, call.fingerprint(dtype, count, {}, root), offer, parts, location, takes.in_pieces(bytes), takes,
       [&] { return bytes; });
  if (call.rank() == root) takes.copy_own(output, inputs[own], bytes);
}

void all_to_all(Call& call, std::span<const ConstSlice> inputs, std::span<const Slice> outputs, DType dtype) {
  const auto parts = static_cast<std::size_t>(call.size());
  const auto own = static_cast<std::size_t>(call.rank());
  const std::size_t element = size_of(dtype);
  std::size_t result_bytes = 0;
  for (const Slice& output : outputs) result_bytes += output.count * element;
  Offer offer;
  RankList<std::size_t> expected;
  Takes takes(call, parts, result_bytes);
  for (std::size_t i = 0; i < parts; ++i) {
    // What a rank sends to itself stays out of the exchange.
    offer.parts.push_back({inputs[i].data, i == own ? 0 : inputs[i].count * element});
    expected.push_back(i == own ? 0 : outputs[i].count * element);
    if (i != own) takes.add({static_cast<int>(i), own, bytes_of(outputs[i].data), expected[i]});
  }
  const Location location = call.buffers().locate(offer, nullptr, 0);
  call.publish_parts(offer, location, {expected.data(), expected.size()});
  copy(call, call.fingerprint(dtype, 0), offer, parts, location, {call.buffers().slice_of(parts)}, takes,
       [&] { return longest_agreed_part(call, element); });
  takes.copy_own(outputs[own].data, inputs[own].data, inputs[own].count * element);
}

}  // namespace gradwire::shared
