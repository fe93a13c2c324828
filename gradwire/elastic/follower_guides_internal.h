// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A member's part in all newcomers that follow it in the present epoch (following_internal.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/following_internal.h"
#include "gradwire/elastic/snapshot_memory_internal.h"
#include "gradwire/elastic/tape_internal.h"
#include "gradwire/elastic/traffic_watch_internal.h"
#include "gradwire/elastic/training_state_internal.h"
#include "gradwire/membership/member.h"

namespace gradwire::internal {

// After so many steps of an epoch, all steps make the same calls: before, buckets and hooks are still agreed on.
inline constexpr std::int64_t kSettledSteps = 3;

// The store with the keys of the group in which this newcomer follows.
std::shared_ptr<Store> following_keys(const std::shared_ptr<Store>& store, std::int64_t follower);

// The calls: begin_epoch() -> in each step look(), begin_step(), end_step() -> end() or abort(). One thread uses the
// object.
class FollowerGuides final {
 public:
  // `options` must outlive the object. `store`: the job's.
  FollowerGuides(const ElasticOptions& options, std::shared_ptr<Store> store, std::shared_ptr<ElasticGroup> group);

  // An epoch begins before `step`.
  void begin_epoch(std::int64_t step);
  // Before `step`: begins to guide the newcomers that wait for this, with copies of `state`, and forgets those that
  // have ended. `step_time`: how long this member's last step took without waiting for others.
  void look(membership::Member& member, const TrainingState& state, std::int64_t step,
            std::chrono::microseconds step_time);
  // The calls of the group between these two are those of `step`.
  void begin_step(std::int64_t step);
  void end_step();

  // The epoch stops before `step`: newcomers that have the state still get the steps up to there.
  void end(std::int64_t step);
  // The epoch is over: the newcomers get an error.
  void abort(const std::string& reason);
  // After abort(): waits for the guides' threads.
  void wait_for_threads() { guides_.clear(); }

 private:
  // A newcomer that follows, and this member's part in that.
  struct Guided {
    std::int64_t follower = 0;  // its number
    std::unique_ptr<Guide> guide;
    bool is_given_up = false;  // the coordinator knows that it does not follow any more
  };
  // A newcomer that will follow.
  struct Expected {
    membership::EpochMember follower;
    bool is_told = false;  // that this member is ready for it
  };

  void forget_ended(membership::Member& member);
  void prepare_for_expected(membership::Member& member, const TrainingState& state, std::int64_t step);
  void guide(const membership::Member& member, const membership::EpochMember& follower,
             const std::shared_ptr<const StateSnapshot>& snapshot, std::chrono::microseconds step_time);
  void tap_calls();
  void forget_expected();
  void forget_tap();

  const ElasticOptions& options_;
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<ElasticGroup> group_;
  std::int64_t first_step_ = 0;  // of the present epoch
  std::int64_t seen_ = 0;        // newcomers that follow, in the present epoch
  std::vector<Expected> expected_;
  std::unique_ptr<SnapshotMemory> snapshot_memory_;  // for those; null while there are none
  std::vector<Guided> guides_;
  std::shared_ptr<TrafficWatch> traffic_;   // of the steps; null while nobody follows or will follow
  std::shared_ptr<TapeRecorder> recorder_;  // the same, and null on other ranks than the last
};

}  // namespace gradwire::internal
