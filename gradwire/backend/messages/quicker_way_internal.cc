// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/quicker_way_internal.h"

#include <algorithm>
#include <bit>

namespace gradwire::messages {
namespace {

// A burst that took longer is over, whatever became of its messages: some of them were given up.
constexpr std::chrono::seconds kLongestBurst{1};

}  // namespace

QuickerWay::Way QuickerWay::begin(std::size_t bytes, Clock::time_point now) noexcept {
  Size& size = size_of(bytes);
  const bool is_over = burst_.ended_bytes == burst_.begun_bytes || now - burst_.begun > kLongestBurst;
  if (is_over) burst_ = {.begun = now, .size = &size, .way = choose(size), .begun_bytes = 0, .ended_bytes = 0};
  burst_.begun_bytes += bytes;
  if (burst_.size == &size) return burst_.way;
  burst_.size = nullptr;
  return better(size);
}

void QuickerWay::end(std::size_t bytes, Clock::time_point now) noexcept {
  burst_.ended_bytes += bytes;
  if (burst_.ended_bytes != burst_.begun_bytes || burst_.size == nullptr) return;
  const std::chrono::duration<double, std::nano> time = now - burst_.begun;
  burst_.size->times[static_cast<std::size_t>(burst_.way)].add(time.count() / static_cast<double>(burst_.begun_bytes));
}

QuickerWay::Way QuickerWay::choose(Size& size) noexcept {
  const std::size_t turn = size.chosen++;
  if (turn < 2 * kTries) return turn % 2 == 0 ? Way::pull : Way::frames;
  const Way quicker = better(size);
  if (turn % kInterval != 0) return quicker;
  return quicker == Way::pull ? Way::frames : Way::pull;
}

// Pulling, where nothing is known: it leaves the sender's processor alone.
QuickerWay::Way QuickerWay::better(const Size& size) noexcept {
  const auto& [pull, frames] = size.times;
  return frames.count > 0 && (pull.count == 0 || frames.median() < pull.median()) ? Way::frames : Way::pull;
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
