// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/slow_watch_internal.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {
namespace {

// The names of the ranks' hosts, cut to 63 characters. Collective.
std::vector<std::string> gather_host_names(ProcessGroup& group) {
  std::array<std::int64_t, 8> words{};
  std::array<char, sizeof(words)> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::memcpy(words.data(), name.data(), sizeof(words));
  std::vector<std::string> names;
  for (const auto& numbers : gather_integers(group, {words.begin(), words.end()})) {
    std::memcpy(name.data(), numbers.data(), sizeof(words));
    names.emplace_back(name.data(), ::strnlen(name.data(), name.size()));
  }
  return names;
}

}  // namespace

SlowWatch::SlowWatch(const SlowRule& rule, int size)
    : rule_(rule),
      per_exchange_(static_cast<std::size_t>(std::clamp(rule.steps, 1, kStepsPerExchange))),
      ranks_(rule, size) {}

std::vector<SlowRankOnHost> SlowWatch::add(ProcessGroup& group, std::int64_t step, std::int64_t own_us) {
  own_us_.push_back(own_us);
  if (own_us_.size() < per_exchange_) return {};
  const auto by_rank = gather_integers(group, std::exchange(own_us_, {}));
  std::vector<membership::SlowRank> slow;
  for (std::size_t i = 0; i < per_exchange_; ++i) {
    std::vector<std::int64_t> of_step;
    for (const auto& times : by_rank) of_step.push_back(times[i]);
    const std::int64_t number = step - static_cast<std::int64_t>(per_exchange_ - 1 - i);
    for (const membership::SlowRank& found : ranks_.add(number, of_step)) slow.push_back(found);
  }
  if (slow.empty()) return {};
  const std::vector<std::string> hosts = gather_host_names(group);
  std::vector<SlowRankOnHost> found;
  for (const membership::SlowRank& rank : slow) found.push_back({rank, hosts[static_cast<std::size_t>(rank.rank)]});
  return found;
}

}  // namespace gradwire::internal
