// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A Transport over a channel of any backend.
#pragma once

#include "gradwire/backend/backend.h"
#include "gradwire/compress/transport.h"

namespace gradwire::compress {

// How the calls on the channel behave; nothing here changes results.
struct ChannelTransportOptions {
  Milliseconds timeout = kDefaultTimeout;  // of each call
  CallTag tag = {};                        // of the first call; the stage counts up from there with each further one
};

// Does not own `channel`, which must outlive it. One thread at a time, as the channel itself.
class ChannelTransport final : public Transport {
 public:
  explicit ChannelTransport(Channel& channel, const ChannelTransportOptions& options = {}) noexcept
      : channel_(channel), timeout_(options.timeout), tag_(options.tag) {}

  int rank() const noexcept override { return channel_.rank(); }
  int size() const noexcept override { return channel_.size(); }
  // Throw InvalidArgument when the spans' sizes do not fit each other, else what the channel throws.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void all_to_all(std::span<const std::byte> to_each, std::span<std::byte> from_each) override;

 private:
  CallOptions next_call() noexcept;

  Channel& channel_;
  Milliseconds timeout_;
  CallTag tag_;
};

}  // namespace gradwire::compress
