// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// all_reduce over shared memory: three ways, with the same bits.
//
// Eager, for small buffers: every rank copies its buffer into its staging area; one step; every rank reduces all N.
// (N-1) B read a rank.
//
// Direct: a step; rank r reduces the r-th share of the buffer out of all ranks' buffers and writes the result into all
// of them, in one pass over memory; a step. A rank reads B and writes B, whatever N. Nobody reads a peer's result, so
// no third step.
//
// Staged: windows of the buffer, a step each. Before step w a rank copies what others will reduce of window w into its
// staging area; after it, it reduces its own share of window w into its buffer and its result area, and collects window
// w - 1 from the others' result areas. A last step, then the last window is collected. A rank writes B (N-1)/N and B/N,
// and reads B (N-1)/N twice, of memory that others use.
//
// Elements are independent and every one is combined in rank order, so who reduces which share does not show in the
// bits.
#include <algorithm>
#include <array>

#include "gradwire/backend/shared/collectives_internal.h"
#include "gradwire/backend/shared/max_ranks.h"
#include "gradwire/base/copy.h"
#include "gradwire/kernels/copy.h"
#include "gradwire/kernels/reduce.h"

namespace gradwire::shared {
namespace {

// Below this a second step costs more than reading all of the others' data (docs/decisions/0004).
constexpr std::size_t kEagerBytes = 8192;
constexpr std::size_t kShareAlignment = 128;  // bytes: shares of two ranks do not meet in a cache line

struct Range {
  std::size_t begin;
  std::size_t end;
  std::size_t length() const noexcept { return end - begin; }
};

// The share of `rank` in `count` elements.
Range share_of(int rank, int size, std::size_t count, std::size_t element) noexcept {
  const std::size_t grain = std::max<std::size_t>(1, kShareAlignment / element);
  const std::size_t ranks = static_cast<std::size_t>(size);
  const std::size_t each = ((count + ranks - 1) / ranks + grain - 1) / grain * grain;
  const std::size_t begin = std::min(count, each * static_cast<std::size_t>(rank));
  return {begin, std::min(count, begin + each)};
}

void all_reduce_eager(Call& call, std::byte* data, std::size_t count, DType dtype, ReduceOp op, bool is_staged) {
  Buffers& buffers = call.buffers();
  if (!call.all_staged()) {
    if (!is_staged) copy_bytes(buffers.input_area(call.rank()), data, count * size_of(dtype));
    call.meet();
  }
  std::array<const void*, kMaxRanksOfHost> sources{};
  for (int peer = 0; peer < call.size(); ++peer) sources[static_cast<std::size_t>(peer)] = buffers.input_area(peer);
  void* const to = data;
  kernels::reduce(dtype, op, {sources.data(), static_cast<std::size_t>(call.size())}, {&to, 1}, count);
  buffers.next_window();
  buffers.prepare_to_stage(Offer({data, count * size_of(dtype)}));
  trace::point("collective.exit", call.rank(), call.sequence());
}

void all_reduce_direct(Call& call, std::size_t count, DType dtype, ReduceOp op) {
  const std::size_t element = size_of(dtype);
  const Range mine = share_of(call.rank(), call.size(), count, element);
  std::array<const void*, kMaxRanksOfHost> sources{};
  std::array<void*, kMaxRanksOfHost> targets{};
  for (int peer = 0; peer < call.size(); ++peer) {
    std::byte* share = call.buffer_of(peer) + mine.begin * element;
    sources[static_cast<std::size_t>(peer)] = share;
    targets[static_cast<std::size_t>(peer)] = share;
  }
  const auto ranks = static_cast<std::size_t>(call.size());
  kernels::reduce(dtype, op, {sources.data(), ranks}, {targets.data(), ranks}, mine.length());
  trace::point("collective.exit", call.rank(), call.sequence());
  call.exit();
}

void stage_for_others(const Call& call, const std::byte* data, std::size_t count, DType dtype) noexcept {
  const std::size_t element = size_of(dtype);
  const Range mine = share_of(call.rank(), call.size(), count, element);
  std::byte* area = call.buffers().input_area(call.rank());
  copy_bytes(area, data, mine.begin * element);
  copy_bytes(area + mine.end * element, data + mine.end * element, (count - mine.end) * element);
}

void all_reduce_staged(Call& call, std::byte* data, std::size_t count, DType dtype, ReduceOp op, bool first_is_staged) {
  Buffers& buffers = call.buffers();
  const std::size_t element = size_of(dtype);
  const std::size_t per_window = buffers.window_bytes() / element;
  const auto ranks = static_cast<std::size_t>(call.size());
  if (!call.all_staged()) {
    if (!first_is_staged) stage_for_others(call, data, std::min(count, per_window), dtype);
    call.meet();
  }
  const auto collect = [&](std::size_t begin) {
    const std::size_t length = std::min(per_window, count - begin);
    for (int peer = 0; peer < call.size(); ++peer) {
      const Range share = share_of(peer, call.size(), length, element);
      if (peer == call.rank() || share.length() == 0) continue;
      kernels::copy_from_peer(data + (begin + share.begin) * element,
                              buffers.last_result_area(peer) + share.begin * element, share.length() * element,
                              count * element, kernels::Store::cached);
    }
  };
  for (std::size_t begin = 0; begin < count; begin += per_window) {
    const std::size_t length = std::min(per_window, count - begin);
    if (begin != 0) {
      stage_for_others(call, data + begin * element, length, dtype);
      call.meet();
    }
    const Range mine = share_of(call.rank(), call.size(), length, element);
    std::byte* own = data + (begin + mine.begin) * element;
    std::array<const void*, kMaxRanksOfHost> sources{};
    for (int peer = 0; peer < call.size(); ++peer) {
      sources[static_cast<std::size_t>(peer)] =
          peer == call.rank() ? own : buffers.input_area(peer) + mine.begin * element;
    }
    const std::array<void*, 2> targets{own, buffers.result_area(call.rank()) + mine.begin * element};
    kernels::reduce(dtype, op, {sources.data(), ranks}, targets, mine.length());
    if (begin != 0) collect(begin - per_window);
    buffers.next_window();
  }
  trace::point("collective.exit", call.rank(), call.sequence());
  call.meet();
  collect((count - 1) / per_window * per_window);
}

}  // namespace

void all_reduce(Call& call, void* data, std::size_t count, DType dtype, ReduceOp op) {
  Buffers& buffers = call.buffers();
  auto* bytes = static_cast<std::byte*>(data);
  const std::size_t length = count * size_of(dtype);
  const Location location = buffers.locate(data, length);
  const bool staged_early = location.is_staged();
  const bool eager = length <= kEagerBytes;
  if (staged_early && eager) {
    copy_bytes(buffers.input_area(call.rank()), data, length);
  } else if (staged_early) {
    stage_for_others(call, bytes, std::min(count, buffers.window_bytes() / size_of(dtype)), dtype);
  }
  call.enter(call.fingerprint(dtype, count, op), location);
  trace::point("collective.reduce", call.rank(), call.sequence());
  if (call.all_in_place()) {
    all_reduce_direct(call, count, dtype, op);
  } else if (eager) {
    all_reduce_eager(call, bytes, count, dtype, op, staged_early);
  } else {
    all_reduce_staged(call, bytes, count, dtype, op, staged_early);
  }
}

}  // namespace gradwire::shared
