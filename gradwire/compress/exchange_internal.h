// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What both exchanges do: walk over blocks, add and divide vectors, and all-gather encodings.
//
// Encodings travel as parts of equal length. Those of fixed size are as long as that of the largest chunk; of the
// others the sizes travel first, 8 bytes a rank, and parts are as long as the largest encoding that there is.
#pragma once

#include <functional>

#include "gradwire/compress/codec_internal.h"
#include "gradwire/compress/exchange.h"

namespace gradwire::compress {

inline constexpr std::size_t kSizeBytes = 8;  // of a size that travels: u64

// Throws InvalidArgument unless the divisor of a call is a number that divides.
void require_fitting(const Transport& transport, const ExchangeCall& call);

// Calls body(first, length) for each block of `count` values: whole blocks of the codec, few enough that all that is
// worked out of them stays in the second-level cache; all values where the codec has no blocks. Once for no values.
template <class Body>
void for_blocks(const Codec& codec, std::size_t count, const Body& body) {
  constexpr std::size_t kValues = 8192;
  const std::size_t least = codec.block();
  const std::size_t each = least == 0 ? count : least * std::max<std::size_t>(kValues / least, 1);
  std::size_t first = 0;
  do {
    const std::size_t length = std::min(each, count - first);
    body(first, length);
    first += length;
  } while (first < count);
}

// A block of all values of an exchange.
struct Block {
  std::size_t begin = 0;  // the number of its first value
  std::size_t length = 0;
};

inline std::span<float> part_of(std::span<float> all, const Block& block) noexcept {
  return all.subspan(block.begin, block.length);
}

bool is_finite(std::span<const float> values) noexcept;

inline float divisor_of(const ExchangeCall& call, const Transport& transport) noexcept {
  return static_cast<float>(call.divisor == 0 ? transport.size() : call.divisor);
}

// sum = one + other; the sum may be one of them.
void add(std::span<const float> one, std::span<const float> other, std::span<float> sum) noexcept;

// Adds what decode(rank, room) returns for each of the ranks, in their order, into `sum`; `room` is `sum` itself or
// `decoded`, of the same length.
template <class Decode>
void add_ranks(int ranks, std::span<float> decoded, const Decode& decode, std::span<float> sum) {
  std::span<const float> so_far;
  for (int r = 0; r < ranks; ++r) {
    const std::span<const float> more = decode(r, r == 0 ? sum : decoded);
    if (r != 0) add(so_far, more, sum);
    so_far = r == 0 ? more : sum;
  }
  if (so_far.data() != sum.data()) std::copy(so_far.begin(), so_far.end(), sum.begin());
}

// quotient = dividend / divisor; the two may be the same.
void divide(std::span<const float> dividend, float divisor, std::span<float> quotient) noexcept;

// Enlarges `vector` to `size` if it is smaller, and returns its first `size` elements.
template <class T>
std::span<T> room_in(std::vector<T>& vector, std::size_t size) {
  if (vector.size() < size) vector.resize(size);
  return std::span<T>(vector).first(size);
}

// This rank's values in a block: where they lie, or in `values` of the workspace.
inline std::span<const float> values_of(ExchangeEnds& ends, const Block& block, Workspace& workspace) {
  return ends.values(block.begin, room_in(workspace.values, block.length));
}

// Every rank's `size` on all ranks. Throws MismatchError, on all ranks alike, for one above `largest`.
std::vector<std::size_t> gather_sizes(Transport& transport, const Codec& codec, std::size_t size, std::size_t largest);

// Reads a size that a peer sent. Throws MismatchError for one above `largest`.
std::size_t read_size(const Codec& codec, const std::byte* from, std::size_t largest);

// Throws InvalidArgument when `codec` wrote `size` bytes for `count` values at `step`, and its encodings have another
// size, which all ranks rely on.
void require_written_size(const Codec& codec, std::size_t size, std::size_t count, std::uint64_t step);

// Waits for what is on its way, if anything is.
inline void finish(std::unique_ptr<Transfer>& transfer) {
  if (transfer != nullptr) transfer->wait();
  transfer.reset();
}

// The encodings of all ranks, and the bytes that this rank sent for them.
struct Encodings {
  std::vector<std::span<const std::byte>> parts;  // in `incoming`, or in `outgoing` when there is one rank
  std::size_t sent = 0;
  std::unique_ptr<Transfer> transfer;  // to finish() before the parts are there
};

// Starts to all-gather the first `size` bytes of `outgoing`, this rank's encoding. Rank r's encodes count_of(r) values,
// at most `largest_count`, for which `outgoing` has room.
Encodings start_gathering(Transport& transport, const Codec& codec, std::uint64_t step, std::size_t size,
                          std::size_t largest_count, const std::function<std::size_t(int)>& count_of,
                          std::span<const std::byte> outgoing, std::vector<std::byte>& incoming);

// What start_gathering() sends at most.
std::size_t gathered_bytes(const Codec& codec, std::uint64_t step, std::size_t largest_count, int world) noexcept;

}  // namespace gradwire::compress
