// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Broadcast.
//
// Algorithm: binomial tree, pipelined. Terms: N ranks, B bytes, chunks of kChunkBytes; a rank's position p counts from
// the root, p = (rank - root) mod N. The parent of p > 0 is p without its lowest set bit; its children are p + 2^k for
// each 2^k below that bit (for the root: below N). Steps: ceil(log2 N) for a small message; ceil(log2 N) + chunks - 1
// for a large one, a rank passing chunk i on while chunk i + 1 comes. Bytes on the wire: (N - 1) B; the root sends up
// to ceil(log2 N) B. Nothing is staged.
#include <algorithm>
#include <vector>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/validate_internal.h"

namespace gradwire {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

struct Tree {
  int parent = -1;  // ranks; -1 on the root
  std::vector<int> children;
};

Tree binomial_tree(int rank, int ranks, int root) {
  const int position = (rank - root + ranks) % ranks;
  Tree tree;
  int bit = 1;
  while (bit < ranks && (position & bit) == 0) bit <<= 1;
  if (position != 0) tree.parent = (position - bit + root) % ranks;
  // The child with the largest subtree first: it has the longest way to go.
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (position + bit < ranks) tree.children.push_back((position + bit + root) % ranks);
  }
  return tree;
}

}  // namespace

void GenericChannel::broadcast(void* data, std::size_t count, DType dtype, int root, const CallOptions& options) {
  validate::broadcast(*this, data, count, dtype, root);
  const Fingerprint call = fingerprint_of(Operation::broadcast, dtype, count, {}, root);
  run(call, options, [&] { send_down(static_cast<std::byte*>(data), count * size_of(dtype), root, options.deadline); });
}

void GenericChannel::send_down(std::byte* data, std::size_t bytes, int root, Deadline deadline) {
  generic::Exchange exchange(*this);
  const Tree tree = binomial_tree(rank(), size(), root);
  for (std::size_t at = 0; at < bytes; at += kChunkBytes) {
    const std::size_t length = std::min(kChunkBytes, bytes - at);
    if (tree.parent >= 0) {
      post_receive(exchange, data + at, length, tree.parent);
      exchange.finish_receives(deadline);
    }
    for (const int child : tree.children) post_send(exchange, data + at, length, child);
  }
  exchange.finish(deadline);
}

}  // namespace gradwire
