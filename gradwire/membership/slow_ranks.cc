// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/slow_ranks.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::membership {
namespace {

// The larger of the two in the middle, for an even number of times. There is at least one.
std::int64_t median_of_others(std::span<const std::int64_t> times, std::size_t rank) {
  std::vector<std::int64_t> others(times.begin(), times.end());
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(rank));
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  return *middle;
}

bool is_slow(const SlowRule& rule, std::int64_t own_us, std::int64_t others_us) {
  const std::int64_t least_us = rule.least.count() * 1000;
  return own_us - others_us >= least_us && static_cast<double>(own_us) > rule.factor * static_cast<double>(others_us);
}

}  // namespace

void require_valid(const SlowRule& rule) {
  if (!std::isfinite(rule.factor) || rule.factor <= 1)
    throw InvalidArgument(concat("slow ranks: the factor is ", rule.factor, "; give a number above 1"));
  if (rule.steps < 1) throw InvalidArgument(concat("slow ranks: ", rule.steps, " steps in a row; give 1 or more"));
  if (rule.least.count() < 0)
    throw InvalidArgument(concat("slow ranks: the least difference is ", rule.least.count(), " ms; give 0 or more"));
}

std::string to_text(const SlowRule& rule) {
  std::ostringstream text;
  text.precision(17);
  text << rule.factor << " " << rule.steps << " " << rule.least.count() << " " << (rule.drop ? 1 : 0);
  return text.str();
}

SlowRule slow_rule_of(const std::string& text) {
  std::istringstream in(text);
  SlowRule rule;
  std::int64_t least = 0;
  if (!(in >> rule.factor >> rule.steps >> least >> rule.drop))
    throw StoreError(concat("the store of an elastic job holds '", text, "' in place of a rule for slow ranks"));
  rule.least = Milliseconds(least);
  return rule;
}

SlowRanks::SlowRanks(const SlowRule& rule, int size) : rule_(rule), runs_(static_cast<std::size_t>(size)) {
  require_valid(rule);
}

std::vector<SlowRank> SlowRanks::add(std::int64_t step, std::span<const std::int64_t> own_us) {
  GRADWIRE_CHECK(own_us.size() == runs_.size());
  std::vector<SlowRank> found;
  for (std::size_t rank = 0; rank < runs_.size() && runs_.size() > 1; ++rank) {
    Run& run = runs_[rank];
    const std::int64_t others_us = median_of_others(own_us, rank);
    if (!is_slow(rule_, own_us[rank], others_us)) {
      run = {};
      continue;
    }
    if (run.steps >= rule_.steps) continue;  // it was returned already
    ++run.steps;
    run.own_us += own_us[rank];
    run.others_us += others_us;
    if (run.steps == rule_.steps)
      found.push_back({static_cast<int>(rank), step, run.own_us / run.steps, run.others_us / run.steps});
  }
  return found;
}

}  // namespace gradwire::membership
