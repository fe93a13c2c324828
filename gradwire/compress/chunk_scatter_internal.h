// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The first stage of the compressed all-reduce: each rank sends every other rank the encoding of that rank's chunk.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "gradwire/compress/chunk_keys_internal.h"
#include "gradwire/compress/chunks_internal.h"
#include "gradwire/compress/equal_parts_internal.h"
#include "gradwire/compress/exchange_internal.h"

namespace gradwire::compress {

// The encodings that this rank sends and receives, and what they decode to. The order of calls: start() -> finish() ->
// the others. Uses `outgoing`, `incoming`, `own` and `values` of the workspace.
class ChunkScatter final {
 public:
  // What is passed by reference must outlive this object.
  ChunkScatter(Transport& transport, const Codec& codec, ExchangeEnds& ends, const Chunks& chunks,
               const ChunkKeys& keys, Workspace& workspace);

  // Encodes this rank's values, and starts to send. Collective. Throws InvalidArgument, before anything is sent, when
  // the codec writes another size than it says; MismatchError when a rank announces a size that is too large.
  void start();
  // Waits for what the other ranks send.
  void finish();

  // Decodes a block of this rank's chunk, as `sender` encoded its values. Only until the incoming buffer is used again.
  void decode_received(int sender, const ChunkBlock& block, std::span<float> values) const;
  // Decodes a block of another rank's chunk, as this rank encoded its values.
  void decode_sent(const ChunkBlock& block, std::span<float> values) const;
  // This rank's values in a block of its own chunk, as another rank would decode them. Only where the codec does not
  // keep the scale of values.
  std::span<const float> own_decoded(const ChunkBlock& block) const noexcept;

  // The bytes that this rank has sent.
  std::size_t sent() const noexcept { return sent_; }

 private:
  void encode_chunks();
  std::size_t encode_chunk(int r, std::span<std::byte> room);
  void shorten_parts();

  Transport& transport_;
  const Codec& codec_;
  ExchangeEnds& ends_;
  Workspace& workspace_;
  const Chunks chunks_;
  const ChunkKeys keys_;
  const int rank_;
  EqualParts parts_;
  std::size_t largest_ = 0;  // of the encodings for other ranks, in bytes
  std::size_t sent_ = 0;
  std::unique_ptr<Transfer> transfer_;
};

}  // namespace gradwire::compress
