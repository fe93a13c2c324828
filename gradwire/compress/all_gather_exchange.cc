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

class AllGatherExchange final : public Exchange {
 public:
  std::string name() const override { return "all_gather"; }

  std::size_t run(Transport& transport, const Codec& codec, const ExchangeCall& call,
                  Workspace& workspace) const override {
    require_fitting(transport, call);
    const std::size_t count = call.values.size();
    if (count == 0) return 0;
    EncodeKey key = call.key;
    key.rank = static_cast<std::uint32_t>(transport.rank());
    const auto room = room_in(workspace.outgoing, codec.encoded_size(count, key.step));
    const std::size_t size = codec.encode(call.values, key, room);
    const Encodings encodings = gather_encodings(
        transport, codec, key.step, size, count, [&](int) { return count; }, workspace);
    for (int r = 0; r < transport.size(); ++r) {
      key.rank = static_cast<std::uint32_t>(r);
      add_decoded(codec, key, encodings.parts[static_cast<std::size_t>(r)], r == transport.rank(), call, workspace);
    }
    divide(call.mean, divisor_of(call, transport), call.mean);
    return encodings.sent;
  }

  std::size_t bytes_sent(const Codec& codec, std::size_t count, int world, std::uint64_t step) const override {
    return count == 0 ? 0 : gathered_bytes(codec, step, count, world);
  }

 private:
  // Puts the first rank's decoded values into `mean`, or adds another's.
  static void add_decoded(const Codec& codec, const EncodeKey& key, std::span<const std::byte> bytes, bool own,
                          const ExchangeCall& call, Workspace& workspace) {
    const bool first = key.rank == 0;
    if (own && !call.delivered.empty()) {
      codec.decode(bytes, key, call.delivered);
      if (first) {
        std::copy(call.delivered.begin(), call.delivered.end(), call.mean.begin());
      } else {
        add(call.mean, call.delivered);
      }
    } else if (first) {
      codec.decode(bytes, key, call.mean);
    } else {
      const auto decoded = room_in(workspace.decoded, call.mean.size());
      codec.decode(bytes, key, decoded);
      add(call.mean, decoded);
    }
  }
};

}  // namespace

std::unique_ptr<Exchange> make_all_gather_exchange() { return std::make_unique<AllGatherExchange>(); }

}  // namespace gradwire::compress
