// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which way a message is to take whose memory can be read: out of its sender's memory, or in frames.
//
// Which one is quicker differs by processor and by size, and frames are slower while the sender computes (decision
// 0040). So an endpoint takes the times of both.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace gradwire::messages {

// The times of the messages that an endpoint has received, by size: one table for each power of two. Messages of one
// size go both ways in turn until each way has kTries times; then they go the way with the lower median. Each
// kInterval-th goes the other way after that, so that the endpoint sees when that has become quicker.
//
// Messages that come at the same time hold up each other. So they are a burst: those of one size go the same way, and
// are measured together, from the beginning of the first until all have come, or kMostOfABurst. A burst of several
// sizes gives no time. Used by one thread at a time.
class QuickerWay final {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class Way : std::size_t { pull, frames };
  struct Begun {
    Way way;
    std::uint64_t burst;  // for end(); 0: of none
  };
  static constexpr std::size_t kTries = 3;
  static constexpr std::size_t kInterval = 64;
  static constexpr std::size_t kMostOfABurst = 16;

  // Without a clock all messages are pulled.
  explicit QuickerWay(std::function<TimePoint()> clock) : clock_(std::move(clock)) {}
  QuickerWay(const QuickerWay&) = delete;
  QuickerWay& operator=(const QuickerWay&) = delete;

  // A message of so many bytes begins.
  Begun begin(std::size_t bytes);
  // A message of the burst has come, whole. For a message that is given up, nobody calls this.
  void end(std::uint64_t burst, std::size_t bytes);

 private:
  // The latest times of one way, in ns a byte.
  struct Times {
    std::array<double, kTries> latest{};
    std::size_t count = 0;  // of all so far

    void add(double time) noexcept { latest[count++ % kTries] = time; }
    double median() const noexcept;
  };
  struct Size {
    std::array<Times, 2> times;  // by Way
    std::size_t chosen = 0;      // how often, once both ways had their tries
  };
  struct Burst {
    std::uint64_t number = 0;
    TimePoint begun;
    Size* size = nullptr;  // of all messages; null: they differ
    Way way = Way::pull;
    std::size_t begun_messages = 0, ended_messages = 0;
    std::size_t ended_bytes = 0;

    bool is_over() const noexcept { return ended_messages == begun_messages || ended_messages == kMostOfABurst; }
  };

  Size& size_of(std::size_t bytes) noexcept;
  static Way choose(Size& size) noexcept;
  static Way better(const Size& size) noexcept;

  static constexpr std::size_t kSizes = 32;
  const std::function<TimePoint()> clock_;
  std::array<Size, kSizes> sizes_;
  Burst burst_;
};

}  // namespace gradwire::messages
