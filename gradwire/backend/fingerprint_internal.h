// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What one rank called: the fingerprint that ranks compare at the entry of every collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "gradwire/backend/backend.h"

namespace gradwire {

// Values travel between ranks and never change.
enum class Operation : std::uint8_t {
  none = 0,
  barrier = 1,
  broadcast = 2,
  all_reduce = 3,
  reduce = 4,
  all_gather = 5,
  gather = 6,
  scatter = 7,
  reduce_scatter = 8,
  all_to_all = 9,
  duplicate = 10,
  allocate = 11,
};

std::string_view name_of(Operation operation) noexcept;

// Arguments that all ranks must pass alike. What an operation does not have keeps its default; all_to_all has no common
// count. The fields are also the wire format, as they lie: 40 bytes, little-endian.
struct Fingerprint {
  std::uint64_t sequence = 0;  // the how-many-th collective of the channel
  std::uint64_t count = 0;     // elements; bytes for allocate
  std::uint64_t detail = 0;    // the bits of the factor of premul_sum; else CallOptions::parts
  std::int32_t root = -1;
  CallTag tag = {};
  Operation operation = Operation::none;
  DType dtype = DType::u8;
  ReduceOp::Kind op = ReduceOp::Kind::sum;
  std::uint8_t refused = 0;  // 1: the machine refused this rank what the call needs; compared apart

  // By their bytes: a factor that is NaN is that of another rank, too.
  friend bool operator==(const Fingerprint& a, const Fingerprint& b) noexcept {
    return std::memcmp(&a, &b, sizeof(Fingerprint)) == 0;
  }
};
static_assert(sizeof(Fingerprint) == 40 && offsetof(Fingerprint, tag) == 28 && offsetof(Fingerprint, operation) == 36 &&
                  std::is_trivially_copyable_v<Fingerprint>,
              "fingerprints are sent as they lie in memory");

// Of a call with these arguments; complete() fills in the rest.
Fingerprint fingerprint_of(Operation operation, DType dtype = DType::u8, std::size_t count = 0, ReduceOp op = {},
                           int root = -1) noexcept;

// With the call's number in its channel, and with what its options say.
Fingerprint complete(Fingerprint fingerprint, std::uint64_t sequence, const CallOptions& options) noexcept;

// "all_reduce(1024 f32, sum, iteration 3 bucket 1 stage 0)". Any bytes are fine.
std::string describe(const Fingerprint& fingerprint);

// Throws MismatchError that says who called what, unless the fingerprints, one a rank, are the same.
void require_same(std::span<const Fingerprint> fingerprints, int rank);

}  // namespace gradwire
