// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The channel of the backends `threads` and `shm`: collectives over memory that all ranks see.
//
// Terms. A *step* is a meeting of all ranks (layout_internal.h). A call's first step is its *entry*: ranks publish
// their fingerprints and where their buffers lie, and compare. A call is *direct* when every rank's buffer lies where
// all can read it: each rank then works straight on the others' buffers, and a last step, the *exit*, keeps a buffer
// from going back to its owner while others use it. Any other call is *staged*: buffers pass through the ranks' staging
// areas, a *window* at a time. There are two areas, used in turn, so one step a window is enough: whoever fills window
// w + 2 has passed step w + 1, at which all had finished reading window w. Whether a call is direct is decided after
// entry from what all ranks published, hence equally on all of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/shared/layout_internal.h"
#include "gradwire/backend/shared/point_to_point_internal.h"
#include "gradwire/backend/shared/world_internal.h"
#include "gradwire/base/mutex.h"

namespace gradwire::shared {

class SharedChannel final : public Channel {
 public:
  // What a waiter does with its processor before it sleeps. A duplicate's waiter gives it away: the thread of a lane
  // shares it with the thread that computes.
  enum class Waiting { spins, yields };

  // `region` has ChannelLayout(size).stride bytes a rank, zeroed. `id` is the same on all ranks and unique among the
  // world's channels.
  SharedChannel(std::shared_ptr<World> world, std::shared_ptr<PointToPoint> point_to_point, Region region,
                std::uint64_t id, Waiting waiting);
  ~SharedChannel() override;

  int rank() const noexcept override { return world_->rank(); }
  int size() const noexcept override { return world_->size(); }

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
  std::shared_ptr<Request> isend(const void* data, std::size_t bytes, int destination, std::uint32_t tag) override;
  std::shared_ptr<Request> irecv(void* data, std::size_t bytes, int source, std::uint32_t tag) override;
  std::unique_ptr<Channel> duplicate(const CallOptions& options) override;
  Allocation allocate(std::size_t bytes, const CallOptions& options) override;
  void abort(std::string_view reason) noexcept override;
  void check() const override;

 private:
  // What a rank offers to the others: buffers of `bytes` each, one or one a rank.
  struct Offer {
    std::vector<ConstSlice> parts;  // count in bytes
    bool reachable = true;          // false: pretend that it is private memory
  };
  // What a rank takes: part `part` of rank `peer`, `bytes` long, to `to`.
  struct Take {
    int peer;
    std::size_t part;
    std::byte* to;
    std::size_t bytes;
  };

  RankSlot& slot(int rank) const noexcept { return *reinterpret_cast<RankSlot*>(region_.part(rank)); }
  ArrivalLine& line(int rank) const noexcept { return slot(rank).lines[step_ & 1]; }
  std::byte* input_area(int rank, std::uint64_t window) const noexcept {
    return region_.part(rank) + layout_.input_offset(window & 1);
  }
  std::byte* result_area(int rank, std::uint64_t window) const noexcept {
    return region_.part(rank) + layout_.result_offset(window & 1);
  }

  // Runs the body of a collective: refuses it when the channel is at its end, and ends the channel when it throws.
  template <class Body>
  void collective(Operation operation, const CallOptions& options, Body&& body);

  // Steps.
  Fingerprint fingerprint(DType dtype, std::size_t count, ReduceOp op = {}, int root = -1) const noexcept;
  void enter(const Fingerprint& mine, Location location);
  void meet();  // a step after the entry
  void arrive() noexcept;
  void await_all();
  void await(int peer);
  void sleep_until_arrived(int peer);
  void compare_fingerprints(const Fingerprint& mine) const;

  // Where buffers lie.
  Location locate(const void* data, std::size_t bytes);
  std::byte* resolve(int peer, std::uint64_t offset) const noexcept;
  bool all_in_place() const noexcept;  // after entry: every rank's buffer can be read by all
  bool any_in_place() const noexcept;

  // The movers behind the collectives.
  //
  // transfer() is one call in which ranks offer buffers and take from others' buffers. After entry it runs `direct()`
  // once, with everybody's buffers readable through peer_part(), or `window(begin, length)` for consecutive ranges of
  // the parts, with that range of every part readable through staged_part(). `longest()` is asked after entry for the
  // largest number of bytes in a part, and must be the same on all ranks.
  template <class Longest, class Direct, class Window>
  void transfer(const Fingerprint& mine, const Offer& offer, std::size_t parts, Location location, Longest&& longest,
                Direct&& direct, Window&& window);
  Location locate(const Offer& offer, const void* otherwise, std::size_t bytes);
  void publish_parts(const Offer& offer, Location location, std::span<const std::size_t> expected);
  void stage(const Offer& offer, std::size_t slice, std::size_t begin) const noexcept;
  const std::byte* peer_part(int peer, std::size_t part, std::size_t parts) const noexcept;
  const std::byte* staged_part(int peer, std::size_t part, std::size_t parts) const noexcept;
  std::size_t slice_of(std::size_t parts) const noexcept;
  // The largest part of an all_to_all; throws MismatchError, on all ranks, when what one sends is not what the other
  // expects.
  std::size_t longest_agreed_part(std::size_t element) const;
  void copy(const Fingerprint& mine, const Offer& offer, std::size_t parts, Location location, std::size_t part_bytes,
            std::span<const Take> takes);
  void reduce_offers(const Fingerprint& mine, const Offer& offer, std::size_t parts, Location location,
                     std::size_t part, std::byte* output, ReduceOp op);

  void all_reduce_eager(std::byte* data, std::size_t count, DType dtype, ReduceOp op, bool is_staged);
  void all_reduce_direct(std::size_t count, DType dtype, ReduceOp op);
  void all_reduce_staged(std::byte* data, std::size_t count, DType dtype, ReduceOp op, bool first_is_staged);
  void stage_for_others(const std::byte* data, std::size_t count, DType dtype) const noexcept;

  // A region, or the same ResourceError on all ranks.
  Region share_agreed(std::uint64_t key, std::size_t stride);

  // Failures.
  void expect_direct_use(Location location) noexcept;
  void drain() noexcept;
  [[noreturn]] void end(std::exception_ptr error);  // ends the channel and throws the first reason
  void end_quietly(std::exception_ptr error, FailureKind kind, std::uint64_t culprits,
                   const std::string& reason) noexcept;
  void throw_if_over(int peer, bool look_for_death);
  void adopt_failure_of(int peer) const;
  std::vector<int> missing_ranks() const;
  std::string in_call() const;  // "all_reduce on rank 1 of 4"
  void wake_everyone() const noexcept;
  std::exception_ptr point_to_point_failure(int peer) const;

  std::shared_ptr<World> world_;
  std::shared_ptr<PointToPoint> point_to_point_;
  const Region region_;
  const std::uint64_t id_;
  const ChannelLayout layout_;
  const Waiting waiting_;

  // Of the thread that runs collectives.
  std::uint64_t step_ = 0;
  std::uint32_t sequence_ = 0;
  std::uint64_t window_ = 0;  // windows staged so far, over all calls
  std::uint32_t made_ = 0;    // duplicates and allocations
  bool direct_ = false;       // others may use this rank's own memory during the call under way
  Operation operation_ = Operation::none;
  CallOptions options_;
  struct {
    std::uint64_t generation = 0;
    std::uint64_t segment = 0;
    const std::byte* begin = nullptr;
    std::size_t bytes = 0;
    std::byte* base = nullptr;
    std::size_t stride = 0;
  } cached_segment_;

  std::atomic<std::uint64_t> entry_step_{0};  // of the call under way, or 0
  std::atomic<bool> failed_{false};
  mutable Mutex failure_mutex_;
  std::exception_ptr failure_ GRADWIRE_GUARDED_BY(failure_mutex_);
};

}  // namespace gradwire::shared
