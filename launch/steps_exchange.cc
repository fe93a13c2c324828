// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/steps_exchange.h"

#include <utility>

#include "launch/record_keys.h"

namespace gradwire::launch {
namespace {

// How often node 0 asks for the steps of the others.
constexpr Milliseconds kStepsTime{1000};

}  // namespace

void StepsExchange::tell(std::string lines) {
  MutexLock lock(mutex_);
  own_ = std::move(lines);
}

std::vector<std::string> StepsExchange::told() const {
  MutexLock lock(mutex_);
  return told_;
}

void StepsExchange::exchange(NodeStore& store, int round) {
  if (node_ != 0) {
    std::string lines;
    {
      MutexLock lock(mutex_);
      lines.swap(own_);
    }
    if (!lines.empty()) store.put(steps_key(round, node_), lines);
    return;
  }
  if (!next_.expired()) return;
  next_ = Deadline::after(kStepsTime);
  std::vector<std::string> told(static_cast<std::size_t>(nodes_));
  for (int node = 1; node < nodes_; ++node) {
    const std::string key = steps_key(round, node);
    if (store.has(key)) told[static_cast<std::size_t>(node)] = store.get(key);
  }
  MutexLock lock(mutex_);
  told_ = std::move(told);
}

void StepsExchange::clear() {
  MutexLock lock(mutex_);
  own_.clear();
  told_.clear();
}

}  // namespace gradwire::launch
