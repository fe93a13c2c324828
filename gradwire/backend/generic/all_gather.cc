// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All-gather and gather.
//
// Terms: N ranks, B bytes of input a rank.
//
// Algorithm for N B up to kAtOnceBytes: every rank sends its input together with its fingerprint to every other, in the
// one step that comparing fingerprints takes anyway. Bytes on the wire: N (N - 1) B, for gather too.
//
// Algorithm of all-gather in wide worlds: for short blocks share (share.cc), ceil(log2 N) steps; else a ring. Steps:
// N - 1; in each a rank passes on to the next rank what it got from the one before, first its own. Bytes on the wire:
// N (N - 1) B, each rank (N - 1) B in and out, between neighbours only.
//
// Algorithm of gather in wide worlds, for short blocks: share, of which only the root keeps anything.
//
// Algorithm else: direct. Steps: 1. Every rank sends its input to every other (gather: to the root) and receives theirs
// where they belong. Bytes on the wire: N (N - 1) B, each rank (N - 1) B in and out (gather: (N - 1) B, all into the
// root). Nothing is staged, but N B bytes for short blocks.

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/base/copy.h"

namespace gradwire {
namespace {

void copy_own(void* output, const void* input, std::size_t bytes) noexcept { copy_bytes(output, input, bytes); }

void copy_all(std::span<void* const> outputs, std::span<const void* const> inputs, std::size_t bytes) noexcept {
  for (std::size_t r = 0; r < outputs.size(); ++r) copy_own(outputs[r], inputs[r], bytes);
}

}  // namespace

void GenericChannel::gather_in_ring(const void* input, std::span<void* const> outputs, std::size_t bytes,
                                    Deadline deadline) {
  const auto at = [&](int distance) { return static_cast<std::size_t>((rank() + size() - distance) % size()); };
  copy_own(outputs[at(0)], input, bytes);
  generic::Exchange exchange(*this);
  for (int distance = 1; distance < size(); ++distance) {
    post_receive(exchange, outputs[at(distance)], bytes, (rank() + size() - 1) % size());
    post_send(exchange, outputs[at(distance - 1)], bytes, (rank() + 1) % size());
    exchange.finish(deadline);
  }
}

void GenericChannel::all_gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype,
                                const CallOptions& options) {
  validate::all_gather(*this, input, outputs, count, dtype);
  const Fingerprint call = fingerprint_of(Operation::all_gather, dtype, count);
  const std::size_t bytes = count * size_of(dtype);
  if (bytes <= exchange_at_once_bytes()) {
    return run_at_once(call, options, input, bytes, [&](auto inputs) { copy_all(outputs, inputs, bytes); });
  }
  if (bytes > 0 && bytes <= short_block()) {
    return run_staged(call, options, outputs.size() * bytes, [&](std::span<std::byte> staging) {
      share(input, staging.data(), bytes, options.deadline);
      for (std::size_t r = 0; r < outputs.size(); ++r) copy_bytes(outputs[r], staging.data() + r * bytes, bytes);
    });
  }
  run(call, options, [&] {
    if (is_wide()) return gather_in_ring(input, outputs, bytes, options.deadline);
    generic::Exchange exchange(*this);
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() - step + size()) % size();
      post_receive(exchange, outputs[static_cast<std::size_t>(from)], bytes, from);
    }
    for (int step = 1; step < size(); ++step) post_send(exchange, input, bytes, (rank() + step) % size());
    copy_own(outputs[static_cast<std::size_t>(rank())], input, bytes);
    exchange.finish(options.deadline);
  });
}

void GenericChannel::gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype, int root,
                            const CallOptions& options) {
  validate::gather(*this, input, outputs, count, dtype, root);
  const Fingerprint call = fingerprint_of(Operation::gather, dtype, count, {}, root);
  const std::size_t bytes = count * size_of(dtype);
  if (bytes <= at_once_bytes()) {
    return run_at_once(call, options, input, bytes, [&](auto inputs) {
      if (rank() == root) copy_all(outputs, inputs, bytes);
    });
  }
  if (bytes > 0 && bytes <= short_block()) {
    const std::size_t all = static_cast<std::size_t>(size()) * bytes;
    return run_staged(call, options, all, [&](std::span<std::byte> staging) {
      share(input, staging.data(), bytes, options.deadline);
      for (std::size_t r = 0; r < outputs.size(); ++r) copy_bytes(outputs[r], staging.data() + r * bytes, bytes);
    });
  }
  run(call, options, [&] {
    generic::Exchange exchange(*this);
    if (rank() != root) {
      post_send(exchange, input, bytes, root);
    } else {
      for (int r = 0; r < size(); ++r) {
        if (r != root) post_receive(exchange, outputs[static_cast<std::size_t>(r)], bytes, r);
      }
      copy_own(outputs[static_cast<std::size_t>(root)], input, bytes);
    }
    exchange.finish(options.deadline);
  });
}

}  // namespace gradwire
