// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/device/device_exchange_internal.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "gradwire/compress/exchange.h"
#include "gradwire/hooks/device/device_bits_internal.h"

namespace gradwire::internal {
namespace {

using compress::Codec;
using compress::EncodeKey;
using Sizes = std::vector<std::int64_t>;

std::int64_t largest_of(const Sizes& sizes) { return *std::max_element(sizes.begin(), sizes.end()); }

std::int64_t fixed_size(const Codec& codec, std::int64_t count, std::uint64_t step) {
  return static_cast<std::int64_t>(codec.encoded_size(static_cast<std::size_t>(count), step));
}

at::Tensor gather(ProcessGroup& group, const at::Tensor& mine) {
  if (group.size() == 1) return mine.view({1, -1});
  const at::Tensor all = at::empty({group.size() * mine.numel()}, mine.options());
  AllGatherOptions options;
  options.async = false;
  group.all_gather_into_tensor(all, mine, options)->wait();
  return all.view({group.size(), -1});
}

// Each rank's `sizes`, by rank.
std::vector<Sizes> gather_sizes(ProcessGroup& group, const Sizes& sizes, const at::Device& device) {
  const at::Tensor all = gather(group, at::tensor(sizes, at::kLong).to(device)).to(at::kCPU);
  std::vector<Sizes> of_ranks;
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    const auto* row = all.const_data_ptr<std::int64_t>() + rank * all.size(1);
    of_ranks.emplace_back(row, row + all.size(1));
  }
  return of_ranks;
}

// The parts, each in a row of its own that begins with it.
at::Tensor rows_of_parts(const std::vector<at::Tensor>& parts, std::int64_t stride, const at::Tensor& like) {
  const at::Tensor rows = at::zeros({static_cast<std::int64_t>(parts.size()), stride}, like.options().dtype(at::kByte));
  for (std::size_t i = 0; i < parts.size(); ++i)
    rows.select(0, static_cast<std::int64_t>(i)).narrow(0, 0, parts[i].numel()).copy_(parts[i]);
  return rows;
}

at::Tensor part_of(const at::Tensor& rows, int rank, std::int64_t size) {
  return rows.select(0, rank).narrow(0, 0, size);
}

// The encodings of all ranks. Rank r encodes count_of(r) values.
struct Gathered {
  at::Tensor rows;
  Sizes sizes;
  at::Tensor part(int rank) const { return part_of(rows, rank, sizes[static_cast<std::size_t>(rank)]); }
};

Gathered gather_encodings(const DeviceExchange& exchange, const Codec& codec, const at::Tensor& mine,
                          const std::function<std::int64_t(int)>& count_of) {
  Gathered gathered;
  if (codec.is_fixed_size()) {
    for (int r = 0; r < exchange.group.size(); ++r)
      gathered.sizes.push_back(fixed_size(codec, count_of(r), exchange.key.step));
  } else {
    for (const Sizes& sizes : gather_sizes(exchange.group, {mine.numel()}, mine.device()))
      gathered.sizes.push_back(sizes.front());
  }
  gathered.rows = gather(exchange.group, rows_of_parts({mine}, largest_of(gathered.sizes), mine).view({-1}));
  return gathered;
}

EncodeKey of_rank(EncodeKey key, int rank) {
  key.rank = static_cast<std::uint32_t>(rank);
  return key;
}

// The all_reduce exchange: chunk r of the values belongs to rank r.
class Chunks {
 public:
  Chunks(const DeviceExchange& exchange, const at::Tensor& values)
      : exchange_(exchange), values_(values), rank_(exchange.group.rank()), world_(exchange.group.size()) {}

  DeviceExchanged run() {
    encode_chunks();
    const at::Tensor sum = sum_of_own(send_chunks());
    const at::Tensor own_mean = divided_by(sum, exchange_.divisor);
    const Gathered means = gather_encodings(exchange_, exchange_.codecs.codec.for_means(),
                                            exchange_.codecs.of_means->encode(own_mean, key(rank_, world_ + rank_)),
                                            [this](int r) { return length_of(r); });
    std::vector<at::Tensor> mean, delivered;
    for (int r = 0; r < world_; ++r) {
      mean.push_back(exchange_.codecs.of_means->decode(means.part(r), length_of(r), key(r, world_ + r)));
      if (!exchange_.delivers) continue;
      // What the second encoding lost is the owner's to deliver.
      delivered.push_back(r == rank_ ? own_part() - (sum - mean.back() * exchange_.divisor)
                                     : decode(outgoing_[static_cast<std::size_t>(r)], r, rank_));
    }
    return {at::cat(mean), exchange_.delivers ? at::cat(delivered) : at::Tensor()};
  }

 private:
  std::int64_t begin_of(int r) const {
    return static_cast<std::int64_t>(compress::chunk_begin(static_cast<std::size_t>(values_.numel()), world_, r));
  }
  std::int64_t length_of(int r) const { return begin_of(r + 1) - begin_of(r); }
  at::Tensor chunk(int r) const { return values_.narrow(0, begin_of(r), length_of(r)); }
  EncodeKey key(int chunk, int coder) const {
    EncodeKey made = of_rank(exchange_.key, coder);
    made.tensor = made.tensor * static_cast<std::uint64_t>(world_) + static_cast<std::uint64_t>(chunk);
    return made;
  }
  at::Tensor decode(const at::Tensor& bytes, int chunk, int coder) const {
    return exchange_.codecs.on_device->decode(bytes, length_of(chunk), key(chunk, coder));
  }
  bool keeps_scale() const { return exchange_.codecs.codec.keeps_scale(); }
  // What of this rank's values goes into the sum of its own chunk. Bare signs are encoded and decoded.
  at::Tensor own_part() const { return keeps_scale() ? chunk(rank_) : decode(own_, rank_, rank_); }

  void encode_chunks() {
    for (int r = 0; r < world_; ++r) {
      const bool encoded = r != rank_ || !keeps_scale();
      const at::Tensor bytes = encoded ? exchange_.codecs.on_device->encode(chunk(r), key(r, rank_))
                                       : at::empty({0}, values_.options().dtype(at::kByte));
      if (r == rank_) own_ = bytes;
      outgoing_.push_back(r == rank_ ? bytes.narrow(0, 0, 0) : bytes);
    }
  }

  // Returns the encodings of this rank's chunk, by rank.
  std::vector<at::Tensor> send_chunks() const {
    if (world_ == 1) return outgoing_;
    const Codec& codec = exchange_.codecs.codec;
    const std::uint64_t step = exchange_.key.step;
    Sizes sizes(static_cast<std::size_t>(world_), fixed_size(codec, length_of(rank_), step));
    std::int64_t stride = fixed_size(codec, length_of(0), step);
    if (!codec.is_fixed_size()) {
      Sizes mine;
      for (const at::Tensor& part : outgoing_) mine.push_back(part.numel());
      stride = 0;
      const std::vector<Sizes> all = gather_sizes(exchange_.group, mine, values_.device());
      for (std::size_t r = 0; r < all.size(); ++r) {
        stride = std::max(stride, largest_of(all[r]));
        sizes[r] = all[r][static_cast<std::size_t>(rank_)];
      }
    }
    const at::Tensor to_each = rows_of_parts(outgoing_, stride, values_);
    const at::Tensor from_each = at::empty_like(to_each);
    AllToAllOptions options;
    options.async = false;
    exchange_.group.all_to_all_single(from_each.view({-1}), to_each.view({-1}), {}, {}, options)->wait();
    std::vector<at::Tensor> parts;
    for (int r = 0; r < world_; ++r) parts.push_back(part_of(from_each, r, sizes[static_cast<std::size_t>(r)]));
    return parts;
  }

  at::Tensor sum_of_own(const std::vector<at::Tensor>& parts) const {
    at::Tensor sum;
    for (int r = 0; r < world_; ++r) {
      const at::Tensor& part = parts[static_cast<std::size_t>(r)];
      if (r == rank_) {
        sum = r == 0 ? own_part() : sum + own_part();
      } else {
        sum = r == 0 ? decode(part, rank_, r) : exchange_.codecs.on_device->add_decoded(sum, part, key(rank_, r));
      }
    }
    return sum;
  }

  const DeviceExchange& exchange_;
  const at::Tensor& values_;
  const int rank_;
  const int world_;
  std::vector<at::Tensor> outgoing_;  // the encodings of the other ranks' chunks, by rank
  at::Tensor own_;                    // the encoding of this rank's own chunk
};

}  // namespace

DeviceCodecs::DeviceCodecs(const Codec& of)
    : codec(of), on_device(make_device_codec(of)), of_means(make_device_codec(of.for_means())) {}

DeviceExchanged exchange_all_gather(const DeviceExchange& exchange, const at::Tensor& values) {
  const int rank = exchange.group.rank();
  const std::int64_t count = values.numel();
  const DeviceCodec& codec = *exchange.codecs.on_device;
  const Gathered all = gather_encodings(exchange, exchange.codecs.codec,
                                        codec.encode(values, of_rank(exchange.key, rank)), [&](int) { return count; });
  DeviceExchanged result;
  at::Tensor sum;
  for (int r = 0; r < exchange.group.size(); ++r) {
    const EncodeKey key = of_rank(exchange.key, r);
    if (r == rank && exchange.delivers) {
      result.delivered = codec.decode(all.part(r), count, key);
      sum = r == 0 ? result.delivered : sum + result.delivered;
    } else {
      sum = r == 0 ? codec.decode(all.part(r), count, key) : codec.add_decoded(sum, all.part(r), key);
    }
  }
  result.mean = divided_by(sum, exchange.divisor);
  return result;
}

DeviceExchanged exchange_all_reduce(const DeviceExchange& exchange, const at::Tensor& values) {
  return Chunks(exchange, values).run();
}

}  // namespace gradwire::internal
