// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A ring of frames in shared memory with one writer and one reader (who may be different processes), and the bell that
// wakes a rank.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gradwire/backend/messages/wire_internal.h"
#include "gradwire/base/copy.h"

namespace gradwire::shared {

// In shared memory, before the ring's data. Positions count bytes since the beginning.
struct RingHeader {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t> writer_waits;  // for room
};

// One side's view of a ring, which has one object for its writer and one for its reader; `capacity` is a power of two.
// Each remembers how far the other one was, and looks again only where that does not do: a look takes the cache line
// away from the other side. Not thread-safe: each side has one thread at a time.
class Ring {
 public:
  Ring(RingHeader* header, std::byte* data, std::size_t capacity) : header_(header), data_(data), capacity_(capacity) {}

  // Writes a frame and its payload if there is room for both. Otherwise the reader's pop() will say that the writer
  // waits.
  bool write(const messages::Frame& frame, const std::byte* payload, std::size_t bytes) noexcept {
    const std::uint64_t at = header_->written.load(std::memory_order_relaxed);
    const std::size_t needed = sizeof(frame) + padded(bytes);
    const auto has_room = [&] { return capacity_ - (at - other_) >= needed; };
    if (!has_room()) other_ = header_->read.load(std::memory_order_acquire);
    if (!has_room()) {
      // Said before looking again, as the reader reads first and asks after: one of the two sees the other.
      header_->writer_waits.store(1, std::memory_order_seq_cst);
      other_ = header_->read.load(std::memory_order_seq_cst);
      if (!has_room()) return false;
    }
    put(at, &frame, sizeof(frame));
    put(at + sizeof(frame), payload, bytes);
    header_->written.store(at + needed, std::memory_order_seq_cst);
    ask_for_lines(at + needed);
    return true;
  }

  // The next frame and its payload where it lies, if one is there.
  bool peek(messages::Frame& frame, messages::Payload& payload) noexcept {
    const std::uint64_t at = header_->read.load(std::memory_order_relaxed);
    if (other_ == at) other_ = header_->written.load(std::memory_order_acquire);
    if (other_ == at) return false;
    get(at, &frame, sizeof(frame));
    const std::size_t bytes = messages::payload_bytes(frame);
    const std::size_t offset = (at + sizeof(frame)) & (capacity_ - 1);
    const std::size_t first = std::min(bytes, capacity_ - offset);
    payload.first = {data_ + offset, first};
    payload.second = {data_, bytes - first};
    return true;
  }

  // Frees the frame that peek() gave. Returns whether the writer waits for room.
  bool pop(const messages::Frame& frame) noexcept {
    const std::uint64_t at = header_->read.load(std::memory_order_relaxed);
    header_->read.store(at + sizeof(frame) + padded(messages::payload_bytes(frame)), std::memory_order_seq_cst);
    return header_->writer_waits.load(std::memory_order_seq_cst) != 0 &&
           header_->writer_waits.exchange(0, std::memory_order_seq_cst) != 0;
  }

  std::size_t capacity() const noexcept { return capacity_; }

 private:
  static std::size_t padded(std::size_t bytes) noexcept { return (bytes + 7) & ~std::size_t{7}; }

  void put(std::uint64_t at, const void* from, std::size_t bytes) noexcept {
    if (bytes == 0) return;
    const std::size_t offset = at & (capacity_ - 1);
    const std::size_t first = std::min(bytes, capacity_ - offset);
    copy_bytes(data_ + offset, from, first);
    copy_bytes(data_, static_cast<const std::byte*>(from) + first, bytes - first);
  }
  void get(std::uint64_t at, void* to, std::size_t bytes) const noexcept {
    const std::size_t offset = at & (capacity_ - 1);
    const std::size_t first = std::min(bytes, capacity_ - offset);
    copy_bytes(to, data_ + offset, first);
    copy_bytes(static_cast<std::byte*>(to) + first, data_, bytes - first);
  }

  // The reader has the lines that the next frame is written to: they come while the writer does something else.
  void ask_for_lines(std::uint64_t at) const noexcept {
    constexpr std::size_t kLine = 64;
    constexpr std::size_t kAhead = 3;  // a frame and a small payload
    for (std::size_t line = 0; line < kAhead; ++line) {
      __builtin_prefetch(data_ + ((at + line * kLine) & (capacity_ - 1)), /*to be written*/ 1);
    }
  }

  RingHeader* header_;
  std::byte* data_;
  std::size_t capacity_;
  std::uint64_t other_ = 0;  // how far the other side was when this one last looked
};

// Wakes the threads of a rank that wait for frames: one that waits for a message, and the one that moves them
// otherwise.
struct Bell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;
};

}  // namespace gradwire::shared
