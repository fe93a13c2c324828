// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All-to-all.
//
// Terms: N ranks, B(r, s) bytes from rank r to rank s.
//
// Algorithm: pairwise exchange.
// Steps: 1. Everyone tells everyone how much it sends and expects, so that a difference is the same MismatchError on
// all ranks and nothing has moved by then. 2. For k = 1 .. N - 1 a rank sends to rank + k and receives from rank - k:
// each rank has one message in and one out at a time. Bytes on the wire: the sum of B(r, s), r != s, and 16 N bytes of
// counts a pair. Nothing is staged.
//
// In wide worlds a rank hears only what each other sends to it (blocks of 8 bytes, share.cc), and all ranks hear the
// first difference that each has found: 40 N bytes a rank, 2 ceil(log2 N) steps. When all slices are short blocks, they
// go as blocks, too, padded to the longest: ceil(log2 N) steps more, and 3 N blocks of staging.
#include <algorithm>
#include <cstring>
#include <vector>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/base/copy.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

void add_difference(std::string& text, std::size_t from, std::uint64_t sent, std::size_t to, std::uint64_t expected) {
  text += concat(text.empty() ? "" : "; ", "rank ", from, " sends ", sent, " elements to rank ", to, ", which expects ",
                 expected);
}

void throw_if_any(const std::string& differences) {
  if (!differences.empty()) throw MismatchError(concat("the counts do not fit: ", differences));
}

// What every rank sends and expects, in elements: for rank r a row of `ranks` counts sent, then one of `ranks` counts
// expected.
void require_matching(const std::vector<std::uint64_t>& counts, std::size_t ranks) {
  const auto sent = [&](std::size_t from, std::size_t to) { return counts[from * 2 * ranks + to]; };
  const auto expected = [&](std::size_t from, std::size_t to) { return counts[to * 2 * ranks + ranks + from]; };
  std::string differences;
  for (std::size_t from = 0; from < ranks; ++from) {
    for (std::size_t to = 0; to < ranks; ++to) {
      if (sent(from, to) == expected(from, to)) continue;
      add_difference(differences, from, sent(from, to), to, expected(from, to));
    }
  }
  throw_if_any(differences);
}

// What a rank of a wide world finds of the others' counts, which all ranks hear.
struct Finding {
  std::uint64_t longest = 0;  // of its slices, in elements
  std::uint64_t sent = 0;     // the first that differs
  std::uint64_t expected = 0;
  std::int64_t from = -1;  // its sender; -1: none differs
};

}  // namespace

void GenericChannel::all_to_all(std::span<const ConstSlice> inputs, std::span<const Slice> outputs, DType dtype,
                                const CallOptions& options) {
  validate::all_to_all(*this, inputs, outputs, dtype);
  run(fingerprint_of(Operation::all_to_all, dtype), options, [&] {
    const std::size_t element = size_of(dtype);
    const std::size_t longest = is_wide() ? agree_on_counts(inputs, outputs, options.deadline) : 0;
    if (!is_wide()) require_same_counts(inputs, outputs, options.deadline);
    if (longest > 0 && longest * element <= short_block()) {
      return move_short(inputs, outputs, element, longest * element, options.deadline);
    }
    generic::Exchange exchange(*this);
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size();
      const int from = (rank() - step + size()) % size();
      const Slice& output = outputs[static_cast<std::size_t>(from)];
      const ConstSlice& input = inputs[static_cast<std::size_t>(to)];
      post_receive(exchange, output.data, output.count * element, from);
      post_send(exchange, input.data, input.count * element, to);
      exchange.finish(options.deadline);
    }
    const auto own = static_cast<std::size_t>(rank());
    if (inputs[own].count > 0 && inputs[own].data != outputs[own].data) {
      copy_bytes(outputs[own].data, inputs[own].data, inputs[own].count * element);
    }
  });
}

void GenericChannel::require_same_counts(std::span<const ConstSlice> inputs, std::span<const Slice> outputs,
                                         Deadline deadline) {
  const std::size_t ranks = inputs.size();
  std::vector<std::uint64_t> counts(ranks * 2 * ranks);
  std::uint64_t* const mine = counts.data() + static_cast<std::size_t>(rank()) * 2 * ranks;
  for (std::size_t r = 0; r < ranks; ++r) {
    mine[r] = inputs[r].count;
    mine[ranks + r] = outputs[r].count;
  }
  share(mine, counts.data(), 2 * ranks * sizeof(std::uint64_t), deadline);
  require_matching(counts, ranks);
}

std::size_t GenericChannel::agree_on_counts(std::span<const ConstSlice> inputs, std::span<const Slice> outputs,
                                            Deadline deadline) {
  const std::size_t ranks = inputs.size();
  constexpr std::size_t kBlock = sizeof(std::uint64_t);
  std::vector<std::byte> staging(3 * ranks * kBlock);  // what every rank sends to this one
  for (std::size_t r = 0; r < ranks; ++r) std::memcpy(staging.data() + r * kBlock, &inputs[r].count, kBlock);
  exchange_blocks(staging.data(), kBlock, std::span(staging).subspan(ranks * kBlock), deadline);
  Finding mine;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::uint64_t sent = 0;
    std::memcpy(&sent, staging.data() + r * kBlock, kBlock);
    mine.longest = std::max<std::uint64_t>({mine.longest, inputs[r].count, outputs[r].count});
    if (sent != outputs[r].count && mine.from < 0)
      mine = {mine.longest, sent, outputs[r].count, static_cast<std::int64_t>(r)};
  }
  std::vector<Finding> findings(ranks);
  share(&mine, findings.data(), sizeof(mine), deadline);
  std::string differences;
  std::uint64_t longest = 0;
  for (std::size_t to = 0; to < ranks; ++to) {
    const Finding& its = findings[to];
    longest = std::max(longest, its.longest);
    if (its.from >= 0) add_difference(differences, static_cast<std::size_t>(its.from), its.sent, to, its.expected);
  }
  throw_if_any(differences);
  return longest;
}

void GenericChannel::move_short(std::span<const ConstSlice> inputs, std::span<const Slice> outputs, std::size_t element,
                                std::size_t block, Deadline deadline) {
  const std::size_t ranks = inputs.size();
  std::vector<std::byte> staging(3 * ranks * block);
  for (std::size_t r = 0; r < ranks; ++r) {
    if (inputs[r].count > 0) copy_bytes(staging.data() + r * block, inputs[r].data, inputs[r].count * element);
  }
  exchange_blocks(staging.data(), block, std::span(staging).subspan(ranks * block), deadline);
  for (std::size_t r = 0; r < ranks; ++r) {
    if (outputs[r].count > 0) copy_bytes(outputs[r].data, staging.data() + r * block, outputs[r].count * element);
  }
}

}  // namespace gradwire
