// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The second stage of the compressed all-reduce: the owner of each chunk encodes the chunk's mean for all ranks.
#pragma once

#include <cstddef>
#include <span>

#include "gradwire/compress/chunk_keys_internal.h"
#include "gradwire/compress/chunks_internal.h"
#include "gradwire/compress/exchange_internal.h"

namespace gradwire::compress {

// The encodings of all means. The order of calls: start() -> finish() -> decode(). Uses `outgoing_mean` and `incoming`
// of the workspace.
class ChunkMeans final {
 public:
  // What is passed by reference must outlive this object; `codec` too, the codec for means.
  ChunkMeans(Transport& transport, const Codec& codec, const Chunks& chunks, const ChunkKeys& keys,
             Workspace& workspace) noexcept
      : transport_(transport),
        codec_(codec),
        workspace_(workspace),
        chunks_(chunks),
        keys_(keys),
        rank_(transport.rank()) {}

  // Encodes the mean of this rank's chunk, of which mean_of(block) returns a block, and starts to all-gather the
  // encodings. mean_of() is called for all blocks in order, and may read `incoming`. Collective. Throws InvalidArgument
  // when the codec writes another size than it says.
  template <class MeanOf>
  void start(const MeanOf& mean_of) {
    const std::size_t count = chunks_.length(rank_);
    const auto room = room_in(workspace_.outgoing_mean, codec_.encoded_size(chunks_.longest(), keys_.step()));
    std::size_t size = 0;
    chunks_.for_blocks_of(rank_, [&](const ChunkBlock& block) {
      size = codec_.encode_part(mean_of(block), block.first, count, keys_.of_mean(rank_), room);
    });
    require_written_size(codec_, size, count, keys_.step());
    encodings_ = start_gathering(
        transport_, codec_, keys_.step(), size, chunks_.longest(), [this](int r) { return chunks_.length(r); }, room,
        workspace_.incoming);
  }

  // Waits for the encodings of the other ranks.
  void finish() { compress::finish(encodings_.transfer); }

  // Decodes a block of a mean, with the same bits on all ranks.
  void decode(const ChunkBlock& block, std::span<float> mean) const {
    codec_.decode_part(encodings_.parts[static_cast<std::size_t>(block.chunk)], block.first,
                       chunks_.length(block.chunk), keys_.of_mean(block.chunk), mean);
  }

  // The bytes that this rank has sent.
  std::size_t sent() const noexcept { return encodings_.sent; }

 private:
  Transport& transport_;
  const Codec& codec_;
  Workspace& workspace_;
  const Chunks chunks_;
  const ChunkKeys keys_;
  const int rank_;
  Encodings encodings_;
};

}  // namespace gradwire::compress
