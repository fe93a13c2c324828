// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/exchange.h"

#include <algorithm>
#include <cmath>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/compress/exchange_internal.h"
#include "gradwire/kernels/quantize.h"
#include "gradwire/kernels/reduce.h"

namespace gradwire::compress {

void require_fitting(const Transport& transport, const ExchangeCall& call) {
  if (!(call.divisor >= 0) || !std::isfinite(call.divisor)) {
    throw InvalidArgument(concat("exchange on rank ", transport.rank(), ": cannot divide by ", call.divisor));
  }
}

bool is_finite(std::span<const float> values) noexcept {
  return std::isfinite(kernels::max_magnitude(values.data(), values.size()));
}

void add(std::span<const float> one, std::span<const float> other, std::span<float> sum) noexcept {
  const void* sources[] = {one.data(), other.data()};
  void* destinations[] = {sum.data()};
  kernels::reduce(DType::f32, ReduceOp::sum(), sources, destinations, sum.size());
}

void divide(std::span<const float> dividend, float divisor, std::span<float> quotient) noexcept {
  int exponent = 0;
  if (std::frexp(divisor, &exponent) == 0.5f && std::isnormal(1 / divisor)) {
    // A power of two: the product has the same bits, and takes less time.
    for (std::size_t i = 0; i < dividend.size(); ++i) quotient[i] = dividend[i] * (1 / divisor);
    return;
  }
  for (std::size_t i = 0; i < dividend.size(); ++i) quotient[i] = dividend[i] / divisor;
}

std::size_t read_size(const Codec& codec, const std::byte* from, std::size_t largest) {
  const auto size = read_as<std::uint64_t>(from);
  if (size <= largest) return static_cast<std::size_t>(size);
  throw MismatchError(concat("codec ", codec.name(), ": a rank announced an encoding of ", size,
                             " bytes where there can be ", largest, " at most; do all ranks use the same codec?"));
}

void require_written_size(const Codec& codec, std::size_t size, std::size_t count, std::uint64_t step) {
  const std::size_t expected = codec.encoded_size(count, step);
  if (count == 0 || (codec.is_fixed_size() ? size == expected : size <= expected)) return;
  throw InvalidArgument(concat("codec ", codec.name(), ": encode() of ", count, " values returned ", size,
                               " bytes, and encoded_size() says ", codec.is_fixed_size() ? "" : "at most ", expected));
}

std::vector<std::size_t> gather_sizes(Transport& transport, const Codec& codec, std::size_t size, std::size_t largest) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  std::vector<std::byte> mine(kSizeBytes);
  std::vector<std::byte> all(ranks * kSizeBytes);
  write_as(mine.data(), std::uint64_t{size});
  transport.all_gather(mine, all);
  std::vector<std::size_t> sizes(ranks);
  for (std::size_t r = 0; r < ranks; ++r) sizes[r] = read_size(codec, all.data() + r * kSizeBytes, largest);
  return sizes;
}

Encodings start_gathering(Transport& transport, const Codec& codec, std::uint64_t step, std::size_t size,
                          std::size_t largest_count, const std::function<std::size_t(int)>& count_of,
                          std::span<const std::byte> outgoing, std::vector<std::byte>& incoming) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  Encodings result;
  result.parts.resize(ranks);
  if (ranks == 1) {
    result.parts[0] = outgoing.first(size);
    return result;
  }
  std::size_t stride = codec.encoded_size(largest_count, step);
  std::vector<std::size_t> sizes;
  if (codec.is_fixed_size()) {
    for (std::size_t r = 0; r < ranks; ++r) sizes.push_back(codec.encoded_size(count_of(static_cast<int>(r)), step));
  } else {
    sizes = gather_sizes(transport, codec, size, stride);
    stride = *std::max_element(sizes.begin(), sizes.end());
    result.sent += (ranks - 1) * kSizeBytes;
  }
  const auto all = room_in(incoming, ranks * stride);
  result.transfer = transport.start_all_gather(outgoing.first(stride), all);
  result.sent += (ranks - 1) * stride;
  for (std::size_t r = 0; r < ranks; ++r) result.parts[r] = all.subspan(r * stride, sizes[r]);
  return result;
}

std::size_t gathered_bytes(const Codec& codec, std::uint64_t step, std::size_t largest_count, int world) noexcept {
  const std::size_t part = codec.encoded_size(largest_count, step) + (codec.is_fixed_size() ? 0 : kSizeBytes);
  return static_cast<std::size_t>(world - 1) * part;
}

std::size_t chunk_begin(std::size_t count, int world, int r) noexcept {
  const std::size_t share = divide_up(count, static_cast<std::size_t>(world));
  const std::size_t length = divide_up(share, kChunkMultiple) * kChunkMultiple;
  return std::min(count, static_cast<std::size_t>(r) * length);
}

const std::vector<std::string>& known_exchanges() {
  static const std::vector<std::string> names{"all_gather", "all_reduce"};
  return names;
}

std::unique_ptr<Exchange> make_exchange(std::string_view name) {
  if (name == "all_gather") return make_all_gather_exchange();
  if (name == "all_reduce") return make_all_reduce_exchange();
  throw InvalidArgument(concat("unknown exchange '", name, "'; known are ", join(known_exchanges(), ", ")));
}

}  // namespace gradwire::compress
