// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Scatter.
//
// Terms: N ranks, B bytes of output a rank.
//
// Algorithm for short blocks in wide worlds: the root broadcasts all parts (broadcast.cc). Steps: ceil(log2 N). Bytes
// on the wire: N (N - 1) B. Staging: N B.
//
// Algorithm else: direct. Steps: 1. The root sends every other rank its part.
// Bytes on the wire: (N - 1) B, all out of the root. Nothing is staged.

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/base/copy.h"

namespace gradwire {

void GenericChannel::scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
                             int root, const CallOptions& options) {
  validate::scatter(*this, inputs, output, count, dtype, root);
  const Fingerprint call = fingerprint_of(Operation::scatter, dtype, count, {}, root);
  const std::size_t bytes = count * size_of(dtype);
  if (bytes > 0 && bytes <= short_block()) {
    const auto ranks = static_cast<std::size_t>(size());
    return run_staged(call, options, ranks * bytes, [&](std::span<std::byte> staging) {
      for (std::size_t r = 0; r < inputs.size(); ++r) copy_bytes(staging.data() + r * bytes, inputs[r], bytes);
      send_down(staging.data(), ranks * bytes, root, options.deadline);
      copy_bytes(output, staging.data() + static_cast<std::size_t>(rank()) * bytes, bytes);
    });
  }
  run(call, options, [&] {
    generic::Exchange exchange(*this);
    if (rank() != root) {
      post_receive(exchange, output, bytes, root);
    } else {
      for (int r = 0; r < size(); ++r) {
        if (r != root) post_send(exchange, inputs[static_cast<std::size_t>(r)], bytes, r);
      }
      const void* const own = inputs[static_cast<std::size_t>(root)];
      copy_bytes(output, own, bytes);
    }
    exchange.finish(options.deadline);
  });
}

}  // namespace gradwire
