// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer's report: its answers to questions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/ddp/bucket_plan.h"
#include "gradwire/ddp/logging_data.h"

namespace gradwire::internal {

// The Reducer writes its changes into the report. The report answers questions at any time on any thread, also in a
// hook while the Reducer's own lock is held. Thread-safe.
class ReductionReport final {
 public:
  // A parameter as it was when the module was wrapped.
  struct Parameter {
    std::string name;
    std::string dtype;
    std::size_t bytes = 0;
  };
  // `slot_bytes`: the bytes of each parameter's gradient in its bucket.
  ReductionReport(std::vector<Parameter> parameters, std::vector<std::size_t> slot_bytes, BucketCaps caps);

  void set_hook(const std::string& name, int lanes) GRADWIRE_EXCLUDES(mutex_);
  void set_first_plan(const BucketPlan& plan) GRADWIRE_EXCLUDES(mutex_);
  // Called after the rebuild. `order`: the order of the parameters from which the plan was made.
  void set_rebuilt_plan(const BucketPlan& plan, const std::vector<std::int64_t>& order) GRADWIRE_EXCLUDES(mutex_);
  // The order of the parameters that the buckets will have, before the rebuild.
  void set_next_order(const std::vector<std::int64_t>& order) GRADWIRE_EXCLUDES(mutex_);
  // An iteration has ended. `times`: null when this rank has joined, and has no times of its own.
  void end_iteration(const DdpTimes* times, const std::vector<std::size_t>& order,
                     const std::vector<std::size_t>& unused) GRADWIRE_EXCLUDES(mutex_);

  std::uint32_t iterations() const GRADWIRE_EXCLUDES(mutex_);
  BucketPlan plan() const GRADWIRE_EXCLUDES(mutex_);
  // The names of the parameters in the order of their buckets; empty before the rebuild.
  std::vector<std::string> bucket_order() const GRADWIRE_EXCLUDES(mutex_);
  // The same, but before the rebuild the order of set_next_order().
  std::vector<std::string> next_bucket_order() const GRADWIRE_EXCLUDES(mutex_);
  // Writes the report's entries into `data`.
  void fill(DdpLoggingData& data) const GRADWIRE_EXCLUDES(mutex_);

 private:
  std::vector<std::size_t> bytes_of(const BucketPlan& plan) const;
  std::vector<std::string> names_of(const std::vector<std::size_t>& parameters) const;

  const std::vector<Parameter> parameters_;
  const std::vector<std::size_t> slot_bytes_;
  const BucketCaps caps_;
  mutable Mutex mutex_;
  std::string hook_ GRADWIRE_GUARDED_BY(mutex_);
  int lanes_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  BucketPlan first_plan_ GRADWIRE_GUARDED_BY(mutex_);
  BucketPlan rebuilt_plan_ GRADWIRE_GUARDED_BY(mutex_);  // empty before the rebuild
  std::vector<std::string> bucket_order_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::string> next_order_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint32_t iterations_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::uint32_t timed_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // iterations in total_times_
  DdpTimes last_times_ GRADWIRE_GUARDED_BY(mutex_);
  DdpTimes total_times_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::size_t> order_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<std::size_t> unused_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace gradwire::internal
