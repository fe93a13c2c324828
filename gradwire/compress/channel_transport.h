// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A Transport over a channel of any backend.
#pragma once

#include "gradwire/backend/backend.h"
#include "gradwire/compress/transport.h"

namespace gradwire::compress {

// Options of the calls on the channel. None of them changes results.
struct ChannelTransportOptions {
  Milliseconds timeout = kDefaultTimeout;  // the timeout of each call
  CallTag tag = {};                        // the tag of the first call; the stage counts up by one with each call
};

// Does not own `channel`, which must outlive this object. Threads: one at a time, as for the channel.
class ChannelTransport final : public Transport {
 public:
  // `channel` must outlive the transport.
  explicit ChannelTransport(Channel& channel, const ChannelTransportOptions& options = {}) noexcept
      : channel_(channel), timeout_(options.timeout), tag_(options.tag) {}

  int rank() const noexcept override { return channel_.rank(); }
  int size() const noexcept override { return channel_.size(); }
  // Throw InvalidArgument when the sizes of the spans do not match, and what the channel throws.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void all_to_all(std::span<const std::byte> to_each, std::span<std::byte> from_each) override;

 private:
  CallOptions next_call() noexcept;

  Channel& channel_;
  Milliseconds timeout_;
  CallTag tag_;
};

}  // namespace gradwire::compress
