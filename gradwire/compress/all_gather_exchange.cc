// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The all-gather exchange.
//
// Steps, on each of N ranks with n values:
//   1. encode all values (EncodeKey::rank = this rank)
//   2. all-gather the encodings (those of variable size: their sizes first)
//   3. decode them in rank order, add in float32: ((d0 + d1) + d2) + ...; divide
// delivered = the decoded form of this rank's own encoding.
//
// Bytes a rank sends: (N-1) enc(n); codecs of variable size: (N-1) (8 + m), m the bytes of the largest encoding.
// Time grows with N: every rank decodes N encodings.
#include <algorithm>

#include "gradwire/compress/exchange_internal.h"

namespace gradwire::compress {
namespace {

class AllGatherRun final : public ExchangeRun {
 public:
  AllGatherRun(Transport& transport, const Codec& codec, const ExchangeCall& call, Workspace& workspace)
      : transport_(transport), codec_(codec), call_(call), workspace_(workspace) {}

  bool advance() override {
    if (call_.values.empty()) return false;
    if (encodings_.parts.empty()) {
      send_encoding();
      return true;
    }
    finish(encodings_.transfer);
    for (int r = 0; r < transport_.size(); ++r) add_decoded(r);
    divide(call_.mean, divisor_of(call_, transport_), call_.mean);
    return false;
  }

  std::size_t sent() const noexcept override { return encodings_.sent; }

 private:
  EncodeKey key_of(int rank) const noexcept {
    EncodeKey key = call_.key;
    key.rank = static_cast<std::uint32_t>(rank);
    return key;
  }

  void send_encoding() {
    const std::size_t count = call_.values.size();
    const EncodeKey key = key_of(transport_.rank());
    const auto room = room_in(workspace_.outgoing, codec_.encoded_size(count, key.step));
    const std::size_t size = codec_.encode(call_.values, key, room);
    encodings_ = start_gathering(
        transport_, codec_, key.step, size, count, [count](int) { return count; }, workspace_);
  }

  // Puts the first rank's decoded values into the mean, or adds another's.
  void add_decoded(int rank) {
    const auto bytes = encodings_.parts[static_cast<std::size_t>(rank)];
    const bool first = rank == 0;
    if (rank == transport_.rank() && !call_.delivered.empty()) {
      codec_.decode(bytes, key_of(rank), call_.delivered);
      if (first) {
        std::copy(call_.delivered.begin(), call_.delivered.end(), call_.mean.begin());
      } else {
        add(call_.mean, call_.delivered, call_.mean);
      }
    } else if (first) {
      codec_.decode(bytes, key_of(rank), call_.mean);
    } else {
      const auto decoded = room_in(workspace_.decoded, call_.mean.size());
      codec_.decode(bytes, key_of(rank), decoded);
      add(call_.mean, decoded, call_.mean);
    }
  }

  Transport& transport_;
  const Codec& codec_;
  const ExchangeCall call_;
  Workspace& workspace_;
  Encodings encodings_;  // no parts: not encoded yet
};

class AllGatherExchange final : public Exchange {
 public:
  std::string name() const override { return "all_gather"; }

  std::unique_ptr<ExchangeRun> start(Transport& transport, const Codec& codec, const ExchangeCall& call,
                                     Workspace& workspace) const override {
    require_fitting(transport, call);
    return std::make_unique<AllGatherRun>(transport, codec, call, workspace);
  }

  std::size_t bytes_sent(const Codec& codec, std::size_t count, int world, std::uint64_t step) const override {
    return count == 0 ? 0 : gathered_bytes(codec, step, count, world);
  }
};

}  // namespace

std::unique_ptr<Exchange> make_all_gather_exchange() { return std::make_unique<AllGatherExchange>(); }

}  // namespace gradwire::compress
