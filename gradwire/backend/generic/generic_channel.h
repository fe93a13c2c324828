// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Every collective made of isend and irecv, for backends that have nothing better (MPI, sockets).
//
// A backend derives its channel from GenericChannel and gives it point-to-point messages and a way to tell the others
// that it has failed; it overrides the collectives that it does better itself. Algorithms, their steps and bytes on the
// wire open the files of this folder, one a collective.
//
// Up to kDirectRanks ranks talk to each other directly: one step is the shortest latency there is. In larger worlds
// what is small goes in about log2 N steps between ranks whose numbers differ by a power of two, so that a rank has
// about 2 log2 N partners; what is large still goes straight to where it belongs. Both give the same bits.
//
// Every collective starts with an exchange of fingerprints (see barrier.cc) among all ranks. So ranks that disagree
// about the operation, its count, dtype, op, root or tag all get the same MismatchError, ranks that do not come are
// named exactly, and no data moves before. A rank that was refused memory to stage messages in says so there, too: all
// ranks throw ResourceError then, and the channel goes on. Not detected: a rank that calls a collective where the
// others call isend or irecv (they wait until their deadlines).
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

struct Fingerprint;
namespace generic {
class Exchange;
}

class GenericChannel : public Channel {
 public:
  // Bytes that all ranks together may send along with a call's fingerprints.
  static constexpr std::size_t kAtOnceBytes = std::size_t{16} << 10;
  // Bytes that each of two ranks may send along, where both want the other's: no other way sends fewer.
  static constexpr std::size_t kAtOnceOfTwoBytes = std::size_t{64} << 10;
  // Larger worlds are wide.
  static constexpr int kDirectRanks = 16;
  // Staging memory that one collective takes at most, but for one element a rank.
  static constexpr std::size_t kStagingBytes = std::size_t{4} << 20;

  void barrier(const CallOptions& options) override;
  void broadcast(void* data, std::size_t count, DType dtype, int root, const CallOptions& options) override;
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, const CallOptions& options) override;
  void reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op, int root,
              const CallOptions& options) override;
  void all_gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype,
                  const CallOptions& options) override;
  void gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype, int root,
              const CallOptions& options) override;
  void scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype, int root,
               const CallOptions& options) override;
  void reduce_scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype, ReduceOp op,
                      const CallOptions& options) override;
  void all_to_all(std::span<const ConstSlice> inputs, std::span<const Slice> outputs, DType dtype,
                  const CallOptions& options) override;

  // Private memory on all ranks: nothing is reduced where it lies.
  Allocation allocate(std::size_t bytes, const CallOptions& options) override;

  // Check the arguments (tags included) and the channel's state, then start_send() and start_receive().
  std::shared_ptr<Request> isend(const void* data, std::size_t bytes, int destination, std::uint32_t tag) final;
  std::shared_ptr<Request> irecv(void* data, std::size_t bytes, int source, std::uint32_t tag) final;

  void abort(std::string_view reason) noexcept final;
  void check() const final;

 protected:
  // For `size` ranks. Throws std::bad_alloc.
  explicit GenericChannel(int size);

  // What a backend gives. The arguments are checked; `tag` may be any number. Messages of one (source, destination,
  // tag) keep their order; a send completes when its buffer is free, and once it has, the message arrives even if the
  // sender leaves then. A receive fails with PeerError when `source` has left or failed and sent nothing that matches.
  // Destroying a request ends all use of its buffer.
  virtual std::shared_ptr<Request> start_send(const void* data, std::size_t bytes, int destination,
                                              std::uint32_t tag) = 0;
  virtual std::shared_ptr<Request> start_receive(void* data, std::size_t bytes, int source, std::uint32_t tag) = 0;

  // Called once, when the channel has come to its end on this rank, from any thread: requests of this rank that are
  // under way must throw AbortedError with `reason`, and those of others that wait for this rank PeerError with
  // `reason`, naming the ranks `at_fault`; or this rank where that is empty.
  virtual void announce_end(std::string_view reason, std::span<const int> at_fault) noexcept = 0;

  // Runs `body` as one collective: compares fingerprints, then calls it. An exception ends the channel, and what comes
  // out is the first reason. For collectives that the derived class adds (duplicate). `call.sequence` and
  // `call.tag` are filled in.
  void run(Fingerprint call, const CallOptions& options, const std::function<void()>& body);
  // The same for a body that needs `bytes` bytes of memory until it ends, which all ranks take before anything of the
  // call has moved: where one is refused them, all throw ResourceError and the channel goes on.
  using StagedBody = std::function<void(std::span<std::byte> staging)>;
  void run_staged(Fingerprint call, const CallOptions& options, std::size_t bytes, const StagedBody& body);

  // The same for a body that needs everyone's `bytes` bytes at `mine`, at most exchange_at_once_bytes(), and nothing
  // else: they go with the fingerprints. `inputs` are all ranks' bytes, by rank, this rank's being `mine`.
  using AtOnceBody = std::function<void(std::span<const void* const> inputs)>;
  void run_at_once(Fingerprint call, const CallOptions& options, const void* mine, std::size_t bytes,
                   const AtOnceBody& body);
  // What is worth sending to all, where one rank wants it, and where all want it.
  std::size_t at_once_bytes() const noexcept { return kAtOnceBytes / static_cast<std::size_t>(size()) / 8 * 8; }
  std::size_t exchange_at_once_bytes() const noexcept { return size() == 2 ? kAtOnceOfTwoBytes : at_once_bytes(); }

  // Inside run(): everyone's `bytes` bytes at `mine` arrive at `all`, by rank. Small messages only: see share.cc.
  void share(const void* mine, void* all, std::size_t bytes, Deadline deadline);

 private:
  friend class generic::Exchange;

  bool is_wide() const noexcept { return size() > kDirectRanks; }
  // Blocks up to this many bytes, one for each rank, go in log2 N steps in a wide world.
  std::size_t short_block() const noexcept;
  // Inside run(): block r of `blocks`, `bytes` bytes each, goes to rank r, whose block takes its place. `scratch` has
  // room for twice the blocks. For wide worlds and short blocks.
  void exchange_blocks(std::byte* blocks, std::size_t bytes, std::span<std::byte> scratch, Deadline deadline);
  // share() for wide worlds.
  void share_in_steps(const void* mine, void* all, std::size_t bytes, Deadline deadline);
  // Block r of `blocks` is this rank's input for the part of rank r. Combines all ranks' inputs for the part of this
  // rank into `result`, which may be any block. `staging` begins with the blocks and has room for three times as many.
  void reduce_blocks(std::span<std::byte> staging, std::size_t block, void* result, std::size_t count, DType dtype,
                     ReduceOp op, Deadline deadline);
  // A whole reduction whose parts are short blocks; `output` is null where the result is not wanted.
  void reduce_short(const Fingerprint& call, const void* input, void* output, std::size_t count, DType dtype,
                    ReduceOp op, const CallOptions& options);
  void gather_in_ring(const void* input, std::span<void* const> outputs, std::size_t bytes, Deadline deadline);
  // all_to_all's. The first two throw a MismatchError on all ranks when counts differ; the second, for wide worlds,
  // returns the length of the longest slice of all ranks.
  void require_same_counts(std::span<const ConstSlice> inputs, std::span<const Slice> outputs, Deadline deadline);
  std::size_t agree_on_counts(std::span<const ConstSlice> inputs, std::span<const Slice> outputs, Deadline deadline);
  void move_short(std::span<const ConstSlice> inputs, std::span<const Slice> outputs, std::size_t element,
                  std::size_t block, Deadline deadline);
  // Inside run(): `bytes` bytes of the root go to all.
  void send_down(std::byte* data, std::size_t bytes, int root, Deadline deadline);
  void post_send(generic::Exchange& exchange, const void* data, std::size_t bytes, int peer);
  void post_receive(generic::Exchange& exchange, void* data, std::size_t bytes, int peer);
  // A direct reduction in chunks (reduce_scatter.cc). The messages of the next chunk are under way while one is
  // combined.
  struct ChunkedReduction {
    std::size_t chunks = 0;
    // The part of this rank's input that `rank` combines, of a chunk. The own part has the most elements in chunk 0.
    std::function<ConstSlice(std::size_t chunk, int rank)> part;
    // Called when the inputs of a chunk are there, for the place of the result. It may be any of the chunk's parts.
    std::function<void*(std::size_t chunk)> result;
    std::function<void(std::size_t chunk)> then;  // called when the result is there; may be null
    DType dtype = DType::f32;
    ReduceOp op;
  };
  // The bytes of staging that reduce_chunks() takes for chunks of `elements` elements, of `element` bytes each.
  std::size_t staging_of_chunks(std::size_t elements, std::size_t element) const noexcept;
  void reduce_chunks(const ChunkedReduction& reduction, std::span<std::byte> staging, Deadline deadline);
  // The two halves of a chunk: what is sent and received, and combining in rank order.
  void post_chunk(const ChunkedReduction& reduction, std::size_t chunk, generic::Exchange& exchange,
                  std::span<std::byte> staging);
  void combine_chunk(const ChunkedReduction& reduction, std::size_t chunk, std::span<std::byte> staging);
  void note_reduction() const noexcept;
  // What goes with a call at its entry, and where what comes with the others' calls is put.
  struct Entry {
    const void* mine = nullptr;
    std::size_t bytes = 0;
    std::span<const void*> inputs;  // set to each rank's bytes; empty: nobody wants them
  };
  // All that is common to the collectives; `body` is called when all ranks have called the same.
  void run_any(Fingerprint call, const CallOptions& options, std::size_t staging_bytes, Entry entry,
               const StagedBody& body);
  // Which ranks were refused what the call needs, when all have called the same. Throws MismatchError.
  std::vector<int> compare_in_tree(const Fingerprint& call, const Entry& entry, Deadline deadline);
  std::vector<int> compare_directly(const Fingerprint& call, const Entry& entry, Deadline deadline);
  // The end of both: what each rank called, and where its bytes lie.
  std::vector<int> judge(std::span<Fingerprint> fingerprints) const;
  void take_inputs(const Entry& entry, const std::byte* first, std::size_t stride) const noexcept;
  void all_reduce_in_chunks(void* data, std::size_t count, DType dtype, ReduceOp op, const CallOptions& options);
  // Ends the channel because of the exception under way, which ended the call.
  void fail_call() noexcept;
  bool is_at_end() const GRADWIRE_EXCLUDES(mutex_);
  // Makes `error` the first reason, unless there is one, and tells the others.
  void end_with(std::exception_ptr error, const std::string& text) noexcept GRADWIRE_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::exception_ptr first_reason_ GRADWIRE_GUARDED_BY(mutex_);
  // Of the thread that calls collectives.
  std::uint64_t sequence_ = 0;
  const Fingerprint* call_ = nullptr;  // the one under way
  // What comes at a call's entry. Of small worlds it is there from the start: the entry needs no memory then.
  std::vector<std::byte> entry_memory_;
};

}  // namespace gradwire
