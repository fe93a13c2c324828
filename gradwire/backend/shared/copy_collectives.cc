// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// broadcast, all_gather, gather, scatter, all_to_all over shared memory.
//
// Direct: every rank copies what it takes out of its owner's buffer; two steps. Staged: every rank copies what it
// offers into its staging area, a window at a time, and takes from the others' areas; one step a window. With B bytes a
// part and N ranks a rank writes to and reads from memory that others read and write
//   broadcast   B once (root) and B (others)        all_gather  B and (N-1) B
//   gather      B (others), (N-1) B (root)          scatter     (N-1) B (root) and B    all_to_all  (N-1) B and (N-1) B
#include <algorithm>

#include "gradwire/backend/shared/collectives_internal.h"
#include "gradwire/base/copy.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

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

void copy(Call& call, const Fingerprint& mine, const Offer& offer, std::size_t parts, Location location,
          std::size_t part_bytes, const RankList<Take>& takes) {
  if (parts > 1) call.publish_parts(offer, location, {});
  transfer(
      call, mine, offer, parts, location, [&] { return part_bytes; },
      [&] {
        for (const Take& take : takes) copy_bytes(take.to, peer_part(call, take.peer, take.part, parts), take.bytes);
      },
      [&](std::size_t begin, std::size_t length) {
        for (const Take& take : takes) {
          copy_bytes(take.to + begin, call.buffers().staged_part(take.peer, take.part, parts), length);
        }
      });
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
  Offer offer;
  RankList<Take> takes;
  if (call.rank() == root) {
    offer.parts.push_back({data, bytes});
  } else {
    takes.push_back({root, 0, bytes_of(data), bytes});
  }
  copy(call, call.fingerprint(dtype, count, {}, root), offer, 1, call.buffers().locate(data, bytes), bytes, takes);
}

void all_gather(Call& call, const void* input, std::span<void* const> outputs, std::size_t count, DType dtype) {
  const std::size_t bytes = count * size_of(dtype);
  RankList<Take> takes;
  for (int peer = 0; peer < call.size(); ++peer) {
    if (peer != call.rank()) takes.push_back({peer, 0, bytes_of(outputs[static_cast<std::size_t>(peer)]), bytes});
  }
  copy(call, call.fingerprint(dtype, count), Offer({input, bytes}), 1, call.buffers().locate(input, bytes), bytes,
       takes);
  copy_bytes(bytes_of(outputs[static_cast<std::size_t>(call.rank())]), static_cast<const std::byte*>(input), bytes);
}

void gather(Call& call, const void* input, std::span<void* const> outputs, std::size_t count, DType dtype, int root) {
  const std::size_t bytes = count * size_of(dtype);
  RankList<Take> takes;
  for (int peer = 0; call.rank() == root && peer < call.size(); ++peer) {
    if (peer != call.rank()) takes.push_back({peer, 0, bytes_of(outputs[static_cast<std::size_t>(peer)]), bytes});
  }
  // Nobody takes what the root has.
  const Offer offer({input, call.rank() == root ? 0 : bytes});
  copy(call, call.fingerprint(dtype, count, {}, root), offer, 1, call.buffers().locate(input, bytes), bytes, takes);
  if (call.rank() == root) {
    copy_bytes(bytes_of(outputs[static_cast<std::size_t>(root)]), static_cast<const std::byte*>(input), bytes);
  }
}

void scatter(Call& call, std::span<const void* const> inputs, void* output, std::size_t count, DType dtype, int root) {
  const std::size_t bytes = count * size_of(dtype);
  const auto own = static_cast<std::size_t>(call.rank());
  Offer offer;
  RankList<Take> takes;
  if (call.rank() == root) {
    // What the root sends to itself stays out of the exchange.
    for (std::size_t i = 0; i < inputs.size(); ++i) offer.parts.push_back({inputs[i], i == own ? 0 : bytes});
  } else {
    takes.push_back({root, own, bytes_of(output), bytes});
  }
  const auto parts = static_cast<std::size_t>(call.size());
  copy(call, call.fingerprint(dtype, count, {}, root), offer, parts, call.buffers().locate(offer, output, bytes), bytes,
       takes);
  if (call.rank() == root) {
    copy_bytes(bytes_of(output), static_cast<const std::byte*>(inputs[own]), bytes);
  }
}

void all_to_all(Call& call, std::span<const ConstSlice> inputs, std::span<const Slice> outputs, DType dtype) {
  const auto parts = static_cast<std::size_t>(call.size());
  const auto own = static_cast<std::size_t>(call.rank());
  const std::size_t element = size_of(dtype);
  Offer offer;
  RankList<std::size_t> expected;
  RankList<Take> takes;
  for (std::size_t i = 0; i < parts; ++i) {
    // What a rank sends to itself stays out of the exchange.
    offer.parts.push_back({inputs[i].data, i == own ? 0 : inputs[i].count * element});
    expected.push_back(i == own ? 0 : outputs[i].count * element);
    if (i != own) takes.push_back({static_cast<int>(i), own, bytes_of(outputs[i].data), expected[i]});
  }
  const Location location = call.buffers().locate(offer, nullptr, 0);
  call.publish_parts(offer, location, {expected.data(), expected.size()});
  transfer(
      call, call.fingerprint(dtype, 0), offer, parts, location, [&] { return longest_agreed_part(call, element); },
      [&] {
        for (const Take& take : takes) copy_bytes(take.to, peer_part(call, take.peer, take.part, parts), take.bytes);
      },
      [&](std::size_t begin, std::size_t length) {
        for (const Take& take : takes) {
          if (take.bytes <= begin) continue;
          copy_bytes(take.to + begin, call.buffers().staged_part(take.peer, take.part, parts),
                     std::min(length, take.bytes - begin));
        }
      });
  copy_bytes(bytes_of(outputs[own].data), static_cast<const std::byte*>(inputs[own].data), inputs[own].count * element);
}

}  // namespace gradwire::shared
