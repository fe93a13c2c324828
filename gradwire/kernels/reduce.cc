// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Cuts a reduction into an unaligned head, what the vector loop does, and the rest.
#include "gradwire/kernels/reduce.h"

#include <algorithm>
#include <cstdint>

#include "gradwire/kernels/dispatch_internal.h"

namespace gradwire::kernels {
namespace {

// Below this many bytes of a destination, aligning its stores gains less than the scalar head costs.
constexpr std::size_t kAlignFrom = 8 * 1024;

ReduceLoop loop_for(DType dtype, const KernelSet& set) noexcept {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
      return set.reduce_half;
    case DType::f32:
    case DType::f64:
    case DType::c64:
    case DType::c128:
      return set.reduce_float;
    default:
      return set.reduce_integer;
  }
}

// How many elements precede the first one that is aligned in every destination; nothing when there is no such element.
bool find_aligned(std::span<void* const> destinations, std::size_t element, std::size_t& head) noexcept {
  const auto misalignment = [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % kStreamAlignment;
  };
  const std::size_t first = misalignment(destinations[0]);
  for (const void* destination : destinations) {
    if (misalignment(destination) != first) return false;
  }
  const std::size_t bytes = (kStreamAlignment - first) % kStreamAlignment;
  if (bytes % element != 0) return false;
  head = bytes / element;
  return true;
}

// Streaming to what was just read gains nothing, because its lines are in the cache already; it only throws them out.
bool in_place(const ReduceCall& call) noexcept {
  return std::any_of(call.destinations.begin(), call.destinations.end(), [&](const void* destination) {
    return std::find(call.sources.begin(), call.sources.end(), destination) != call.sources.end();
  });
}

}  // namespace

void reduce(DType dtype, ReduceOp op, std::span<const void* const> sources, std::span<void* const> destinations,
            std::size_t count, Store store) noexcept {
  if (count == 0 || sources.empty() || destinations.empty()) return;
  const ReduceCall call{dtype, op, sources, destinations};
  const ReduceLoop loop = loop_for(dtype, active());
  const std::size_t element = size_of(dtype);
  std::size_t begin = 0;
  bool streamed = store == Store::streamed && !in_place(call);
  if (loop != &reduce_scalar && (streamed || count * element >= kAlignFrom)) {
    std::size_t head = 0;
    const bool aligned = find_aligned(destinations, element, head) && head < count;
    if (aligned && head > 0) begin = reduce_scalar(call, 0, head, false);
    streamed = streamed && aligned;
  }
  begin = loop(call, begin, count, streamed);
  if (begin < count) reduce_scalar(call, begin, count, false);
}

}  // namespace gradwire::kernels
