// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/generic/call_internal.h"

#include <bit>
#include <cstring>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::generic {
namespace {

// Fields are copied as they lie in memory.
static_assert(std::endian::native == std::endian::little, "the wire format is little-endian; swap bytes here");

class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <class T>
  void operator()(T& value) {
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }

 private:
  std::byte* at_;
};

class Reader {
 public:
  explicit Reader(const std::byte* at) : at_(at) {}
  template <class T>
  void operator()(T& value) {
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
  }

 private:
  const std::byte* at_;
};

// The one place that knows the order of the fields.
template <class Visitor>
void visit(Call& call, Visitor visitor) {
  std::uint8_t padding = 0;
  visitor(call.sequence);
  visitor(call.count);
  visitor(call.op.factor);
  visitor(call.root);
  visitor(call.tag.iteration);
  visitor(call.tag.bucket);
  visitor(call.tag.stage);
  visitor(call.operation);
  visitor(call.dtype);
  visitor(call.op.kind);
  visitor(padding);
}

bool reduces(Operation operation) noexcept {
  return operation == Operation::all_reduce || operation == Operation::reduce || operation == Operation::reduce_scatter;
}

}  // namespace

const char* name_of(Operation operation) noexcept {
  switch (operation) {
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
      return "duplicate";
    case Operation::allocate:
      return "allocate";
  }
  return "an unknown operation";
}

void write_fingerprint(const Call& call, std::span<std::byte, kFingerprintBytes> bytes) noexcept {
  Call copy = call;
  if (copy.op.kind != ReduceOp::Kind::premul_sum) copy.op.factor = 0.0;
  visit(copy, Writer(bytes.data()));
}

Call read_fingerprint(std::span<const std::byte, kFingerprintBytes> bytes) noexcept {
  Call call;
  visit(call, Reader(bytes.data()));
  return call;
}

std::string describe(const Call& call) {
  std::string text = name_of(call.operation);
  text += '(';
  if (call.operation == Operation::allocate) {
    text += concat(call.count, " bytes");
  } else if (call.operation == Operation::all_to_all) {
    text += concat(name_of(call.dtype));
  } else if (call.operation != Operation::barrier && call.operation != Operation::duplicate) {
    text +=
        concat(call.count, " ", static_cast<int>(call.dtype) < kDTypeCount ? name_of(call.dtype) : "of unknown dtype");
  }
  if (reduces(call.operation)) {
    text += concat(", ", name_of(call.op.kind));
    if (call.op.kind == ReduceOp::Kind::premul_sum) text += concat(" with factor ", call.op.factor);
  }
  if (call.root >= 0) text += concat(", root ", call.root);
  if (call.tag != CallTag{}) {
    text += concat(text.back() == '(' ? "" : ", ", "iteration ", call.tag.iteration, " bucket ", call.tag.bucket,
                   " stage ", call.tag.stage);
  }
  return text + ")";
}

void require_same(std::span<const std::byte> fingerprints, int rank) {
  const std::size_t ranks = fingerprints.size() / kFingerprintBytes;
  const auto of = [&](std::size_t r) {
    return std::span<const std::byte, kFingerprintBytes>(fingerprints.data() + r * kFingerprintBytes,
                                                         kFingerprintBytes);
  };
  const auto same = [&](std::size_t a, std::size_t b) {
    return std::memcmp(of(a).data(), of(b).data(), kFingerprintBytes) == 0;
  };
  std::vector<std::string> groups;
  std::vector<bool> told(ranks, false);
  for (std::size_t first = 0; first < ranks; ++first) {
    if (told[first]) continue;
    std::vector<int> members;
    for (std::size_t r = first; r < ranks; ++r) {
      if (!same(first, r)) continue;
      told[r] = true;
      members.push_back(static_cast<int>(r));
    }
    if (members.size() == ranks) return;
    groups.push_back(concat(name_ranks(members), " called ", describe(read_fingerprint(of(first)))));
  }
  throw MismatchError(concat("ranks disagree about collective number ", read_fingerprint(of(0)).sequence,
                             " of a channel (seen on rank ", rank, " of ", ranks, "): ", join(groups, "; "),
                             "; all ranks must call the same collectives in the same order with the same arguments"));
}

}  // namespace gradwire::generic
