// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The all-gather exchange.
//
// Steps, on each of N ranks with n values:
//   1. encode all values (EncodeKey::rank = this rank)
//   2. all-gather the encodings (those of variable size: their sizes first)
//   3. decode them in rank order, add in float32: ((d0 + d1) + d2) + ...; divide
// Each step goes from block to block.
// delivered = the decoded form of this rank's own encoding.
//
// Bytes a rank sends: (N-1) enc(n); codecs of variable size: (N-1) (8 + m), m the bytes of the largest encoding.
// Time grows with N: every rank decodes N encodings.
#include <optional>

#include "gradwire/compress/exchange_internal.h"
#include "gradwire/compress/mean_delivery_internal.h"

namespace gradwire::compress {
namespace {

class AllGatherRun final : public ExchangeRun {
 public:
  AllGatherRun(Transport& transport, const Codec& codec, const ExchangeCall& call, Workspace& workspace)
      : transport_(transport), codec_(codec), call_(call), workspace_(workspace), mean_(call.ends.mean()) {}

  bool advance() override {
    if (mean_.empty()) return false;
    if (encodings_.parts.empty()) {
      send_encoding();
      return true;
    }
    finish(encodings_.transfer);
    deliver();
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
    const std::size_t count = mean_.size();
    const EncodeKey key = key_of(transport_.rank());
    const auto room = room_in(workspace_.outgoing, codec_.encoded_size(count, key.step));
    std::size_t size = 0;
    for_blocks(codec_, count, [&](std::size_t first, std::size_t length) {
      const auto values = values_of(call_.ends, {first, length}, workspace_);
      size = codec_.encode_part(values, first, count, key, room);
    });
    require_written_size(codec_, size, count, key.step);
    encodings_ = start_gathering(
        transport_, codec_, key.step, size, count, [count](int) { return count; }, room, workspace_.incoming);
  }

  // Step 3.
  void deliver() {
    deliver_mean(
        call_.ends, workspace_, workspace_.sum,
        [this](const auto& body) {
          for_blocks(codec_, mean_.size(), [&](std::size_t first, std::size_t length) { body(Block{first, length}); });
        },
        [this](const Block& block, std::span<float> mean) { work_out(block.begin, mean); },
        [this](const Block& block, std::span<const float>, std::span<const float>) {
          return delivered(block.begin, block.length);
        });
  }

  void work_out(std::size_t first, std::span<float> mean) {
    const auto decode = [&](int r, std::span<float> room) -> std::span<const float> {
      if (r == transport_.rank() && call_.ends.takes_delivered()) return delivered_again(first, room.size());
      decode_part(r, first, room);
      return room;
    };
    add_ranks(transport_.size(), room_in(workspace_.decoded, mean.size()), decode, mean);
    divide(mean, divisor_of(call_, transport_), mean);
  }

  // What this rank's own encoding says of a block.
  std::span<const float> delivered(std::size_t first, std::size_t length) {
    if (delivered_first_ == first) return std::span<const float>(workspace_.delivered).first(length);
    return delivered_again(first, length);
  }
  std::span<const float> delivered_again(std::size_t first, std::size_t length) {
    const auto room = room_in(workspace_.delivered, length);
    decode_part(transport_.rank(), first, room);
    delivered_first_ = first;
    return room;
  }

  void decode_part(int rank, std::size_t first, std::span<float> values) const {
    const auto bytes = encodings_.parts[static_cast<std::size_t>(rank)];
    codec_.decode_part(bytes, first, mean_.size(), key_of(rank), values);
  }

  Transport& transport_;
  const Codec& codec_;
  const ExchangeCall call_;
  Workspace& workspace_;
  const std::span<float> mean_;
  Encodings encodings_;                         // no parts: not encoded yet
  std::optional<std::size_t> delivered_first_;  // of the block in workspace_.delivered
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
