// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The channel of the backends `threads` and `shm`: collectives over memory that all ranks see. The ranks meet in Steps
// (steps_internal.h), their data lies in Buffers (buffers_internal.h), a Call ties the two together (call_internal.h),
// and the algorithms are functions of a Call (collectives_internal.h).
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/shared/call_internal.h"
#include "gradwire/backend/shared/point_to_point_internal.h"
#include "gradwire/backend/shared/world_internal.h"

namespace gradwire::shared {

class SharedChannel final : public Channel {
 public:
  // `region` has ChannelLayout(size).stride bytes a rank, zeroed. `id` is the same on all ranks and unique among the
  // world's channels.
  SharedChannel(std::shared_ptr<World> world, std::shared_ptr<PointToPoint> point_to_point, Region region,
                std::uint64_t id, HostMachine::Waiting waiting);
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
  std::vector<std::shared_ptr<std::byte>> symmetric_memory(const void* data, std::size_t bytes) const override;
  void abort(std::string_view reason) noexcept override;
  void check() const override;

 private:
  // Runs the body of a collective: refuses it when the channel is at its end, and ends the channel when it throws.
  template <class Body>
  void collective(Operation operation, const CallOptions& options, Body&& body);
  // Gives `take` a region, before the ranks agree on the outcome. The same ResourceError on all ranks where one of them
  // was refused memory, by `take` too.
  void share_agreed(std::uint64_t key, std::size_t stride, const std::function<void(Region)>& take);

  [[noreturn]] void end(std::exception_ptr error);  // ends the channel and throws the first reason
  void end_quietly(const FailureReport& report, const std::exception_ptr& error) noexcept;
  messages::Loss point_to_point_failure(int peer) const;

  std::shared_ptr<World> world_;
  std::shared_ptr<PointToPoint> point_to_point_;
  const std::uint64_t id_;
  std::uint32_t made_ = 0;  // duplicates and allocations
  HostMachine machine_;
  Buffers buffers_;
  Steps<HostMachine> steps_;
  Call call_;
};

}  // namespace gradwire::shared
