// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A ring of bytes in shared memory with one writer and one reader (who may be different processes), and the bell that
// wakes its reader.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradwire::shared {

// What stands before every piece of data in a ring.
struct Frame {
  enum class Kind : std::uint32_t { message = 1, offer, accept, piece, cancel };
  Kind kind;
  std::uint32_t tag;
  std::uint64_t channel;
  std::uint64_t id;     // of a large message, unique to its sender
  std::uint64_t bytes;  // message, piece: of the payload that follows; offer: of the whole message
};
static_assert(sizeof(Frame) == 32);

// In shared memory, before the ring's data. Positions count bytes since the beginning.
struct RingHeader {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
};

// One side's view of a ring; `capacity` is a power of two. Not thread-safe: each side has one thread at a time.
class Ring {
 public:
  Ring(RingHeader* header, std::byte* data, std::size_t capacity) : header_(header), data_(data), capacity_(capacity) {}

  // Writes a frame and its payload if there is room for both.
  bool write(const Frame& frame, const std::byte* payload, std::size_t bytes) noexcept {
    const std::uint64_t at = header_->written.load(std::memory_order_relaxed);
    const std::size_t needed = sizeof(Frame) + padded(bytes);
    if (capacity_ - (at - header_->read.load(std::memory_order_acquire)) < needed) return false;
    put(at, &frame, sizeof(Frame));
    put(at + sizeof(Frame), payload, bytes);
    header_->written.store(at + needed, std::memory_order_seq_cst);
    return true;
  }

  // The next frame, if one is there.
  bool peek(Frame& frame) const noexcept {
    const std::uint64_t at = header_->read.load(std::memory_order_relaxed);
    if (header_->written.load(std::memory_order_acquire) == at) return false;
    get(at, &frame, sizeof(Frame));
    return true;
  }

  // Copies `bytes` of the next frame's payload (to may be null: drops it) and frees frame and payload, `all` bytes
  // long.
  void take(std::byte* to, std::size_t bytes, std::size_t all) noexcept {
    const std::uint64_t at = header_->read.load(std::memory_order_relaxed);
    if (to != nullptr) get(at + sizeof(Frame), to, bytes);
    header_->read.store(at + sizeof(Frame) + padded(all), std::memory_order_seq_cst);
  }

  std::size_t capacity() const noexcept { return capacity_; }

 private:
  static std::size_t padded(std::size_t bytes) noexcept { return (bytes + 7) & ~std::size_t{7}; }

  void put(std::uint64_t at, const void* from, std::size_t bytes) noexcept {
    if (bytes == 0) return;
    const std::size_t offset = at & (capacity_ - 1);
    const std::size_t first = bytes < capacity_ - offset ? bytes : capacity_ - offset;
    std::memcpy(data_ + offset, from, first);
    std::memcpy(data_, static_cast<const std::byte*>(from) + first, bytes - first);
  }
  void get(std::uint64_t at, void* to, std::size_t bytes) const noexcept {
    if (bytes == 0) return;
    const std::size_t offset = at & (capacity_ - 1);
    const std::size_t first = bytes < capacity_ - offset ? bytes : capacity_ - offset;
    std::memcpy(to, data_ + offset, first);
    std::memcpy(static_cast<std::byte*>(to) + first, data_, bytes - first);
  }

  RingHeader* header_;
  std::byte* data_;
  std::size_t capacity_;
};

// Wakes the thread that moves a rank's messages.
struct Bell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleeping;
};

}  // namespace gradwire::shared
