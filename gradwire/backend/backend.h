// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What moves and reduces raw memory between ranks. Torch-free.
//
// A Backend is one rank's membership in a fixed set of ranks. Its Channels are independent ordered sequences of
// collectives over those ranks (MPI would say: duplicates of a communicator). Backends are plug-ins: one folder, one
// line in registry.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "gradwire/base/deadline.h"
#include "gradwire/base/dtype.h"
#include "gradwire/base/reduce_op.h"

namespace gradwire {

inline constexpr int kMaxWorldSize = 64;
inline constexpr int kAnySource = -1;

// What a rank keeps at most of messages that another rank has sent it and that it has not received: bytes of small
// messages, each counted with 128 more, and large messages that are announced and wait at their sender.
inline constexpr std::size_t kMaxUnreceivedBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxUnreceivedOffers = std::size_t{1} << 16;

// What a caller knows of a call beyond its arguments. All ranks must pass the same; a difference is a MismatchError.
struct CallTag {
  std::uint32_t iteration = 0;  // of DDP
  std::uint16_t bucket = 0;
  std::uint8_t stage = 0;  // the how-many-th collective of a bucket's hook, modulo 256
  std::uint8_t hook = 0;   // how many hooks DDP had before that one, modulo 256
  friend bool operator==(const CallTag&, const CallTag&) = default;
};

// How one call behaves. Only the tag must agree among ranks.
struct CallOptions {
  Deadline deadline = Deadline::after(kDefaultTimeout);
  CallTag tag = {};
};

// Memory from Channel::allocate(). Copies share it; it is given back with the last copy, which may outlive channel and
// backend.
struct Allocation {
  std::shared_ptr<std::byte> data;  // zeroed, aligned to a page
  std::size_t bytes = 0;
  bool in_place = false;  // the other ranks can read it where it lies, so collectives on it copy nothing
};

// Part of a user's buffer: `count` elements from `data`.
struct Slice {
  void* data = nullptr;
  std::size_t count = 0;
};
struct ConstSlice {
  const void* data = nullptr;
  std::size_t count = 0;
};

// A send or receive under way. Buffers must live until wait() returned or threw, whatever it threw, or the request is
// destroyed. Thread-safe. Destroying an unfinished request cancels it: a send that has found no receive was never sent;
// one that has ends that receive with a PeerError that names the sender. A receive that has found its message uses the
// message up, however it ends.
class Request {
 public:
  struct Status {
    int source = -1;        // who sent it (receives only)
    std::size_t bytes = 0;  // how much came
  };
  virtual ~Request() = default;
  // Waits for the end. Throws TimeoutError, which cancels the request, PeerError when the other side is gone or has
  // cancelled its send, MismatchError when the message is larger than the buffer (nothing is written), AbortedError.
  virtual Status wait(Deadline deadline) = 0;
  // Whether wait() would return or throw at once.
  virtual bool done() = 0;
};

// One ordered sequence of collectives. All ranks call the same collectives on a channel in the same order with the same
// count, dtype, op, root and tag; ranks that differ get a MismatchError, all of them, that says who called what. One
// thread at a time uses the collectives of a channel; isend, irecv, abort and failure may be called from any thread at
// any time.
//
// Every call blocks until this rank's part is done and its buffers are its own again: once it has returned, well or
// with an error, no other rank writes into memory of this rank (but for Allocations after an error, which are
// indeterminate then). Results have the same bits on all ranks, whatever the path: elements are combined in rank order,
// see ReduceOp.
//
// Throws InvalidArgument (before any communication), MismatchError, PeerError, TimeoutError, AbortedError. After any
// but the first the channel is at its end: every later call throws the first reason.
//
// Counts are elements of `dtype`; buffers may have any alignment, a count of 0 is fine and buffers may be null then.
// Buffers of one call must not overlap, unless they are the same (input == output in place).
class Channel {
 public:
  virtual ~Channel() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  // Returns after every rank has called it.
  virtual void barrier(const CallOptions& options) = 0;

  // `data` of rank `root` goes to `data` of all.
  virtual void broadcast(void* data, std::size_t count, DType dtype, int root, const CallOptions& options) = 0;

  // data[i] = op over all ranks of data[i], on all ranks.
  virtual void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, const CallOptions& options) = 0;

  // output[i] = op over all ranks of input[i], on `root` only; elsewhere `output` is not touched and may be null.
  virtual void reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op, int root,
                      const CallOptions& options) = 0;

  // outputs[r] = input of rank r, `count` elements each, on all ranks. `outputs` has size() pointers.
  virtual void all_gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype,
                          const CallOptions& options) = 0;

  // The same on `root` only; elsewhere `outputs` is empty.
  virtual void gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype, int root,
                      const CallOptions& options) = 0;

  // output = inputs[rank()] of `root`. `inputs` has size() pointers on root and is empty elsewhere.
  virtual void scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype, int root,
                       const CallOptions& options) = 0;

  // output[i] = op over all ranks r of inputs_of_r[rank()][i]. `inputs` has size() pointers.
  virtual void reduce_scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
                              ReduceOp op, const CallOptions& options) = 0;

  // outputs[r] = inputs_of_r[rank()]. Both have size() slices; counts may differ, but what r sends to s must be as long
  // as what s expects from r (MismatchError otherwise).
  virtual void all_to_all(std::span<const ConstSlice> inputs, std::span<const Slice> outputs, DType dtype,
                          const CallOptions& options) = 0;

  // Point to point, matched by (channel, source, tag) in order. Never queues behind collectives and makes progress by
  // itself: all ranks may send first and receive after, whatever the size. `source` may be kAnySource. A small message
  // may end before its receive is called; it is kept at its destination, up to kMaxUnreceivedBytes from one rank to
  // another in all channels. Beyond that it waits at its sender until it is received, as large messages do; beyond
  // kMaxUnreceivedOffers of these, further sends begin when earlier ones have been received. Throws InvalidArgument,
  // the channel's first reason, and ResourceError when the machine refuses memory or a thread: the buffer is the
  // caller's then, and nothing was sent.
  virtual std::shared_ptr<Request> isend(const void* data, std::size_t bytes, int destination, std::uint32_t tag) = 0;
  virtual std::shared_ptr<Request> irecv(void* data, std::size_t bytes, int source, std::uint32_t tag) = 0;

  // Collective: a new channel over the same ranks. The same order rule as any collective of this channel.
  virtual std::unique_ptr<Channel> duplicate(const CallOptions& options) = 0;

  // Collective, with an agreed outcome: memory that the other ranks can read in place, or (where the backend has none)
  // private memory on all ranks. All ranks name the same size. Throws ResourceError on all ranks when one of them is
  // refused memory; the channel goes on then.
  virtual Allocation allocate(std::size_t bytes, const CallOptions& options) = 0;

  // Ends the channel on this rank with a reason; ranks that need this one's part fail with it, at once, as PeerError.
  // Idempotent: the first reason stays. Waiting calls of this rank throw AbortedError.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Throws the first reason again if the channel is at its end; does nothing otherwise. Communicates nothing.
  virtual void check() const = 0;
};

// What a backend promises beyond the above; docs/backends.md keeps the table.
struct Capabilities {
  bool in_place_memory = false;   // allocate() gives memory that is reduced where it lies
  bool bitwise_equal = false;     // same bits on all ranks and in every run
  bool detects_mismatch = false;  // ranks that disagree get a MismatchError
  bool detects_death = false;     // a dead rank is noticed at once, not by the deadline
  bool crosses_hosts = false;
};

// Thread-safe but for destruction. Destroying it says to the others that this rank left; channels go before their
// backend.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual Capabilities capabilities() const noexcept = 0;
  // The first channel; others are its duplicates.
  virtual Channel& channel() noexcept = 0;
};

}  // namespace gradwire
