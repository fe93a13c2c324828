// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which way a message that was offered is to take: read out of its sender's memory, or in frames.
//
// Which one is quicker differs by processor and by size, and frames are slower while the sender computes (decision
// 0040). So an endpoint takes the time of both.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

namespace gradwire::messages {

// The times of the messages that an endpoint has received, by size: one table for each power of two. Messages of one
// size go both ways in turn until the endpoint has the times of kTries each way; then the way with the lower median.
// Each kInterval-th message after that goes the other way, so that the endpoint sees when that has become quicker.
//
// Messages that come at the same time hold up each other. So those of one size go the same way, and are measured
// together, from the beginning of the first until all have come. Used by one thread at a time.
class QuickerWay final {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Way : std::size_t { pull, frames };
  static constexpr std::size_t kTries = 3;
  static constexpr std::size_t kInterval = 64;

  // The way for a message of so many bytes (more than 0) that begins now.
  Way begin(std::size_t bytes, Clock::time_point now) noexcept;
  // Such a message has come, whole. Who gives up a message says nothing.
  void end(std::size_t bytes, Clock::time_point now) noexcept;

 private:
  // The latest times of one way, in ns a byte.
  struct Times {
    std::array<double, kTries> latest{};
    std::size_t count = 0;  // of all so far

    void add(double time) noexcept { latest[count++ % kTries] = time; }
    double median() const noexcept;
  };
  struct Size {
    std::array<Times, 2> times;
    std::size_t chosen = 0;  // how often a way was chosen
  };
  // Messages that come at the same time.
  struct Burst {
    Clock::time_point begun;
    Size* size = nullptr;  // of all of them; null: they differ, or there was none yet
    Way way = Way::pull;
    std::size_t begun_bytes = 0;
    std::size_t ended_bytes = 0;
  };

  Size& size_of(std::size_t bytes) noexcept;
  static Way choose(Size& size) noexcept;
  static Way better(const Size& size) noexcept;

  static constexpr std::size_t kSizes = 32;
  std::array<Size, kSizes> sizes_;
  Burst burst_;
};

}  // namespace gradwire::messages
