// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/run_sums.h"

#include <algorithm>
#include <array>
#include <bit>

#include "gradwire/observe/record_format_internal.h"

namespace gradwire::observe {
namespace {

using record_format::File;
using record_format::Sums;

constexpr int kTries = 100;

std::uint64_t value_of(const record_format::Word& word) noexcept { return word.load(std::memory_order_relaxed); }

// The totals between two looks at a version that stayed the same.
std::optional<std::array<std::uint64_t, Sums::size>> totals_of(const File& file) noexcept {
  std::array<std::uint64_t, Sums::size> words{};
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t before = file.version.load(std::memory_order_acquire);
    if (before % 2 != 0) continue;
    std::transform(file.totals.words.begin(), file.totals.words.end(), words.begin(), value_of);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (value_of(file.version) == before) return words;
  }
  return std::nullopt;
}

}  // namespace

std::string_view name_of(StepPhase phase) noexcept {
  switch (phase) {
    case StepPhase::none:
      return "between steps";
    case StepPhase::forward:
      return "forward";
    case StepPhase::backward:
      return "backward";
    case StepPhase::wait:
      return "waiting for buckets";
    case StepPhase::rest:
      return "rest of the step";
  }
  return "between steps";
}

std::size_t record_file_bytes() noexcept { return record_format::kFileBytes; }

std::optional<RunSums> read_run_sums(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() < record_format::kFileBytes) return std::nullopt;
  const File& file = *reinterpret_cast<const File*>(bytes.data());
  if (file.magic.load(std::memory_order_acquire) != record_format::kMagic) return std::nullopt;
  const auto totals = totals_of(file);
  if (!totals) return std::nullopt;
  const auto time = [&](std::size_t word) { return static_cast<std::int64_t>((*totals)[word]); };
  RunSums sums;
  sums.rank = static_cast<int>(value_of(file.ranks) >> 32);
  sums.world = static_cast<int>(value_of(file.ranks) & 0xffffffffU);
  sums.opened = static_cast<std::int64_t>(value_of(file.monotonic));
  sums.phase = static_cast<StepPhase>(std::min<std::uint64_t>(value_of(file.phase), 4));
  sums.phase_begin = static_cast<std::int64_t>(value_of(file.phase_begin));
  sums.begin = time(Sums::begin);
  sums.end = time(Sums::end);
  sums.totals.steps = (*totals)[Sums::steps];
  sums.totals.whole = time(Sums::whole);
  sums.totals.forward = time(Sums::forward);
  sums.totals.backward = time(Sums::backward);
  sums.totals.wait = time(Sums::wait);
  sums.totals.rest = time(Sums::rest);
  sums.totals.hook = time(Sums::hook);
  sums.totals.split = {time(Sums::compute), time(Sums::communication), time(Sums::hook_wait)};
  sums.totals.sent = (*totals)[Sums::sent];
  sums.totals.call_bytes = (*totals)[Sums::call_bytes];
  const std::uint64_t loss = (*totals)[Sums::loss];
  if (sums.totals.steps > 0 && loss != record_format::kNoLoss) sums.loss = std::bit_cast<double>(loss);
  return sums;
}

}  // namespace gradwire::observe
