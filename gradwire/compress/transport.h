// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The two collectives that an exchange needs from a group of ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace gradwire::compress {

// A collective under way. The destructor waits for its end, because other ranks may still write to the buffers.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // Blocks until this rank's part is done; the buffers are the caller's again then. Call once. Throws what the blocking
  // call throws.
  virtual void wait() = 0;
};

// One rank's place in a group, with two collectives on bytes. All ranks call the same collectives in the same order
// with the same sizes. A call blocks until this rank's part is done; the buffers are the caller's again then. Throws
// what the layer below throws (PeerError, TimeoutError, MismatchError, AbortedError); the transport is at its end after
// that. Threads: one at a time.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;  // the number of ranks

  // Collective. Writes the `mine` of rank 0, of rank 1, ... to `all`: size() parts of mine.size() bytes. Buffers do not
  // overlap. `mine` may be empty.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  // Collective. Both spans hold size() parts of equal length. Part r of `to_each` is written to part rank() of the
  // `from_each` of rank r. Part rank() of this rank's own `from_each` is unspecified. Buffers do not overlap.
  virtual void all_to_all(std::span<const std::byte> to_each, std::span<std::byte> from_each) = 0;

  // Start the collective and return. The transfer owns the buffers until its wait() has returned. Several transfers may
  // be under way, and may be waited for in any order. Return null when the collective has ended already. Default: make
  // the blocking call and return null.
  virtual std::unique_ptr<Transfer> start_all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    all_gather(mine, all);
    return nullptr;
  }
  virtual std::unique_ptr<Transfer> start_all_to_all(std::span<const std::byte> to_each,
                                                     std::span<std::byte> from_each) {
    all_to_all(to_each, from_each);
    return nullptr;
  }
};

}  // namespace gradwire::compress
