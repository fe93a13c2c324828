// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What one rank called: the fingerprint that ranks compare at the entry of every collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "gradwire/backend/backend.h"

namespace gradwire::generic {

// Values travel between ranks and never change.
enum class Operation : std::uint8_t {
  barrier = 0,
  broadcast = 1,
  all_reduce = 2,
  reduce = 3,
  all_gather = 4,
  gather = 5,
  scatter = 6,
  reduce_scatter = 7,
  all_to_all = 8,
  duplicate = 9,
  allocate = 10,
};

const char* name_of(Operation operation) noexcept;

// Arguments that all ranks must pass alike. What an operation does not have keeps its default; all_to_all has no common
// count.
struct Call {
  Operation operation = Operation::barrier;
  std::uint64_t count = 0;  // elements; bytes for allocate
  DType dtype = DType::u8;
  ReduceOp op = {};
  std::int32_t root = -1;
  CallTag tag = {};
  std::uint64_t sequence = 0;  // the how-many-th collective of the channel
};

// The wire format: 40 bytes, little-endian, the fields one after the other:
//   u64 sequence, u64 count, f64 factor of the op, i32 root, u32 iteration, u16 bucket, u16 stage, u8 operation, u8
//   dtype, u8 op, u8 zero
// The factor is zero unless the op is premul_sum, so that equal calls have equal bytes.
inline constexpr std::size_t kFingerprintBytes = 40;
void write_fingerprint(const Call& call, std::span<std::byte, kFingerprintBytes> bytes) noexcept;
Call read_fingerprint(std::span<const std::byte, kFingerprintBytes> bytes) noexcept;

// "all_reduce(1024 f32, sum, iteration 3 bucket 1 stage 0)"
std::string describe(const Call& call);

// Throws MismatchError that says who called what, unless the fingerprints, one a rank, are the same.
void require_same(std::span<const std::byte> fingerprints, int rank);

}  // namespace gradwire::generic
