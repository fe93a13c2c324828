// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What an exchange needs from a group of ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace gradwire::compress {

// A collective on its way. Going, it waits for its end, so that nobody writes to buffers that are gone.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // Until this rank's part is done and the buffers are its own again; once. Throws what the blocking call would.
  virtual void wait() = 0;
};

// One rank's place in a group and two collectives on bytes. All ranks call the same ones in the same order with the
// same sizes. Calls block until this rank's part is done and its buffers are its own again. Errors are those of what
// lies below (PeerError, TimeoutError, MismatchError, AbortedError); the transport is at its end then. One thread at a
// time.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  // `all` = the `mine` of rank 0, of rank 1, ...: size() parts of mine.size() bytes. Buffers do not overlap. No bytes
  // at all are fine.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  // Both spans are size() parts of equal length: part r of `to_each` becomes part rank() of rank r's `from_each`. What
  // a rank's part for itself becomes is not specified. Buffers do not overlap.
  virtual void all_to_all(std::span<const std::byte> to_each, std::span<std::byte> from_each) = 0;

  // The same for callers with something else to do meanwhile; the buffers are the transfer's until its wait() returned.
  // Several may be on their way; they end in any order. Null when all is done already, which is what these do unless
  // overridden: the blocking call.
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
