// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All-to-all.
//
// Algorithm: pairwise exchange. Terms: N ranks, B(r, s) bytes from rank r to rank s.
// Steps: 1. Everyone tells everyone how much it sends and expects, so that a difference is the same MismatchError on
// all ranks and nothing has moved by then. 2. For k = 1 .. N - 1 a rank sends to rank + k and receives from rank - k:
// each rank has one message in and one out at a time. Bytes on the wire: the sum of B(r, s), r != s, and 16 N bytes of
// counts a pair. Nothing is staged.
#include <cstring>
#include <vector>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

// What every rank sends and expects, in elements: for rank r a row of `ranks` counts sent, then one of `ranks` counts
// expected.
void require_matching(const std::vector<std::uint64_t>& counts, std::size_t ranks) {
  const auto sent = [&](std::size_t from, std::size_t to) { return counts[from * 2 * ranks + to]; };
  const auto expected = [&](std::size_t from, std::size_t to) { return counts[to * 2 * ranks + ranks + from]; };
  std::string differences;
  for (std::size_t from = 0; from < ranks; ++from) {
    for (std::size_t to = 0; to < ranks; ++to) {
      if (sent(from, to) == expected(from, to)) continue;
      differences += concat(differences.empty() ? "" : "; ", "rank ", from, " sends ", sent(from, to),
                            " elements to rank ", to, ", which expects ", expected(from, to));
    }
  }
  if (!differences.empty()) throw MismatchError(concat("all_to_all: ranks disagree about counts: ", differences));
}

}  // namespace

void GenericChannel::all_to_all(std::span<const ConstSlice> inputs, std::span<const Slice> outputs, DType dtype,
                                const CallOptions& options) {
  validate::all_to_all(*this, inputs, outputs, dtype);
  run(fingerprint_of(Operation::all_to_all, dtype), options, [&] {
    const auto ranks = static_cast<std::size_t>(size());
    const auto own = static_cast<std::size_t>(rank());
    std::vector<std::uint64_t> counts(ranks * 2 * ranks);
    std::uint64_t* const mine = counts.data() + own * 2 * ranks;
    for (std::size_t r = 0; r < ranks; ++r) {
      mine[r] = inputs[r].count;
      mine[ranks + r] = outputs[r].count;
    }
    share(mine, counts.data(), 2 * ranks * sizeof(std::uint64_t), options.deadline);
    require_matching(counts, ranks);

    const std::size_t element = size_of(dtype);
    generic::Exchange exchange;
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size();
      const int from = (rank() - step + size()) % size();
      const Slice& output = outputs[static_cast<std::size_t>(from)];
      const ConstSlice& input = inputs[static_cast<std::size_t>(to)];
      post_receive(exchange, output.data, output.count * element, from);
      post_send(exchange, input.data, input.count * element, to);
      exchange.finish(options.deadline);
    }
    if (inputs[own].count > 0 && inputs[own].data != outputs[own].data) {
      std::memcpy(outputs[own].data, inputs[own].data, inputs[own].count * element);
    }
  });
}

}  // namespace gradwire
