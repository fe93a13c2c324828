// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Exchanges: they compute the mean of all ranks' values from encodings of the values.
//
// Beside the mean, an exchange tells each rank which part of its values was **delivered**, that is, is contained in the
// mean:
//
//   divisor * mean = delivered of rank 0 + ... + delivered of rank N-1      (up to float32 rounding)
//
// This holds whatever the encodings lost, and at whichever stage. Error feedback needs no more: values - delivered is
// what this rank has to send later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/compress/codec.h"
#include "gradwire/compress/transport.h"

namespace gradwire::compress {

// The buffers of an exchange. A caller that keeps the workspace for the next call saves the allocations. One call at a
// time uses a workspace.
struct Workspace {
  std::vector<std::byte> outgoing;       // the encoding of this rank's values
  std::vector<std::byte> outgoing_mean;  // the encoding of this rank's part of the mean
  std::vector<std::byte> incoming;       // the encodings of the other ranks
  std::vector<float> own;                // this rank's values as the others decode them
  std::vector<float> sum;                // of the decoded values of all ranks
  // Of one block at a time, where the codec has blocks.
  std::vector<float> values;
  std::vector<float> delivered;
  std::vector<float> decoded;
};

// Where an exchange takes this rank's values from, and where it puts the mean. The exchange works on a block of values
// from end to end before it touches the next one, so that the block stays in the cache. Only the thread that runs the
// exchange calls.
class ExchangeEnds {
 public:
  virtual ~ExchangeEnds() = default;

  // Where the mean goes, with the same bits on all ranks. As many values as the exchange has, on all ranks.
  virtual std::span<float> mean() noexcept = 0;

  // Returns room.size() of this rank's values, from number `first`: where they lie, or in `room`. The exchange asks for
  // the same values more than once and must get the same bits, until it has written the mean of these values (unless
  // keeps_values()).
  virtual std::span<const float> values(std::size_t first, std::span<float> room) = 0;

  // True: values() gives the same bits also after the mean was written. Then each mean is decoded only once.
  virtual bool keeps_values() const noexcept = 0;

  // True: the exchange works out what was delivered, and calls deliver(). values() never returns a part of mean() then.
  virtual bool takes_delivered() const noexcept = 0;

  // Called at the end for each block, once the mean of this block is in mean(), and only when the whole mean is finite.
  // `values` are values(first), and `delivered` is what was delivered of them. May change the mean of this block.
  virtual void deliver(std::size_t first, std::span<const float> values, std::span<const float> delivered) = 0;
};

// The arguments of one exchange.
struct ExchangeCall {
  EncodeKey key;       // the same on all ranks; the key's rank is ignored
  double divisor = 0;  // the divisor of the sum over all ranks; 0: the number of ranks
  ExchangeEnds& ends;
};

// An exchange that was started. The transport, codec, ends and workspace of start() must outlive this object.
class ExchangeRun {
 public:
  virtual ~ExchangeRun() = default;

  // Waits for the communication that the last call started, works on the received bytes, and starts the next
  // communication. Returns false when the exchange has ended. Between two calls, others may use the transport, in the
  // same order on all ranks. Throws what run() throws.
  virtual bool advance() = 0;

  // The bytes that this rank has sent so far.
  virtual std::size_t sent() const noexcept = 0;
};

// An immutable object. Threads: run() and start() may be called from several threads at once, each with a Workspace and
// a Transport of its own.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // "all_gather", "all_reduce".
  virtual std::string name() const = 0;

  // Runs the exchange. Returns the bytes that this rank sent: encodings, padding, and the sizes of encodings where the
  // sizes travel. What the transport adds is not counted. One rank alone sends nothing, but encodes and decodes its
  // values, so that its training behaves like that of several ranks.
  //
  // When the values of any rank hold an infinity or a NaN, the mean is not finite on all ranks, and deliver() is not
  // called.
  //
  // Throws InvalidArgument, before any communication, for a divisor that does not divide; MismatchError when the bytes
  // of another rank are not an encoding (this rank stops then, so the caller must end the group, or the other ranks
  // wait for the rest of the call until their deadline); and what the transport and the ends throw.
  std::size_t run(Transport& transport, const Codec& codec, const ExchangeCall& call, Workspace& workspace) const {
    const auto started = start(transport, codec, call, workspace);
    while (started->advance()) {
    }
    return started->sent();
  }

  // Starts an exchange that the caller moves on with advance(), for callers with several exchanges under way. Nothing
  // is sent before the first advance(). Throws as run().
  virtual std::unique_ptr<ExchangeRun> start(Transport& transport, const Codec& codec, const ExchangeCall& call,
                                             Workspace& workspace) const = 0;

  // The bytes that run() returns for `count` values on `world` ranks at `step` (EncodeKey::step). For a codec whose
  // encodings have no fixed size: the most that run() can return.
  virtual std::size_t bytes_sent(const Codec& codec, std::size_t count, int world, std::uint64_t step = 0) const = 0;
};

// Sends every rank's encoding to every rank (all_gather_exchange.cc). A rank sends (N-1) enc(n) bytes; values are
// encoded once. For few ranks, and for sparse codecs.
std::unique_ptr<Exchange> make_all_gather_exchange();

// A reduce-scatter of encodings, and an all-gather of encoded means (all_reduce_exchange.cc). A rank sends about
// 2 (N-1)/N enc(n) bytes, which do not grow with N; values are encoded twice.
std::unique_ptr<Exchange> make_all_reduce_exchange();

// Makes an exchange by name. Throws InvalidArgument for an unknown name, with the list of the known ones.
std::unique_ptr<Exchange> make_exchange(std::string_view name);
const std::vector<std::string>& known_exchanges();

// The first value of chunk r when all_reduce cuts `count` values for `world` ranks; r is 0 to `world`, and chunk
// `world` begins at `count`. Chunks are multiples of kChunkMultiple, as equal as possible; the last ones may be shorter
// or empty.
std::size_t chunk_begin(std::size_t count, int world, int r) noexcept;

// 16 values fill a cache line of f32, whole bytes of any code and whole draws of random numbers.
inline constexpr std::size_t kChunkMultiple = 16;

}  // namespace gradwire::compress
