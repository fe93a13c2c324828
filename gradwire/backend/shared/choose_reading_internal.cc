// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/choose_reading_internal.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <vector>

#include "gradwire/backend/shared/collectives_internal.h"
#include "gradwire/base/environment.h"

namespace gradwire::shared {
namespace {

// What a rank wishes. The least of all wishes counts.
enum Wish : std::uint8_t { staging, measurement, reading };

// What the first group of this process that measured has found. The processor stays the same.
std::atomic<Wish> found{measurement};

Wish wish_of(const World& world, PeerMemory& peer_memory) {
  if (!peer_memory.can_read_all()) return staging;
  if (environment("GRADWIRE_READ_PEERS") == "1") return reading;
  // Where ranks share processors, a measurement shows how they took turns.
  return world.may_spin() ? found.load(std::memory_order_relaxed) : staging;
}

Wish agreed(Call& call, Wish own) {
  std::uint8_t least = own;
  all_reduce(call, &least, 1, DType::u8, ReduceOp::min());
  return static_cast<Wish>(least);
}

// One all_gather of private memory, both ways in turns: whether reading takes less time.
class Measurement {
 public:
  Measurement(Call& call, PeerMemory& peer_memory)
      : call_(call), peer_memory_(peer_memory), input_(part_bytes(call.size())), outputs_(input_.size() * ranks()) {
    for (std::size_t rank = 0; rank < ranks(); ++rank) targets_.push_back(outputs_.data() + rank * input_.size());
  }

  bool reading_wins() {
    constexpr int kRounds = 16;  // the first one touches the memory; others may be disturbed
    std::array<double, 2> seconds{};
    seconds.fill(std::numeric_limits<double>::infinity());
    for (int round = 0; round < kRounds; ++round) {
      for (const bool by_reading : {false, true}) {
        double& best = seconds[by_reading ? 1 : 0];
        best = std::min(best, time_of(by_reading));
      }
    }
    all_reduce(call_, seconds.data(), seconds.size(), DType::f64, ReduceOp::sum());
    // Staging stays where the two are about equal: it does without system calls.
    constexpr double kWorthwhile = 0.95;
    return seconds[1] < kWorthwhile * seconds[0];
  }

 private:
  static std::size_t part_bytes(int size) {
    constexpr std::size_t kAll = std::size_t{1} << 20;
    return std::clamp(kAll / static_cast<std::size_t>(size), kAll / 16, kAll / 4);
  }
  std::size_t ranks() const { return static_cast<std::size_t>(call_.size()); }

  double time_of(bool by_reading) {
    peer_memory_.set_serves_collectives(by_reading);
    const auto begin = std::chrono::steady_clock::now();
    all_gather(call_, input_.data(), targets_, input_.size(), DType::u8);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Call& call_;
  PeerMemory& peer_memory_;
  std::vector<std::byte> input_;
  std::vector<std::byte> outputs_;
  std::vector<void*> targets_;
};

}  // namespace

void choose_reading(Call& call, const World& world, PeerMemory& peer_memory) {
  if (world.shares_all_memory() || world.size() == 1) return;
  Wish wish = agreed(call, wish_of(world, peer_memory));
  if (wish == measurement) {
    wish = Measurement(call, peer_memory).reading_wins() ? reading : staging;
    found.store(wish, std::memory_order_relaxed);
  }
  peer_memory.set_serves_collectives(wish == reading);
}

}  // namespace gradwire::shared
