// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/shared_channel_internal.h"

#include <algorithm>
#include <utility>

#include "gradwire/backend/peer_error_internal.h"
#include "gradwire/backend/shared/collectives_internal.h"
#include "gradwire/backend/shared/failure_internal.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"

namespace gradwire::shared {

SharedChannel::SharedChannel(std::shared_ptr<World> world, std::shared_ptr<PointToPoint> point_to_point, Region region,
                             std::uint64_t id, HostMachine::Waiting waiting)
    : world_(std::move(world)),
      point_to_point_(std::move(point_to_point)),
      id_(id),
      machine_(*world_, waiting),
      buffers_(*world_, std::move(region)),
      steps_(machine_, buffers_.region().base.get(), buffers_.region().stride, world_->rank(), world_->size()),
      call_(*world_, machine_, steps_, buffers_) {
  point_to_point_->add_channel(id_, [this](int peer) { return point_to_point_failure(peer); });
}

SharedChannel::~SharedChannel() {
  if (!world_->owner().is_current()) return;
  point_to_point_->remove_channel(id_);
  steps_.leave();
}

template <class Body>
void SharedChannel::collective(Operation operation, const CallOptions& options, Body&& body) {
  world_->owner().require_current("this group");
  check();
  call_.begin(operation, options);
  try {
    body();
    check();  // an abort() came first, though the others' parts came before this thread saw that
  } catch (const ResourceError&) {
    call_.finish();  // agreed on by all ranks: the channel goes on
    throw;
  } catch (...) {
    end(std::current_exception());
  }
  call_.finish();
}

// --- collectives ---------------------------------------------------------------------------------------------------

void SharedChannel::barrier(const CallOptions& options) {
  collective(Operation::barrier, options, [&] { call_.enter(call_.fingerprint(DType::u8, 0), {}); });
}

void SharedChannel::broadcast(void* data, std::size_t count, DType dtype, int root, const CallOptions& options) {
  validate::broadcast(*this, data, count, dtype, root);
  collective(Operation::broadcast, options, [&] { shared::broadcast(call_, data, count, dtype, root); });
}

void SharedChannel::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, const CallOptions& options) {
  validate::all_reduce(*this, data, count, dtype, op);
  collective(Operation::all_reduce, options, [&] { shared::all_reduce(call_, data, count, dtype, op); });
}

void SharedChannel::reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op, int root,
                           const CallOptions& options) {
  validate::reduce(*this, input, output, count, dtype, op, root);
  collective(Operation::reduce, options, [&] { shared::reduce(call_, input, output, count, dtype, op, root); });
}

void SharedChannel::all_gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype,
                               const CallOptions& options) {
  validate::all_gather(*this, input, outputs, count, dtype);
  collective(Operation::all_gather, options, [&] { shared::all_gather(call_, input, outputs, count, dtype); });
}

void SharedChannel::gather(const void* input, std::span<void* const> outputs, std::size_t count, DType dtype, int root,
                           const CallOptions& options) {
  validate::gather(*this, input, outputs, count, dtype, root);
  collective(Operation::gather, options, [&] { shared::gather(call_, input, outputs, count, dtype, root); });
}

void SharedChannel::scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype, int root,
                            const CallOptions& options) {
  validate::scatter(*this, inputs, output, count, dtype, root);
  collective(Operation::scatter, options, [&] { shared::scatter(call_, inputs, output, count, dtype, root); });
}

void SharedChannel::reduce_scatter(std::span<const void* const> inputs, void* output, std::size_t count, DType dtype,
                                   ReduceOp op, const CallOptions& options) {
  validate::reduce_scatter(*this, inputs, output, count, dtype, op);
  collective(Operation::reduce_scatter, options,
             [&] { shared::reduce_scatter(call_, inputs, output, count, dtype, op); });
}

void SharedChannel::all_to_all(std::span<const ConstSlice> inputs, std::span<const Slice> outputs, DType dtype,
                               const CallOptions& options) {
  validate::all_to_all(*this, inputs, outputs, dtype);
  collective(Operation::all_to_all, options, [&] { shared::all_to_all(call_, inputs, outputs, dtype); });
}

// --- what a channel makes ------------------------------------------------------------------------------------------

std::unique_ptr<Channel> SharedChannel::duplicate(const CallOptions& options) {
  std::unique_ptr<SharedChannel> made;
  try {
    collective(Operation::duplicate, options, [&] {
      call_.enter(call_.fingerprint(DType::u8, 0), {});
      const std::uint64_t id = mix(id_, ++made_);
      share_agreed(id, ChannelLayout(size()).stride, [&](Region region) {
        made = std::make_unique<SharedChannel>(world_, point_to_point_, std::move(region), id,
                                               HostMachine::Waiting::yields);
      });
    });
  } catch (const ResourceError&) {
    throw;
  } catch (...) {
    // The others may have the duplicate: they learn there that this rank has none.
    if (made != nullptr) made->end_quietly(report_of(std::current_exception()), std::current_exception());
    throw;
  }
  return made;
}

Allocation SharedChannel::allocate(std::size_t bytes, const CallOptions& options) {
  validate::allocate(*this, bytes);
  Allocation made;
  collective(Operation::allocate, options, [&] {
    call_.enter(call_.fingerprint(DType::u8, bytes), {});
    const std::uint64_t segment = mix(id_, ++made_);
    constexpr std::size_t kPage = 4096;
    Region region;
    share_agreed(segment, std::max(kPage, (bytes + kPage - 1) / kPage * kPage),
                 [&](Region shared) { region = shared; });
    world_->segments().add(segment, region, rank());
    // The deleter must not keep the world: memory may outlive it.
    std::byte* data = region.part(rank());
    made.data = std::shared_ptr<std::byte>(
        data, [hold = region.base, world = std::weak_ptr<World>(world_), segment](std::byte*) {
          // In a forked child a thread that is not there may hold the table's lock for ever.
          if (const auto alive = world.lock(); alive && alive->owner().is_current()) alive->segments().remove(segment);
        });
    made.bytes = bytes;
    made.in_place = true;
  });
  return made;
}

std::vector<std::shared_ptr<std::byte>> SharedChannel::symmetric_memory(const void* data, std::size_t bytes) const {
  const auto found = world_->segments().find(data, bytes);
  std::vector<std::shared_ptr<std::byte>> by_rank;
  for (int peer = 0; found && peer < size(); ++peer)
    by_rank.emplace_back(found->region.base, found->region.part(peer) + found->location.offset);
  return by_rank;
}

void SharedChannel::share_agreed(std::uint64_t key, std::size_t stride, const std::function<void(Region)>& take) {
  FailureReport vote{};
  try {
    take(world_->share_region(key, stride, call_.deadline(), [this] { call_.check_others(); }));
  } catch (const ResourceError& error) {
    set_reason(vote, error.what());
  }
  steps_.vote(vote);
  call_.meet();
  std::vector<int> losers;
  std::string first;
  for (int peer = 0; peer < size(); ++peer) {
    const std::string text = reason_of(steps_.vote_of(peer));
    if (text.empty()) continue;
    if (losers.empty()) first = text;
    losers.push_back(peer);
  }
  trace::point("duplicate.last_step", rank());
  call_.meet();  // nobody votes on something else while another still reads this
  if (losers.empty()) return;
  throw ResourceError(
      concat(call_.name(), ": no shared memory, all ranks go without it: ", name_ranks(losers), ": ", first));
}

// --- ending --------------------------------------------------------------------------------------------------------

void SharedChannel::check() const {
  if (steps_.failed()) std::rethrow_exception(steps_.reason());
}

void SharedChannel::end(std::exception_ptr error) {
  end_quietly(report_of(error), error);
  steps_.drain();
  check();
  std::rethrow_exception(error);
}

void SharedChannel::end_quietly(const FailureReport& report, const std::exception_ptr& error) noexcept {
  if (steps_.fail(report, error)) point_to_point_->end_channel(id_, error);
}

void SharedChannel::abort(std::string_view reason) noexcept {
  if (!world_->owner().is_current()) return;
  try {
    FailureReport report{};
    report.kind = FailureKind::aborted;
    set_reason(report, reason);
    end_quietly(report,
                std::make_exception_ptr(AbortedError(concat("rank ", rank(), " of ", size(), " aborted: ", reason))));
  } catch (...) {  // out of memory for the text: the others learn by the deadline
  }
}

// --- point to point ------------------------------------------------------------------------------------------------

std::shared_ptr<Request> SharedChannel::isend(const void* data, std::size_t bytes, int destination, std::uint32_t tag) {
  validate::isend(*this, data, bytes, destination, tag);
  world_->owner().require_current("this group");
  check();
  return point_to_point_->isend(id_, data, bytes, destination, tag);
}

std::shared_ptr<Request> SharedChannel::irecv(void* data, std::size_t bytes, int source, std::uint32_t tag) {
  validate::irecv(*this, data, bytes, source, tag);
  world_->owner().require_current("this group");
  check();
  return point_to_point_->irecv(id_, data, bytes, source, tag);
}

messages::Loss SharedChannel::point_to_point_failure(int peer) const {
  const RankState state = steps_.state_of(peer);
  if (state == RankState::active) return {};
  const std::string what = concat("point to point on rank ", rank(), " of ", size(), ": rank ", peer);
  if (state == RankState::left) {
    return {.reason = std::make_exception_ptr(peer_error(what + " left the group", {peer}, kAfterALeave)),
            .left = true};
  }
  const FailureReport& report = steps_.report_of(peer);
  return {std::make_exception_ptr(
      peer_error(concat(what, " failed: ", reason_of(report)), at_fault(peer, report, rank())))};
}

}  // namespace gradwire::shared
