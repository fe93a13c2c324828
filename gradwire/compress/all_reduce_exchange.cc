// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The compressed all-reduce.
//
// Steps, on each of N ranks with n values:
//   1. cut them into N chunks of at most L = 16 ceil(ceil(n/N) / 16) values (chunk_begin); chunk r belongs to rank r
//   2. encode each other rank's chunk; all-to-all (codecs of variable size: an all-gather of each rank's largest size
//      first, so that parts are equally long; each begins with its own size)
//   3. the owner decodes the others' parts and adds them and its own, which was not encoded, in rank order in float32;
//      divides
//   4. the owner encodes the mean of its chunk; all-gather
//   5. decode all chunks
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
#include <algorithm>
#include <cstring>

#include "gradwire/compress/exchange_internal.h"

namespace gradwire::compress {
namespace {

class AllReduceRun final : public ExchangeRun {
 public:
  AllReduceRun(Transport& transport, const Codec& codec, const ExchangeCall& call, Workspace& workspace)
      : transport_(transport),
        codec_(codec),
        call_(call),
        workspace_(workspace),
        mean_(call.ends.mean()),
        world_(transport.size()),
        rank_(transport.rank()),
        largest_(chunk_begin(mean_.size(), world_, 1)),
        header_(codec.is_fixed_size() ? 0 : kSizeBytes),
        stride_(header_ + codec.encoded_size(largest_, call.key.step)) {}

  bool advance() override {
    if (mean_.empty()) return false;
    switch (next_++) {
      case 0:
        encode_chunks();
        send_chunks();
        return true;
      case 1:
        finish(chunks_);
        send_mean();
        return true;
      default:
        finish(means_.transfer);
        deliver();
        return false;
    }
  }

  std::size_t sent() const noexcept override { return sent_; }

 private:
  std::size_t begin_of(int r) const noexcept { return chunk_begin(mean_.size(), world_, r); }
  std::size_t length_of(int r) const noexcept { return begin_of(r + 1) - begin_of(r); }
  std::span<std::byte> part(std::span<std::byte> parts, int r) const noexcept {
    return parts.subspan(static_cast<std::size_t>(r) * stride_, stride_);
  }
  EncodeKey key(int chunk, int coder) const noexcept {
    EncodeKey made = call_.key;
    made.tensor = made.tensor * static_cast<std::uint64_t>(world_) + static_cast<std::uint64_t>(chunk);
    made.rank = static_cast<std::uint32_t>(coder);
    return made;
  }

  // Step 2, before anything is sent. Parts lie in `outgoing`, each with its size in front where sizes vary.
  void encode_chunks() {
    const auto outgoing = room_in(workspace_.outgoing, static_cast<std::size_t>(world_) * stride_);
    for (int r = 0; r < world_; ++r) {
      if (r == rank_ && codec_.keeps_scale()) continue;
      const auto room = part(outgoing, r).subspan(header_);
      const std::size_t size = encode_chunk(r, room);
      require_written_size(codec_, size, length_of(r), call_.key.step);
      if (header_ != 0) write_as(part(outgoing, r).data(), std::uint64_t{size});
      if (r == rank_) {
        codec_.decode(room.first(size), key(r, rank_), room_in(workspace_.own, length_of(r)));
      } else {
        longest_ = std::max(longest_, size);
      }
    }
  }

  std::size_t encode_chunk(int r, std::span<std::byte> room) {
    std::size_t size = 0;
    for_blocks(codec_, length_of(r), [&](std::size_t first, std::size_t length) {
      size = codec_.encode_part(values(r, first, length), first, length_of(r), key(r, rank_), room);
    });
    return size;
  }

  // This rank's values in a block of chunk r.
  std::span<const float> values(int r, std::size_t first, std::size_t length) {
    return call_.ends.values(begin_of(r) + first, room_in(workspace_.values, length));
  }

  void send_chunks() {
    if (world_ == 1) return;
    if (header_ != 0) shorten_parts();
    const std::size_t bytes = static_cast<std::size_t>(world_) * stride_;
    chunks_ = transport_.start_all_to_all(room_in(workspace_.outgoing, bytes), room_in(workspace_.incoming, bytes));
    sent_ += static_cast<std::size_t>(world_ - 1) * stride_;
  }

  // Moves parts together to the length of the longest one of all ranks.
  void shorten_parts() {
    const auto longest = gather_sizes(transport_, codec_, longest_, stride_ - header_);
    sent_ += static_cast<std::size_t>(world_ - 1) * kSizeBytes;
    const std::size_t shorter = header_ + *std::max_element(longest.begin(), longest.end());
    for (int r = 1; r < world_; ++r) {
      if (r == rank_) continue;
      std::memmove(workspace_.outgoing.data() + static_cast<std::size_t>(r) * shorter,
                   workspace_.outgoing.data() + static_cast<std::size_t>(r) * stride_, shorter);
    }
    stride_ = shorter;
  }

  // The encoding of `count` values in part r of `parts`.
  std::span<const std::byte> encoding_in(std::span<std::byte> parts, int r, std::size_t count) const {
    const auto bytes = part(parts, r);
    if (header_ == 0) return bytes.first(codec_.encoded_size(count, call_.key.step));
    return bytes.subspan(header_, read_size(codec_, bytes.data(), stride_ - header_));
  }

  // Steps 3 and 4.
  void send_mean() {
    const Codec& codec = codec_.for_means();
    const std::size_t count = length_of(rank_);
    const auto room = room_in(workspace_.outgoing_mean, codec.encoded_size(largest_, call_.key.step));
    std::size_t size = 0;
    for_blocks(codec_, count, [&](std::size_t first, std::size_t length) {
      const auto sum = add_block(first, length);
      const auto mean = room_in(workspace_.decoded, length);
      divide(sum, divisor_of(call_, transport_), mean);
      size = codec.encode_part(mean, first, count, key(rank_, world_ + rank_), room);
    });
    require_written_size(codec, size, count, call_.key.step);
    means_ = start_gathering(
        transport_, codec, call_.key.step, size, largest_, [this](int r) { return length_of(r); }, room,
        workspace_.incoming);
    sent_ += means_.sent;
  }

  // The sum of a block of this rank's chunk. All sums stay where settle() needs them.
  std::span<const float> add_block(std::size_t first, std::size_t length) {
    const std::size_t count = length_of(rank_);
    const bool keeps = call_.ends.takes_delivered();
    const auto sum = room_in(workspace_.sum, keeps ? count : length).subspan(keeps ? first : 0, length);
    const auto decode = [&](int r, std::span<float> room) -> std::span<const float> {
      if (r == rank_) return own_part(first, length);
      codec_.decode_part(encoding_in(workspace_.incoming, r, count), first, count, key(rank_, r), room);
      return room;
    };
    add_ranks(world_, room_in(workspace_.decoded, length), decode, sum);
    return sum;
  }

  // What of this rank's values goes into the sum of its own chunk.
  std::span<const float> own_part(std::size_t first, std::size_t length) {
    if (codec_.keeps_scale()) return values(rank_, first, length);
    return std::span<const float>(workspace_.own).subspan(first, length);
  }

  // Step 5.
  void deliver() {
    const bool delivers = call_.ends.takes_delivered() && mean_is_finite();
    for (int r = 0; r < world_; ++r) {
      for_blocks(codec_, length_of(r), [&](std::size_t first, std::size_t length) {
        std::span<const float> wanted;
        if (delivers) wanted = values(r, first, length);
        const auto mean = mean_.subspan(begin_of(r) + first, length);
        if (!has_mean_) decode_mean(r, first, mean);
        if (delivers) call_.ends.deliver(begin_of(r) + first, wanted, delivered(r, first, wanted, mean));
      });
    }
  }

  // The memory may change only when no block is in the way, so all blocks are looked at before. The mean must not
  // overwrite what the values come from: then it is decoded again.
  bool mean_is_finite() {
    has_mean_ = call_.ends.keeps_values();
    bool finite = true;
    for (int r = 0; r < world_; ++r) {
      for_blocks(codec_, length_of(r), [&](std::size_t first, std::size_t length) {
        const auto mean = has_mean_ ? mean_.subspan(begin_of(r) + first, length) : room_in(workspace_.decoded, length);
        decode_mean(r, first, mean);
        finite = is_finite(mean) && finite;
      });
    }
    return finite;
  }

  void decode_mean(int r, std::size_t first, std::span<float> mean) const {
    const auto bytes = means_.parts[static_cast<std::size_t>(r)];
    codec_.for_means().decode_part(bytes, first, length_of(r), key(r, world_ + r), mean);
  }

  // What was delivered of a block of chunk r, of the values `wanted`.
  std::span<const float> delivered(int r, std::size_t first, std::span<const float> wanted,
                                   std::span<const float> mean) {
    const auto room = room_in(workspace_.delivered, wanted.size());
    if (r != rank_) {
      const std::size_t count = length_of(r);
      codec_.decode_part(encoding_in(workspace_.outgoing, r, count), first, count, key(r, rank_), room);
      return room;
    }
    // What the second encoding lost is this rank's to deliver.
    const auto own = codec_.keeps_scale() ? wanted : own_part(first, wanted.size());
    const auto sum = std::span<const float>(workspace_.sum).subspan(first, wanted.size());
    const float divisor = divisor_of(call_, transport_);
    for (std::size_t i = 0; i < mean.size(); ++i) room[i] = own[i] - (sum[i] - divisor * mean[i]);
    return room;
  }

  Transport& transport_;
  const Codec& codec_;
  const ExchangeCall call_;
  Workspace& workspace_;
  const std::span<float> mean_;
  int world_;
  int rank_;
  std::size_t largest_;      // values of a chunk
  std::size_t header_;       // bytes of a size before each part
  std::size_t stride_;       // bytes of a part
  std::size_t longest_ = 0;  // encoding for another rank
  std::size_t sent_ = 0;
  int next_ = 0;                      // step of advance()
  std::unique_ptr<Transfer> chunks_;  // on their way to their owners
  Encodings means_;
  bool has_mean_ = false;  // mean_ was written
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
