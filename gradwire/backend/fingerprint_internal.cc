// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/fingerprint_internal.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/base/call_name.h"
#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian; swap bytes here");

bool reduces(Operation operation) noexcept {
  return operation == Operation::all_reduce || operation == Operation::reduce || operation == Operation::reduce_scatter;
}

}  // namespace

std::string_view name_of(Operation operation) noexcept {
  switch (operation) {
    case Operation::none:
      return "nothing";
    case Operation::barrier:
      return "barrier";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::reduce:
      return "reduce";
    case Operation::all_gather:
      return "all_gather";
    case Operation::gather:
      return "gather";
    case Operation::scatter:
      return "scatter";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::duplicate:
      return "dup";
    case Operation::allocate:
      return "allocate";
  }
  return "an unknown operation";
}

Fingerprint fingerprint_of(Operation operation, DType dtype, std::size_t count, ReduceOp op, int root) noexcept {
  Fingerprint fingerprint;
  fingerprint.count = count;
  if (op.kind == ReduceOp::Kind::premul_sum) fingerprint.detail = std::bit_cast<std::uint64_t>(op.factor);
  fingerprint.root = root;
  fingerprint.operation = operation;
  fingerprint.dtype = dtype;
  fingerprint.op = op.kind;
  return fingerprint;
}

// The number of parts shows, and enough of the hash that two lists can be told apart.
constexpr std::uint64_t kPartsShown = 0xFFFF;

std::uint64_t parts_of_lengths(std::span<const std::int64_t> lengths) noexcept {
  const std::uint64_t shown = std::min<std::uint64_t>(lengths.size(), kPartsShown);
  return (stable_hash(lengths) & ~kPartsShown) | std::max<std::uint64_t>(shown, 1);
}

Fingerprint complete(Fingerprint fingerprint, std::uint64_t sequence, const CallOptions& options) noexcept {
  fingerprint.sequence = sequence;
  fingerprint.tag = options.tag;
  if (fingerprint.op != ReduceOp::Kind::premul_sum) fingerprint.detail = options.parts;
  return fingerprint;
}

std::string describe(const Fingerprint& fingerprint) {
  const Operation operation = fingerprint.operation;
  const bool has_factor = fingerprint.op == ReduceOp::Kind::premul_sum;
  const std::string dtype(static_cast<int>(fingerprint.dtype) < kDTypeCount ? name_of(fingerprint.dtype)
                                                                            : std::string_view("of unknown dtype"));
  std::vector<std::string> arguments;
  if (operation == Operation::allocate) {
    arguments.push_back(concat(fingerprint.count, " bytes"));
  } else if (operation == Operation::all_to_all) {
    arguments.push_back(dtype);
  } else if (operation != Operation::barrier && operation != Operation::duplicate) {
    arguments.push_back(concat(fingerprint.count, " ", dtype));
  }
  if (reduces(operation)) {
    std::string op(name_of(fingerprint.op));
    if (has_factor) op += concat(" with factor ", exact(std::bit_cast<double>(fingerprint.detail)));
    arguments.push_back(std::move(op));
  }
  if (fingerprint.detail != 0 && !has_factor) {
    std::array<char, 13> sizes{};
    std::snprintf(sizes.data(), sizes.size(), "%012llx", static_cast<unsigned long long>(fingerprint.detail >> 16));
    arguments.push_back(concat(fingerprint.detail & kPartsShown, " tensors of sizes ", sizes.data()));
  }
  if (fingerprint.root >= 0) arguments.push_back(concat("root ", fingerprint.root));
  if (const CallTag& tag = fingerprint.tag; tag != CallTag{}) {
    std::string call =
        concat("iteration ", tag.iteration, " bucket ", tag.bucket, " stage ", static_cast<int>(tag.stage));
    if (tag.hook != 0) call += concat(" after ", static_cast<int>(tag.hook), " replaced hooks");
    arguments.push_back(std::move(call));
  }
  return concat(name_of(operation), "(", join(arguments, ", "), ")");
}

void require_same(std::span<const Fingerprint> fingerprints, int rank) {
  const std::size_t ranks = fingerprints.size();
  std::vector<std::string> groups;
  std::vector<bool> told(ranks, false);
  for (std::size_t first = 0; first < ranks; ++first) {
    if (told[first]) continue;
    std::vector<int> members;
    for (std::size_t other = first; other < ranks; ++other) {
      if (fingerprints[first] != fingerprints[other]) continue;
      told[other] = true;
      members.push_back(static_cast<int>(other));
    }
    if (members.size() == ranks) return;
    groups.push_back(concat(name_ranks(members), " called ", describe(fingerprints[first])));
  }
  const std::string own = call_name(concat("call ", fingerprints[0].sequence, " of a channel"));
  throw MismatchError(concat("ranks disagree about ", own, ", seen on rank ", rank, " of ", ranks, ": ",
                             join(groups, "; "),
                             "; all ranks must call the same collectives in the same order with the same arguments"));
}

}  // namespace gradwire
