// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/quicker_way_internal.h"

#include <algorithm>
#include <bit>

namespace gradwire::messages {
namespace {

// A burst that takes longer has messages that were given up.
constexpr std::chrono::seconds kLongestBurst{1};

}  // namespace

QuickerWay::Begun QuickerWay::begin(std::size_t bytes) {
  if (clock_ == nullptr) return {Way::pull, 0};
  const TimePoint now = clock_();
  Size& size = size_of(bytes);
  if (burst_.is_over() || now - burst_.begun > kLongestBurst) {
    burst_ = {.number = burst_.number + 1, .begun = now, .size = &size, .way = choose(size)};
  }
  ++burst_.begun_messages;
  if (burst_.size == &size) return {burst_.way, burst_.number};
  burst_.size = nullptr;
  return {better(size), burst_.number};
}

void QuickerWay::end(std::uint64_t burst, std::size_t bytes) {
  if (burst != burst_.number || burst_.is_over()) return;
  burst_.ended_bytes += bytes;
  ++burst_.ended_messages;
  if (!burst_.is_over() || burst_.size == nullptr) return;
  const std::chrono::duration<double, std::nano> time = clock_() - burst_.begun;
  burst_.size->times[static_cast<std::size_t>(burst_.way)].add(time.count() / static_cast<double>(burst_.ended_bytes));
}

QuickerWay::Way QuickerWay::choose(Size& size) noexcept {
  const auto& [pull, frames] = size.times;
  if (std::min(pull.count, frames.count) < kTries) return pull.count <= frames.count ? Way::pull : Way::frames;
  const Way quicker = better(size);
  if (++size.chosen % kInterval != 0) return quicker;
  return quicker == Way::pull ? Way::frames : Way::pull;
}

// Pulling, where nothing else is known: it leaves the sender's processor alone.
QuickerWay::Way QuickerWay::better(const Size& size) noexcept {
  const auto& [pull, frames] = size.times;
  return pull.count > 0 && frames.count > 0 && frames.median() < pull.median() ? Way::frames : Way::pull;
}

double QuickerWay::Times::median() const noexcept {
  std::array<double, kTries> sorted = latest;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(count, kTries));
  const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, end);
  return *middle;
}

QuickerWay::Size& QuickerWay::size_of(std::size_t bytes) noexcept {
  return sizes_[std::min<std::size_t>(std::bit_width(bytes | 1), kSizes) - 1];
}

}  // namespace gradwire::messages
