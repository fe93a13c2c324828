// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/fault.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace gradwire::testing {
namespace {

constexpr std::size_t kLongestWarmUp = 12;

const FaultClass& class_at(std::size_t point) {
  for (const FaultClass& candidate : fault_classes()) {
    if (point < static_cast<std::size_t>(candidate.weight)) return candidate;
    point -= static_cast<std::size_t>(candidate.weight);
  }
  return fault_classes().front();
}

std::size_t all_weights() {
  std::size_t sum = 0;
  for (const FaultClass& each : fault_classes()) sum += static_cast<std::size_t>(each.weight);
  return sum;
}

}  // namespace

std::span<const FaultClass> fault_classes() {
  static const std::vector<FaultClass> all = [] {
    std::vector<FaultClass> classes;
    for (const auto part : {collective_faults(), message_faults(), request_faults(), life_faults(), store_faults(),
                            fork_faults(), limit_faults()}) {
      std::copy_if(part.begin(), part.end(), std::back_inserter(classes),
                   [](const FaultClass& each) { return !each.needs_root || ::geteuid() == 0; });
    }
    return classes;
  }();
  return all;
}

Fault draw_fault(std::uint64_t seed) {
  // Neighbouring seeds take neighbouring places in the table of weights, so that every run of as many seeds as there
  // are weights has every class in it, as often as it weighs.
  Fault fault;
  fault.seed = seed;
  fault.what = &class_at(seed % all_weights());
  Random random(seed);
  const int fewest = fault.what->victims + 1;
  fault.ranks = fewest + static_cast<int>(random.below(static_cast<std::size_t>(kMaxRanks - fewest + 1)));
  fault.victim = fault.what->strikes_rank_0 ? 0 : static_cast<int>(random.below(static_cast<std::size_t>(fault.ranks)));
  fault.warm_up = static_cast<int>(random.below(kLongestWarmUp));
  fault.as_nobody = random.below(4) == 0 && ::geteuid() == 0 && !fault.what->needs_root;
  fault.tcp_store = random.below(4) == 0;
  fault.new_world = random.below(3) == 0;
  fault.detail = random.next();
  return fault;
}

bool is_victim(const Fault& fault, int rank) {
  return (rank - fault.victim + fault.ranks) % fault.ranks < fault.what->victims;
}

std::ostream& operator<<(std::ostream& out, const Fault& fault) {
  return out << "fault " << fault.seed << " (" << fault.what->name << "): rank " << fault.victim << " of "
             << fault.ranks << " after " << fault.warm_up << " calls" << (fault.as_nobody ? ", as nobody" : "")
             << (fault.tcp_store ? ", over a TcpStore" : ", over a FileStore")
             << (fault.new_world ? ", then a world of the survivors" : "") << ", detail " << fault.detail;
}

}  // namespace gradwire::testing
