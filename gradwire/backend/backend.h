// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The interface of a backend: collectives and messages on raw memory between ranks. Torch-free.
//
// A Backend is one rank's membership in a fixed set of ranks. A Channel is one ordered sequence of collectives over
// those ranks; a backend has one channel, and any channel makes more (MPI calls this duplicating a communicator). A
// backend is a plug-in: one folder, and one line in registry.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/dtype.h"
#include "gradwire/base/reduce_op.h"

namespace gradwire {

// The most ranks of any backend. A backend may take fewer: BackendEntry::max_ranks (registry.h).
inline constexpr int kMaxWorldSize = 4096;
inline constexpr int kAnySource = -1;
// Tags of messages are below this one.
inline constexpr std::uint32_t kFirstReservedTag = 0x8000'0000U;

// The most that a rank keeps of messages that another rank has sent to it and that it has not received: bytes of small
// messages (128 or more are added for each message), and large messages that were announced and wait at their sender.
inline constexpr std::size_t kMaxUnreceivedBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxUnreceivedOffers = std::size_t{1} << 16;

// The place of a call in a training step. DDP fills the tag in; other callers leave it at zero. The tag is part of the
// fingerprint that ranks compare: ranks that pass different tags get a MismatchError.
struct CallTag {
  std::uint32_t iteration = 0;  // the iteration of DDP
  std::uint16_t bucket = 0;     // the index of the bucket
  std::uint8_t stage = 0;       // the number of the collective within the bucket's hook, modulo 256
  std::uint8_t hook = 0;        // the number of hooks that DDP had before this one, modulo 256
  friend bool operator==(const CallTag&, const CallTag&) = default;
};

// The options of one collective. The tag and the parts must be the same on all ranks; the deadline may differ.
struct CallOptions {
  Deadline deadline = Deadline::after(kDefaultTimeout);
  CallTag tag = {};
  // Where the buffer holds several things one after another, a value that stands for their lengths (parts_of_lengths()
  // makes one): ranks with other parts get a MismatchError, although their counts are the same. 0: one thing. Does not
  // count where the op is premul_sum.
  std::uint64_t parts = 0;
};

// A value for CallOptions::parts, never 0. The number of parts shows in error messages.
std::uint64_t parts_of_lengths(std::span<const std::int64_t> lengths) noexcept;

// Memory from Channel::allocate(). Copies of an Allocation share the memory. The memory is released with the last copy,
// which may outlive the channel and the backend.
struct Allocation {
  std::shared_ptr<std::byte> data;  // zeroed; aligned to a page
  std::size_t bytes = 0;
  bool in_place = false;  // true: the other ranks read the memory where it lies, so collectives on it copy nothing
};

// Part of a caller's buffer: `count` elements from `data`.
struct Slice {
  void* data = nullptr;
  std::size_t count = 0;
};
struct ConstSlice {
  const void* data = nullptr;
  std::size_t count = 0;
};

// A send or a receive under way.
//
// Ownership: the caller owns the buffer and keeps it alive, and leaves it alone, until wait() has returned or thrown,
// or the request is destroyed. Threads: all methods may be called from any thread.
//
// Destroying a request that has not ended cancels it. A cancelled send that has found no receive was never sent; a
// cancelled send that has found a receive ends that receive with a PeerError that names the sender. A receive that has
// found its message uses the message up, however the receive ends.
//
// A request may outlive its channel and its backend. When it had not ended before, wait() throws an AbortedError then,
// or a PeerError.
class Request {
 public:
  struct Status {
    int source = -1;        // receives only: the rank that sent the message
    std::size_t bytes = 0;  // the length of the message
  };
  virtual ~Request() = default;

  // Waits until the send or receive has ended, and returns its status. A second call returns or throws the same.
  // Throws TimeoutError when `deadline` passes first, PeerError when the other rank died, left, failed or cancelled its
  // send, MismatchError when the message is longer than the receiver's buffer (nothing is written then), AbortedError
  // after abort() or an interrupt. After any of these the request is cancelled and the buffer is the caller's again.
  virtual Status wait(Deadline deadline) = 0;

  // Returns true when wait() would return or throw at once. Moves the request on; never blocks, never throws.
  virtual bool done() = 0;

  // Waits until done() or until `deadline` has passed, and returns done(). Cancels nothing, and never throws: wait()
  // tells how it ended.
  virtual bool done_by(Deadline deadline) = 0;
};

// One ordered sequence of collectives.
//
// Agreement: all ranks call the same collectives on a channel, in the same order, with the same count, dtype, op, root
// and tag. If they do not, all ranks throw a MismatchError that says which rank called what.
//
// Success: a collective returns when this rank's part is done. Reductions give the same bits on all ranks and in every
// run: elements are combined in rank order (see ReduceOp).
//
// Failure: every collective can throw
//   InvalidArgument  before any communication; the channel goes on
//   MismatchError    ranks disagree
//   PeerError        a rank whose part is missing died, left or failed; peers() names the ranks
//   TimeoutError     the deadline passed; peers() names the ranks whose part is missing. In large groups of a network
//                    other ranks may hear of it before their own deadlines: PeerError that names the same ranks.
//   AbortedError     abort() was called on this rank, or the wait was interrupted
// After any of the last four the channel is at its end: every later call throws the first reason.
//
// Ownership: buffers belong to the caller. When a collective has returned or thrown, no other rank writes to this
// rank's memory any more. The one exception is memory of allocate(): its contents are indeterminate after an error.
//
// Threads: one thread at a time calls the collectives (allocate() and duplicate() are collectives too). isend(),
// irecv(), abort() and check() may be called from any thread at any time.
//
// Arguments: counts are elements of `dtype`. Buffers may have any alignment. A count of 0 is allowed, and the pointer
// may be null then. The buffers of one call do not overlap, but input and output may be the same buffer; in
// all_to_all, only the rank's own slice may.
class Channel {
 public:
  virtual ~Channel() = default;

  // This rank's number, and the number of ranks. Never change.
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  // Collective. Returns after every rank has called it.
  virtual void barrier(const CallOptions& options) = 0;

  // Collective. Copies `data` of rank `root` to `data` of every other rank.
  virtual void broadcast(void* data, std::size_t count, DType dtype, int root, const CallOptions& options) = 0;

  // Collective. data[i] becomes op over all ranks of data[i], on all ranks.
  virtual void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, const CallOptions& options) = 0;

  // Collective. output[i] becomes op over all ranks of input[i], on `root`. On the other ranks `output` is left alone
  // and may be null.
  virtual void reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op, int root,
                      const CallOptions& options) = 0;

  // Collective. outputs[r] becomes input of rank r, `count` elements each, on all ranks. `outputs` holds size()
  // pointers.
  virtual void all_gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype,
                          const CallOptions& options) = 0;

  // Collective. all_gather() on `root` alone. On the other ranks `outputs` is empty.
  virtual void gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype, int root,
                      const CallOptions& options) = 0;

  // Collective. output becomes inputs[rank()] of `root`. `inputs` holds size() pointers on `root` and is empty on the
  // other ranks.
  virtual void scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype, int root,
                       const CallOptions& options) = 0;

  // Collective. output[i] becomes op over all ranks r of inputs_of_r[rank()][i]. `inputs` holds size() pointers.
  virtual void reduce_scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
                              ReduceOp op, const CallOptions& options) = 0;

  // Collective. outputs[r] becomes inputs_of_r[rank()]. Both hold size() slices. Counts may differ from slice to slice,
  // but what rank r sends to rank s is as long as what s expects from r; otherwise all ranks throw a MismatchError.
  virtual void all_to_all(std::span<const ConstSlice> inputs, std::span<const Slice> outputs, DType dtype,
                          const CallOptions& options) = 0;

  // Starts a send of `bytes` bytes to rank `destination`, or a receive of at most `bytes` bytes from rank `source`
  // (kAnySource: from any rank). Returns at once; Request::wait() returns the outcome. Messages are matched by channel,
  // source and tag, in the order in which they were sent. Messages never wait for collectives, and they move while
  // their ranks do other things: all ranks may send first and receive after, whatever the size. Tags are below
  // kFirstReservedTag; those from there on belong to the backends.
  //
  // A small message may end before its receive is called. The destination keeps such messages, up to
  // kMaxUnreceivedBytes from one rank to another in all channels. Beyond that, a message waits at its sender until it
  // is received, as large messages do. Beyond kMaxUnreceivedOffers of these, further sends begin when earlier ones have
  // been received.
  //
  // A receive from any rank ends with a PeerError when a rank has died or failed and no message for the receive is
  // here: nobody can tell whether that rank would have sent it. When a rank has left in good order, the receive goes on
  // as long as another rank is there.
  //
  // Throws InvalidArgument; ResourceError when the machine refuses the memory or the thread that the message needs
  // (nothing was sent, the buffer is the caller's, and the channel goes on); and the channel's first reason when the
  // channel is at its end.
  virtual std::shared_ptr<Request> isend(const void* data, std::size_t bytes, int destination, std::uint32_t tag) = 0;
  virtual std::shared_ptr<Request> irecv(void* data, std::size_t bytes, int source, std::uint32_t tag) = 0;

  // Collective. Returns a new channel over the same ranks, which the caller owns. Throws ResourceError, on all ranks,
  // when one of them is refused memory; this channel goes on then.
  virtual std::unique_ptr<Channel> duplicate(const CallOptions& options) = 0;

  // Collective, with one outcome for all ranks. Returns memory that the other ranks read in place, or private memory
  // where the backend has no memory of that kind. All ranks pass the same size. Throws ResourceError, on all ranks,
  // when one of them is refused memory; the channel goes on then.
  virtual Allocation allocate(std::size_t bytes, const CallOptions& options) = 0;

  // Returns, by rank, where the ranks' memory lies that corresponds to [data, data + bytes) of this rank: the same
  // place in what each rank got from the same call of allocate(). Every rank may read and write all of it; collectives
  // (a barrier) order these accesses. Each entry keeps its memory mapped, also when the owner has released it. Empty
  // when the range lies in no memory that allocate() returned in place, whose size was rounded up to whole pages. Does
  // not communicate, and may be called from any thread at any time. The default returns nothing.
  virtual std::vector<std::shared_ptr<std::byte>> symmetric_memory(const void* /*data*/, std::size_t /*bytes*/) const {
    return {};
  }

  // Ends the channel on this rank with a reason. Calls of this rank that wait throw AbortedError, even where the parts
  // that they wait for come right after; every later call throws the same. Ranks that need this rank's part throw a
  // PeerError that quotes the reason, at once. A second call does nothing: the first reason stays. Never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Throws the first reason again when the channel is at its end; does nothing otherwise. Does not communicate. In a
  // forked child, where no call is allowed, throws InvalidArgument or does nothing.
  virtual void check() const = 0;
};

// What a backend promises beyond the interface; docs/backends.md has the table.
struct Capabilities {
  bool in_place_memory = false;   // allocate() returns memory that is reduced where it lies
  bool bitwise_equal = false;     // reductions give the same bits on all ranks and in every run
  bool detects_mismatch = false;  // ranks that disagree get a MismatchError
  bool detects_death = false;     // a dead rank is noticed at once, not by the deadline
  bool crosses_hosts = false;
};

// One rank's membership in a set of ranks.
//
// Ownership: the caller owns the backend and destroys all channels before it. Destroying the backend tells the other
// ranks that this rank left. Threads: all methods may be called from any thread; the destructor may not run beside
// them.
class Backend {
 public:
  virtual ~Backend() = default;

  // The name in the registry ("shm"), this rank's number, the number of ranks, and the promises. Never change.
  virtual std::string_view name() const noexcept = 0;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual Capabilities capabilities() const noexcept = 0;

  // The first channel; the backend owns it. Other channels are its duplicates.
  virtual Channel& channel() noexcept = 0;
};

}  // namespace gradwire
