// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How encodings of all ranks become the mean of what they say, on all ranks.
//
// The key to error feedback with any exchange is what was **delivered**: how much of this rank's values the mean really
// contains, so that
//
//   divisor * mean = delivered of rank 0 + ... + delivered of rank N-1      (up to float32 rounding)
//
// whatever was lost on the way, and wherever. values - delivered is what this rank still owes.
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

// Memory that exchanges work in; keep it from call to call and nothing is allocated any more. One call at a time.
struct Workspace {
  std::vector<std::byte> outgoing;
  std::vector<std::byte> incoming;
  std::vector<float> sum;
  std::vector<float> decoded;
  std::vector<float> own;
};

// One exchange of `values` of all ranks. Spans are of one length, the same on all ranks.
struct ExchangeCall {
  EncodeKey key;                  // seed, tensor and step, the same on all ranks; its rank is not looked at
  double divisor = 0;             // what the sum of all ranks is divided by; 0: the number of ranks
  std::span<const float> values;  // of this rank
  std::span<float> mean;          // out: the same bits on all ranks
  std::span<float> delivered;     // out; empty when nobody wants to know
};

// An exchange that was started. What it was made of must outlive it.
class ExchangeRun {
 public:
  virtual ~ExchangeRun() = default;

  // Waits for the communication that it started last, works on what came, and starts the next. Returns false when all
  // is done. Between two calls others may use the transport, in the same order on all ranks. Throws what run() throws.
  virtual bool advance() = 0;

  // The bytes that this rank sent so far.
  virtual std::size_t sent() const noexcept = 0;
};

// An immutable object; run() and start() may be called by several threads at once, with a Workspace and a Transport
// each.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // "all_gather", "all_reduce".
  virtual std::string name() const = 0;

  // Exchanges; returns the bytes that this rank sent: encodings, their sizes where these travel, and padding, without
  // what the transport adds. With one rank nothing is sent, but values are still encoded and decoded, so that one rank
  // behaves like many. `mean` may be the same memory as `values` when `delivered` is empty; otherwise spans do not
  // overlap.
  //
  // When any rank's values hold an infinity or a NaN, so does `mean`, on all ranks; `delivered` says nothing then.
  //
  // Throws InvalidArgument before any communication when spans differ in length; MismatchError when bytes of a peer are
  // no encoding (a rank that meets this stops there: end the group, so that the others do not wait for the rest of the
  // call until their deadline); what the transport throws.
  std::size_t run(Transport& transport, const Codec& codec, const ExchangeCall& call, Workspace& workspace) const {
    const auto started = start(transport, codec, call, workspace);
    while (started->advance()) {
    }
    return started->sent();
  }

  // The same in steps, for a caller with several exchanges under way; nothing is sent before the first advance().
  virtual std::unique_ptr<ExchangeRun> start(Transport& transport, const Codec& codec, const ExchangeCall& call,
                                             Workspace& workspace) const = 0;

  // What run() returns with `count` values on `world` ranks at that step (EncodeKey::step), for codecs of fixed size;
  // for the others the most that it may return.
  virtual std::size_t bytes_sent(const Codec& codec, std::size_t count, int world, std::uint64_t step = 0) const = 0;
};

// Every rank's encoding goes to every rank: all_gather_exchange.cc. (N-1) enc(n) bytes; the values are coded once. For
// few ranks and for sparse codecs.
std::unique_ptr<Exchange> make_all_gather_exchange();

// A reduce-scatter and an all-gather of encodings: all_reduce_exchange.cc. About 2 (N-1)/N enc(n) bytes, which do not
// grow with N; the values are coded twice.
std::unique_ptr<Exchange> make_all_reduce_exchange();

// By name. Throws InvalidArgument, which lists the names, for an unknown one.
std::unique_ptr<Exchange> make_exchange(std::string_view name);
const std::vector<std::string>& known_exchanges();

// Where chunk r of `count` values begins that all_reduce cuts for `world` ranks, for r from 0 to `world` (which gives
// `count`). Chunks are as equal as multiples of kChunkMultiple allow; the last ones may be shorter, or empty.
std::size_t chunk_begin(std::size_t count, int world, int r) noexcept;

// 16 values fill a cache line of f32, whole bytes of any code and whole draws of random numbers.
inline constexpr std::size_t kChunkMultiple = 16;

}  // namespace gradwire::compress
