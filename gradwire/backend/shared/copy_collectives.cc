// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// broadcast, all_gather, gather, scatter, all_to_all over shared memory.
//
// Direct: every rank copies what it takes out of its owner's buffer; two steps. Staged: every rank copies what it
// offers into its staging area, a window at a time, and takes from the others' areas; one step a window. With B bytes a
// part and N ranks a rank writes to and reads from memory that others read and write
//   broadcast   B once (root) and B (others)        all_gather  B and (N-1) B
//   gather      B and, on the root, (N-1) B         scatter     N B (root) and B        all_to_all  (N-1) B and (N-1) B
#include <algorithm>
#include <cstring>

#include "gradwire/backend/shared/call_internal.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::shared {
namespace {

constexpr std::size_t kSliceAlignment = 64;

std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }

void move_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

std::size_t SharedChannel::slice_of(std::size_t parts) const noexcept {
  return layout_.window / parts / kSliceAlignment * kSliceAlignment;
}

Location SharedChannel::locate(const Offer& offer, const void* otherwise, std::size_t bytes) {
  if (!offer.reachable) return {};
  if (offer.parts.empty()) return locate(otherwise, bytes);
  const Location first = locate(offer.parts[0].data, offer.parts[0].count);
  for (const ConstSlice& part : offer.parts) {
    if (locate(part.data, part.count).segment != first.segment) return {};
  }
  return first;
}

void SharedChannel::publish_parts(const Offer& offer, Location location, std::span<const std::size_t> expected) {
  auto& entries = slot(rank()).parts[(step_ + 1) & 1];  // read after the step that comes next
  for (std::size_t i = 0; i < offer.parts.size(); ++i) {
    const ConstSlice& part = offer.parts[i];
    const std::uint64_t offset = location.segment == 0 ? 0 : locate(part.data, part.count).offset;
    entries[i] = {offset, part.count, expected.empty() ? 0 : expected[i]};
  }
}

void SharedChannel::stage(const Offer& offer, std::size_t slice, std::size_t begin) const noexcept {
  std::byte* area = input_area(rank(), window_);
  for (std::size_t i = 0; i < offer.parts.size(); ++i) {
    const ConstSlice& part = offer.parts[i];
    if (part.count <= begin) continue;
    std::memcpy(area + i * slice, static_cast<const std::byte*>(part.data) + begin,
                std::min(slice, part.count - begin));
  }
}

const std::byte* SharedChannel::peer_part(int peer, std::size_t part, std::size_t parts) const noexcept {
  return resolve(peer, parts == 1 ? line(peer).location.offset : slot(peer).parts[step_ & 1][part].offset);
}

const std::byte* SharedChannel::staged_part(int peer, std::size_t part, std::size_t parts) const noexcept {
  return input_area(peer, window_) + part * slice_of(parts);
}

void SharedChannel::copy(const Fingerprint& mine, const Offer& offer, std::size_t parts, Location location,
                         std::size_t part_bytes, std::span<const Take> takes) {
  if (parts > 1) publish_parts(offer, location, {});
  transfer(
      mine, offer, parts, location, [&] { return part_bytes; },
      [&] {
        for (const Take& take : takes) move_bytes(take.to, peer_part(take.peer, take.part, parts), take.bytes);
      },
      [&](std::size_t begin, std::size_t length) {
        for (const Take& take : takes) move_bytes(take.to + begin, staged_part(take.peer, take.part, parts), length);
      });
}

void SharedChannel::broadcast(void* data, std::size_t count, DType dtype, int root, const CallOptions& options) {
  validate::broadcast(*this, data, count, dtype, root);
  collective(Operation::broadcast, options, [&] {
    const std::size_t bytes = count * size_of(dtype);
    Offer offer;
    std::vector<Take> takes;
    if (rank() == root) {
      offer.parts = {{data, bytes}};
    } else {
      takes = {{root, 0, bytes_of(data), bytes}};
    }
    copy(fingerprint(dtype, count, {}, root), offer, 1, locate(data, bytes), bytes, takes);
  });
}

void SharedChannel::all_gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype,
                               const CallOptions& options) {
  validate::all_gather(*this, input, outputs, count, dtype);
  collective(Operation::all_gather, options, [&] {
    const std::size_t bytes = count * size_of(dtype);
    std::vector<Take> takes;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) takes.push_back({peer, 0, bytes_of(outputs[static_cast<std::size_t>(peer)]), bytes});
    }
    copy(fingerprint(dtype, count), {{{input, bytes}}}, 1, locate(input, bytes), bytes, takes);
    move_bytes(bytes_of(outputs[static_cast<std::size_t>(rank())]), static_cast<const std::byte*>(input), bytes);
  });
}

void SharedChannel::gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype, int root,
                           const CallOptions& options) {
  validate::gather(*this, input, outputs, count, dtype, root);
  collective(Operation::gather, options, [&] {
    const std::size_t bytes = count * size_of(dtype);
    std::vector<Take> takes;
    for (int peer = 0; rank() == root && peer < size(); ++peer) {
      if (peer != rank()) takes.push_back({peer, 0, bytes_of(outputs[static_cast<std::size_t>(peer)]), bytes});
    }
    copy(fingerprint(dtype, count, {}, root), {{{input, bytes}}}, 1, locate(input, bytes), bytes, takes);
    if (rank() == root) {
      move_bytes(bytes_of(outputs[static_cast<std::size_t>(root)]), static_cast<const std::byte*>(input), bytes);
    }
  });
}

void SharedChannel::scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype, int root,
                            const CallOptions& options) {
  validate::scatter(*this, inputs, output, count, dtype, root);
  collective(Operation::scatter, options, [&] {
    const std::size_t bytes = count * size_of(dtype);
    Offer offer;
    std::vector<Take> takes;
    if (rank() == root) {
      for (const void* input : inputs) offer.parts.push_back({input, bytes});
    } else {
      takes = {{root, static_cast<std::size_t>(rank()), bytes_of(output), bytes}};
    }
    const auto parts = static_cast<std::size_t>(size());
    copy(fingerprint(dtype, count, {}, root), offer, parts, locate(offer, output, bytes), bytes, takes);
    if (rank() == root) {
      move_bytes(bytes_of(output), static_cast<const std::byte*>(inputs[static_cast<std::size_t>(root)]), bytes);
    }
  });
}

void SharedChannel::all_to_all(std::span<const ConstSlice> inputs, std::span<const Slice> outputs, DType dtype,
                               const CallOptions& options) {
  validate::all_to_all(*this, inputs, outputs, dtype);
  collective(Operation::all_to_all, options, [&] {
    const auto parts = static_cast<std::size_t>(size());
    const auto own = static_cast<std::size_t>(rank());
    const std::size_t element = size_of(dtype);
    Offer offer;
    std::vector<std::size_t> expected;
    std::vector<Take> takes;
    for (std::size_t i = 0; i < parts; ++i) {
      // What a rank sends to itself stays out of the exchange.
      offer.parts.push_back({inputs[i].data, i == own ? 0 : inputs[i].count * element});
      expected.push_back(i == own ? 0 : outputs[i].count * element);
      if (i != own) takes.push_back({static_cast<int>(i), own, bytes_of(outputs[i].data), expected[i]});
    }
    const Location location = locate(offer, nullptr, 0);
    publish_parts(offer, location, expected);
    transfer(
        fingerprint(dtype, 0), offer, parts, location, [&] { return longest_agreed_part(element); },
        [&] {
          for (const Take& take : takes) move_bytes(take.to, peer_part(take.peer, take.part, parts), take.bytes);
        },
        [&](std::size_t begin, std::size_t length) {
          for (const Take& take : takes) {
            if (take.bytes <= begin) continue;
            move_bytes(take.to + begin, staged_part(take.peer, take.part, parts), std::min(length, take.bytes - begin));
          }
        });
    move_bytes(bytes_of(outputs[own].data), static_cast<const std::byte*>(inputs[own].data),
               inputs[own].count * element);
  });
}

std::size_t SharedChannel::longest_agreed_part(std::size_t element) const {
  std::size_t longest = 0;
  std::vector<std::string> disagreements;
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      const std::size_t sent = slot(from).parts[step_ & 1][to].bytes;
      const std::size_t expected = slot(to).parts[step_ & 1][from].expected;
      longest = std::max(longest, sent);
      if (sent == expected) continue;
      disagreements.push_back(concat("rank ", from, " sends ", sent / element, " elements to rank ", to,
                                     ", which expects ", expected / element));
    }
  }
  if (!disagreements.empty()) throw MismatchError(concat(in_call(), ": ", join(disagreements, "; ")));
  return longest;
}

}  // namespace gradwire::shared
