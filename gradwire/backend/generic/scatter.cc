// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Scatter.
//
// Algorithm: direct. Terms: N ranks, B bytes of output a rank. Steps: 1. The root sends every other rank its part.
// Bytes on the wire: (N - 1) B, all out of the root. Nothing is staged.
#include <cstring>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/validate_internal.h"

namespace gradwire {

void GenericChannel::scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
                             int root, const CallOptions& options) {
  validate::scatter(*this, inputs, output, count, dtype, root);
  const Fingerprint call = fingerprint_of(Operation::scatter, dtype, count, {}, root);
  run(call, options, [&] {
    generic::Exchange exchange;
    const std::size_t bytes = count * size_of(dtype);
    if (rank() != root) {
      post_receive(exchange, output, bytes, root);
    } else {
      for (int r = 0; r < size(); ++r) {
        if (r != root) post_send(exchange, inputs[static_cast<std::size_t>(r)], bytes, r);
      }
      const void* const own = inputs[static_cast<std::size_t>(root)];
      if (bytes > 0 && own != output) std::memcpy(output, own, bytes);
    }
    exchange.finish(options.deadline);
  });
}

}  // namespace gradwire
