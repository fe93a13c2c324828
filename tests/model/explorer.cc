// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/explorer.h"

#include <utility>

namespace gradwire::model {

bool HashSet::insert(std::uint64_t hash) {
  if (hash == 0) hash = 1;
  if (2 * size_ >= slots_.size()) {
    std::vector<std::uint64_t> old = std::exchange(slots_, std::vector<std::uint64_t>(slots_.size() * 2));
    size_ = 0;
    for (const std::uint64_t each : old) {
      if (each != 0) insert(each);
    }
  }
  for (std::size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at] == hash) return false;
    if (slots_[at] != 0) continue;
    slots_[at] = hash;
    ++size_;
    return true;
  }
}

Report Explorer::explore(const std::function<void(Explorer&)>& program, std::uint64_t max_executions) {
  Report report;
  while (report.executions < max_executions && !report.complete && violation_.empty()) {
    position_ = 0;
    program(*this);
    ++report.executions;
    report.complete = violation_.empty() && !advance();
  }
  report.states = states_.size();
  if (!violation_.empty()) {
    report.violation = violation_;
    tracing_ = true;
    position_ = 0;
    program(*this);
    report.trace = trace_;
  }
  return report;
}

int Explorer::choose(int ways) {
  if (ways == 1) return 0;
  if (position_ == choices_.size()) choices_.push_back({0, ways});
  return choices_[position_++].taken;
}

bool Explorer::reached(const std::function<std::uint64_t()>& hash) {
  // Up to the choice that is new in this run the states are those of the run before.
  if (tracing_ || position_ < choices_.size()) return true;
  return states_.insert(hash());
}

void Explorer::violated(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

bool Explorer::advance() {
  while (!choices_.empty() && choices_.back().taken + 1 == choices_.back().ways) choices_.pop_back();
  if (choices_.empty()) return false;
  ++choices_.back().taken;
  return true;
}

}  // namespace gradwire::model
