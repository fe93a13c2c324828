// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What differs between ranks that are threads and ranks that are processes: how memory comes to be shared, and how one
// learns that a rank is gone. Everything else in this folder is the same for both.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/process.h"

namespace gradwire::shared {

// Where a rank's buffer lies: an offset within its part of a segment that all ranks map. Segment 0: in private memory.
struct Location {
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
  bool is_staged() const noexcept { return segment == 0; }
};

// Zeroed memory that all ranks see: `stride` bytes for each, one after another. The last copy of `base` unmaps it.
struct Region {
  std::shared_ptr<std::byte> base;
  std::size_t stride = 0;
  std::byte* part(int rank) const noexcept { return base.get() + static_cast<std::size_t>(rank) * stride; }
};

// The segments that this rank allocated and still holds: tells whether a pointer lies in memory that the others can
// read. Thread-safe.
class SegmentTable {
 public:
  struct Found {
    Location location;
    const std::byte* begin;  // of this rank's part
    std::size_t bytes;
    Region region;
  };
  void add(std::uint64_t segment, const Region& region, int rank);
  void remove(std::uint64_t segment);
  bool empty() const;
  // The segment that holds all of [data, data + bytes), if any.
  std::optional<Found> find(const void* data, std::size_t bytes) const;
  // Changes with every add and remove, so that callers can keep what they found.
  std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

 private:
  struct Row {
    std::uint64_t segment;
    Region region;
    const std::byte* begin;
    std::size_t bytes;
  };
  mutable std::shared_mutex mutex_;
  std::vector<Row> rows_;
  std::atomic<std::uint64_t> generation_{1};
};

// One rank's view of its peers. Thread-safe.
class World {
 public:
  World(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  // Whether this process is the one that joined (false in a forked child).
  const OwnerProcess& owner() const noexcept { return owner_; }

  // Whether each rank can have a processor of its own, so that spinning for a peer takes nothing from it.
  bool may_spin() const noexcept { return may_spin_; }

  // Whether every rank can read every pointer of every other (ranks are threads).
  virtual bool shares_all_memory() const noexcept = 0;

  // Collective: all ranks call it with the same key and stride and get the same region. Calls with different keys may
  // overlap. Throws ResourceError where this rank was refused memory (others may have got it: the caller takes a vote),
  // PeerError, TimeoutError. `check` is called now and then while waiting and may throw.
  virtual Region share_region(std::uint64_t key, std::size_t stride, Deadline deadline,
                              const std::function<void()>& check) = 0;

  // Whether the process of `peer` has ended. A system call.
  virtual bool is_gone(int peer) const noexcept = 0;
  // All ranks whose processes have ended, in ascending order.
  std::vector<int> gone() const;

  // The number of the process of `peer`, as that process knows it.
  virtual int process_of(int peer) const noexcept = 0;
  // "process 4711", for messages.
  virtual std::string describe_peer(int peer) const = 0;

  SegmentTable& segments() noexcept { return segments_; }

 protected:
  void set_may_spin(bool value) noexcept { may_spin_ = value; }

 private:
  const int rank_;
  const int size_;
  bool may_spin_ = false;
  OwnerProcess owner_;
  SegmentTable segments_;
};

// A well-mixed number out of two: names for what a channel makes (its duplicates, its allocations), equal on all ranks.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept;

}  // namespace gradwire::shared
