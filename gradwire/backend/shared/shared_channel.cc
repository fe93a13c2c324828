// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/shared_channel_internal.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradwire/backend/shared/call_internal.h"
#include "gradwire/backend/shared/futex_internal.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"

namespace gradwire::shared {
namespace {

// How long a waiter spins when every rank has a processor of its own, before it sleeps.
constexpr auto kSpinTime = std::chrono::microseconds(60);
constexpr int kPausesBetweenLooks = 64;
// Where threads share processors: how often a waiter gives its processor away before it sleeps.
constexpr int kYields = 8;
// A sleeper looks round at least this often: for a peer's death, its own deadline, a wake that was lost.
constexpr Milliseconds kSlice{20};
constexpr std::uint64_t kEverywhere = 1;  // the segment of ranks that are threads: all memory

}  // namespace

SharedChannel::SharedChannel(std::shared_ptr<World> world, std::shared_ptr<PointToPoint> point_to_point, Region region,
                             std::uint64_t id, Waiting waiting)
    : world_(std::move(world)),
      point_to_point_(std::move(point_to_point)),
      region_(std::move(region)),
      id_(id),
      layout_(world_->size()),
      waiting_(waiting) {
  point_to_point_->add_channel(id_, [this](int peer) { return point_to_point_failure(peer); });
}

SharedChannel::~SharedChannel() {
  if (!world_->owner().is_current()) return;
  point_to_point_->remove_channel(id_);
  FailureNote& note = slot(rank()).failure;
  if (note.state.load(std::memory_order_relaxed) == RankState::active) {
    note.state.store(RankState::left, std::memory_order_seq_cst);
  }
  wake_everyone();
}

// --- steps ---------------------------------------------------------------------------------------------------------

Fingerprint SharedChannel::fingerprint(DType dtype, std::size_t count, ReduceOp op, int root) const noexcept {
  Fingerprint mine = fingerprint_of(operation_, dtype, count, op, root);
  mine.sequence = sequence_;
  mine.tag = options_.tag;
  return mine;
}

void SharedChannel::enter(const Fingerprint& mine, Location location) {
  trace::point("collective.entry", rank(), sequence_);
  ++step_;
  entry_step_.store(step_, std::memory_order_relaxed);
  ArrivalLine& own = line(rank());
  own.fingerprint = mine;
  own.location = location;
  arrive();
  await_all();
  // A rank that gave up on this call before this one came says so in its note; whoever sees none such may use the
  // others' buffers (see drain()). What a rank did after this call, its failures included, is no concern of this call.
  for (int peer = 0; peer < world_->size(); ++peer) {
    const FailureNote& note = slot(peer).failure;
    if (note.state.load(std::memory_order_seq_cst) == RankState::failed && note.during == step_) {
      check();
      adopt_failure_of(peer);
    }
  }
  compare_fingerprints(mine);
}

void SharedChannel::meet() {
  ++step_;
  arrive();
  await_all();
}

void SharedChannel::arrive() noexcept {
  ArrivalLine& own = line(rank());
  // An exchange is a full barrier: the store is seen before the count of sleepers is read, as a sleeper counts itself
  // before it looks again.
  own.step.exchange(step_, std::memory_order_seq_cst);
  if (slot(rank()).sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(low_half(own.step));
}

void SharedChannel::await_all() {
  const int size = world_->size();
  for (int peer = rank() + 1; peer < size; ++peer) await(peer);
  for (int peer = 0; peer < rank(); ++peer) await(peer);
}

void SharedChannel::await(int peer) {
  const std::atomic<std::uint64_t>& arrived = line(peer).step;
  if (arrived.load(std::memory_order_acquire) == step_) return;
  auto spin_until = Deadline::Clock::time_point::min();
  for (int look = 0;; ++look) {
    for (int pause = 0; pause < kPausesBetweenLooks; ++pause) {
      spin_pause();
      if (arrived.load(std::memory_order_acquire) == step_) return;
    }
    if (waiting_ == Waiting::spins) {
      const auto now = Deadline::Clock::now();
      if (look == 0) spin_until = now + kSpinTime;
      if (now >= spin_until) break;
    } else {
      if (look == kYields) break;
      ::sched_yield();
    }
  }
  sleep_until_arrived(peer);
}

void SharedChannel::sleep_until_arrived(int peer) {
  const std::atomic<std::uint64_t>& arrived = line(peer).step;
  const std::atomic<std::uint32_t>& word = low_half(arrived);
  for (bool slept = false;; slept = true) {
    if (arrived.load(std::memory_order_acquire) == step_) return;
    throw_if_over(peer, slept);
    slot(peer).sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = word.load(std::memory_order_seq_cst);
    if (seen != static_cast<std::uint32_t>(step_)) {
      futex_wait(word, seen, std::clamp(options_.deadline.remaining(), Milliseconds(1), kSlice));
    }
    slot(peer).sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
}

void SharedChannel::compare_fingerprints(const Fingerprint& mine) const {
  const int size = world_->size();
  bool equal = true;
  for (int peer = 0; peer < size; ++peer) equal = equal && line(peer).fingerprint == mine;
  if (equal) return;
  std::vector<Fingerprint> all;
  for (int peer = 0; peer < size; ++peer) all.push_back(line(peer).fingerprint);
  require_same(all, rank());
}

// --- where buffers lie ---------------------------------------------------------------------------------------------

Location SharedChannel::locate(const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  if (world_->shares_all_memory()) return {kEverywhere, reinterpret_cast<std::uint64_t>(begin)};
  auto& cache = cached_segment_;
  if (cache.generation != world_->segments().generation()) {
    cache = {};
    cache.generation = world_->segments().generation();
  }
  if (cache.segment == 0 || begin < cache.begin || begin + bytes > cache.begin + cache.bytes) {
    const auto found = world_->segments().find(data, bytes);
    if (!found) return {};
    cache.segment = found->location.segment;
    cache.begin = found->begin;
    cache.bytes = found->bytes;
    cache.base = found->region.base.get();
    cache.stride = found->region.stride;
  }
  return {cache.segment, static_cast<std::uint64_t>(begin - cache.begin)};
}

std::byte* SharedChannel::resolve(int peer, std::uint64_t offset) const noexcept {
  if (world_->shares_all_memory()) return reinterpret_cast<std::byte*>(offset);
  return cached_segment_.base + static_cast<std::size_t>(peer) * cached_segment_.stride + offset;
}

bool SharedChannel::all_in_place() const noexcept {
  const std::uint64_t segment = line(rank()).location.segment;
  bool all = segment != 0;
  for (int peer = 0; all && peer < world_->size(); ++peer) all = line(peer).location.segment == segment;
  return all;
}

bool SharedChannel::any_in_place() const noexcept {
  bool any = false;
  for (int peer = 0; peer < world_->size(); ++peer) any = any || line(peer).location.segment != 0;
  return any;
}

// --- calls that move nothing ---------------------------------------------------------------------------------------

void SharedChannel::barrier(const CallOptions& options) {
  collective(Operation::barrier, options, [&] { enter(fingerprint(DType::u8, 0), {}); });
}

std::unique_ptr<Channel> SharedChannel::duplicate(const CallOptions& options) {
  std::unique_ptr<Channel> made;
  collective(Operation::duplicate, options, [&] {
    enter(fingerprint(DType::u8, 0), {});
    const std::uint64_t id = mix(id_, ++made_);
    Region region = share_agreed(id, ChannelLayout(size()).stride);
    made = std::make_unique<SharedChannel>(world_, point_to_point_, std::move(region), id, Waiting::yields);
  });
  return made;
}

Allocation SharedChannel::allocate(std::size_t bytes, const CallOptions& options) {
  validate::allocate(*this, bytes);
  Allocation made;
  collective(Operation::allocate, options, [&] {
    enter(fingerprint(DType::u8, bytes), {});
    const std::uint64_t segment = mix(id_, ++made_);
    constexpr std::size_t kPage = 4096;
    const Region region = share_agreed(segment, std::max(kPage, (bytes + kPage - 1) / kPage * kPage));
    world_->segments().add(segment, region, rank());
    // The deleter must not keep the world: memory may outlive it.
    std::byte* data = region.part(rank());
    made.data = std::shared_ptr<std::byte>(
        data, [hold = region.base, world = std::weak_ptr<World>(world_), segment](std::byte*) {
          if (const auto alive = world.lock()) alive->segments().remove(segment);
        });
    made.bytes = bytes;
    made.in_place = true;
  });
  return made;
}

Region SharedChannel::share_agreed(std::uint64_t key, std::size_t stride) {
  Region region;
  std::string refused;
  try {
    region = world_->share_region(key, stride, options_.deadline, [this] { throw_if_over(rank(), false); });
  } catch (const ResourceError& error) {
    refused = error.what();
  }
  // The vote: each rank says with what it came out, in its note, which nothing else uses while the rank is active.
  {
    const MutexLock lock(failure_mutex_);
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    FailureNote& note = slot(rank()).failure;
    std::memset(note.reason, 0, sizeof(note.reason));
    refused.copy(note.reason, sizeof(note.reason) - 1);
  }
  meet();
  std::vector<int> losers;
  std::string first;
  for (int peer = 0; peer < size(); ++peer) {
    const char* text = slot(peer).failure.reason;
    if (*text == '\0') continue;
    if (losers.empty()) first = text;
    losers.push_back(peer);
  }
  meet();  // nobody writes a note again while another still reads it
  if (losers.empty()) return region;
  throw ResourceError(
      concat(in_call(), ": no shared memory, all ranks go without it: ", name_ranks(losers), ": ", first));
}

// --- point to point ------------------------------------------------------------------------------------------------

std::shared_ptr<Request> SharedChannel::isend(const void* data, std::size_t bytes, int destination, std::uint32_t tag) {
  validate::isend(*this, data, bytes, destination);
  world_->owner().require_current("this group");
  check();
  return point_to_point_->isend(id_, data, bytes, destination, tag);
}

std::shared_ptr<Request> SharedChannel::irecv(void* data, std::size_t bytes, int source, std::uint32_t tag) {
  validate::irecv(*this, data, bytes, source);
  world_->owner().require_current("this group");
  check();
  return point_to_point_->irecv(id_, data, bytes, source, tag);
}

}  // namespace gradwire::shared
