// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The compressed all-reduce.
//
// Steps, on each of N ranks with n values:
//   1. cut them into N chunks of at most L = 16 ceil(ceil(n/N) / 16) values (chunk_begin); chunk r belongs to rank r
//   2. encode each other rank's chunk; all-to-all (codecs of variable size: an all-gather of each rank's largest size
//      first, so that parts are equally long; each begins with its own size): ChunkScatter
//   3. the owner decodes the others' parts and adds them and its own, which was not encoded, in rank order in float32;
//      divides: ChunkSum
//   4. the owner encodes the mean of its chunk; all-gather: ChunkMeans
//   5. decode all chunks: deliver_mean()
// Each step goes from block to block, and takes the values from the ends again. Only the sum of a rank's own chunk is
// kept. Only where the codec does not keep the scale of values (bare signs) the owner's own part is encoded and decoded
// too.
//
// delivered: of another rank's chunk, the decoded form of this rank's encoding of it. Of a rank's own chunk,
// own part - (sum - divisor * decoded mean): the owner owes what the second encoding lost, of all ranks' values. So one
// memory a rank covers both encodings, and what is owed stays right when chunks move to other ranks.
//
// Keys: a chunk is a tensor of its own, number tensor * N + chunk. The first encoding has the sender's rank, the second
// N + the owner's, so ranks round independently, while codecs that do not look at the rank (random-k) take the same
// places twice.
//
// Bytes a rank sends: 2 (N-1) enc(min(n, L)), about 2 (N-1)/N enc(n): they do not grow with N. Codecs of variable size:
// (N-1) (8 + (8 + m1) + 8 + m2), m1 and m2 the bytes of the largest encodings of all ranks in steps 2 and 4.
#include "gradwire/compress/chunk_keys_internal.h"
#include "gradwire/compress/chunk_means_internal.h"
#include "gradwire/compress/chunk_scatter_internal.h"
#include "gradwire/compress/chunk_sum_internal.h"
#include "gradwire/compress/chunks_internal.h"
#include "gradwire/compress/exchange_internal.h"
#include "gradwire/compress/mean_delivery_internal.h"

namespace gradwire::compress {
namespace {

// The sequence of the steps.
class AllReduceRun final : public ExchangeRun {
 public:
  AllReduceRun(Transport& transport, const Codec& codec, const ExchangeCall& call, Workspace& workspace)
      : codec_(codec),
        ends_(call.ends),
        workspace_(workspace),
        rank_(transport.rank()),
        count_(ends_.mean().size()),
        chunks_(codec, count_, transport.size()),
        scatter_(transport, codec, ends_, chunks_, {call.key, transport.size()}, workspace),
        sum_(chunks_.length(rank_), transport.size(), divisor_of(call, transport), ends_.takes_delivered(), workspace),
        means_(transport, codec.for_means(), chunks_, {call.key, transport.size()}, workspace) {}

  bool advance() override {
    if (count_ == 0) return false;
    switch (next_++) {
      case 0:
        scatter_.start();
        return true;
      case 1:
        scatter_.finish();
        means_.start([this](const ChunkBlock& block) { return mean_of(block); });
        return true;
      default:
        means_.finish();
        deliver();
        return false;
    }
  }

  std::size_t sent() const noexcept override { return scatter_.sent() + means_.sent(); }

 private:
  // The mean of a block of this rank's chunk.
  std::span<const float> mean_of(const ChunkBlock& block) {
    return sum_.mean(block, [&](int r, std::span<float> room) -> std::span<const float> {
      if (r == rank_) return codec_.keeps_scale() ? values_of(ends_, block, workspace_) : scatter_.own_decoded(block);
      scatter_.decode_received(r, block, room);
      return room;
    });
  }

  void deliver() {
    deliver_mean(
        ends_, workspace_, workspace_.decoded, [this](const auto& body) { chunks_.for_all_blocks(body); },
        [this](const ChunkBlock& block, std::span<float> mean) { means_.decode(block, mean); },
        [this](const ChunkBlock& block, std::span<const float> values, std::span<const float> mean) {
          return delivered(block, values, mean);
        });
  }

  // What was delivered of this rank's `values` in a block of any chunk.
  std::span<const float> delivered(const ChunkBlock& block, std::span<const float> values,
                                   std::span<const float> mean) {
    if (block.chunk == rank_) {
      return sum_.delivered(block, codec_.keeps_scale() ? values : scatter_.own_decoded(block), mean);
    }
    const auto room = room_in(workspace_.delivered, block.length);
    scatter_.decode_sent(block, room);
    return room;
  }

  const Codec& codec_;
  ExchangeEnds& ends_;
  Workspace& workspace_;
  const int rank_;
  const std::size_t count_;
  const Chunks chunks_;
  ChunkScatter scatter_;
  ChunkSum sum_;
  ChunkMeans means_;
  int next_ = 0;  // step of advance()
};

class AllReduceExchange final : public Exchange {
 public:
  std::string name() const override { return "all_reduce"; }

  std::unique_ptr<ExchangeRun> start(Transport& transport, const Codec& codec, const ExchangeCall& call,
                                     Workspace& workspace) const override {
    require_fitting(transport, call);
    return std::make_unique<AllReduceRun>(transport, codec, call, workspace);
  }

  std::size_t bytes_sent(const Codec& codec, std::size_t count, int world, std::uint64_t step) const override {
    if (count == 0 || world == 1) return 0;
    const std::size_t largest = chunk_begin(count, world, 1);
    const std::size_t header = codec.is_fixed_size() ? 0 : 2 * kSizeBytes;  // the largest size, and each part's own
    const std::size_t first = static_cast<std::size_t>(world - 1) * (header + codec.encoded_size(largest, step));
    return first + gathered_bytes(codec.for_means(), step, largest, world);
  }
};

}  // namespace

std::unique_ptr<Exchange> make_all_reduce_exchange() { return std::make_unique<AllReduceExchange>(); }

}  // namespace gradwire::compress
