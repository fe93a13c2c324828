// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/chunk_scatter_internal.h"

#include <algorithm>

namespace gradwire::compress {

ChunkScatter::ChunkScatter(Transport& transport, const Codec& codec, ExchangeEnds& ends, const Chunks& chunks,
                           const ChunkKeys& keys, Workspace& workspace)
    : transport_(transport),
      codec_(codec),
      ends_(ends),
      workspace_(workspace),
      chunks_(chunks),
      keys_(keys),
      rank_(transport.rank()),
      parts_(codec, keys.step(), chunks.longest(), chunks.ranks()) {}

void ChunkScatter::start() {
  encode_chunks();
  if (chunks_.ranks() == 1) return;
  if (parts_.hold_sizes()) shorten_parts();
  const std::size_t bytes = parts_.bytes();
  transfer_ = transport_.start_all_to_all(room_in(workspace_.outgoing, bytes), room_in(workspace_.incoming, bytes));
  sent_ += static_cast<std::size_t>(chunks_.ranks() - 1) * parts_.bytes_of_one();
}

void ChunkScatter::finish() { compress::finish(transfer_); }

void ChunkScatter::encode_chunks() {
  const auto outgoing = room_in(workspace_.outgoing, parts_.bytes());
  for (int r = 0; r < chunks_.ranks(); ++r) {
    if (r == rank_ && codec_.keeps_scale()) continue;
    const auto room = parts_.room(outgoing, r);
    const std::size_t size = encode_chunk(r, room);
    require_written_size(codec_, size, chunks_.length(r), keys_.step());
    parts_.write_size(outgoing, r, size);
    if (r == rank_) {
      codec_.decode(room.first(size), keys_.of_values(r, rank_), room_in(workspace_.own, chunks_.length(r)));
    } else {
      largest_ = std::max(largest_, size);
    }
  }
}

std::size_t ChunkScatter::encode_chunk(int r, std::span<std::byte> room) {
  std::size_t size = 0;
  chunks_.for_blocks_of(r, [&](const ChunkBlock& block) {
    const auto values = values_of(ends_, block, workspace_);
    size = codec_.encode_part(values, block.first, chunks_.length(r), keys_.of_values(r, rank_), room);
  });
  return size;
}

void ChunkScatter::shorten_parts() {
  const auto largest = gather_sizes(transport_, codec_, largest_, parts_.largest_encoding());
  sent_ += static_cast<std::size_t>(chunks_.ranks() - 1) * kSizeBytes;
  parts_.shorten(workspace_.outgoing, *std::max_element(largest.begin(), largest.end()), rank_);
}

void ChunkScatter::decode_received(int sender, const ChunkBlock& block, std::span<float> values) const {
  const std::size_t count = chunks_.length(rank_);
  codec_.decode_part(parts_.encoding(workspace_.incoming, sender, count), block.first, count,
                     keys_.of_values(rank_, sender), values);
}

void ChunkScatter::decode_sent(const ChunkBlock& block, std::span<float> values) const {
  const std::size_t count = chunks_.length(block.chunk);
  codec_.decode_part(parts_.encoding(workspace_.outgoing, block.chunk, count), block.first, count,
                     keys_.of_values(block.chunk, rank_), values);
}

std::span<const float> ChunkScatter::own_decoded(const ChunkBlock& block) const noexcept {
  return std::span<const float>(workspace_.own).subspan(block.first, block.length);
}

}  // namespace gradwire::compress
