// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/follower_guides_internal.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/elastic/epoch_group_internal.h"
#include "gradwire/elastic/epoch_store_internal.h"
#include "gradwire/membership/stored_values.h"
#include "gradwire/observe/epoch_path.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {
namespace {

// So many bytes may wait for a newcomer besides as many as the state has. It is too slow then.
constexpr std::size_t kTapeBytes = std::size_t{256} << 20;

// A newcomer that is alive takes something of the tape in this time.
constexpr Milliseconds kSilence{60'000};

// How long a newcomer may take until it does the first step on the tape: it meets the members, does a few steps of its
// own, and gets the state over a link of at least 1 MB/s.
Milliseconds patience_at_first(std::size_t bytes, std::chrono::microseconds step_time) {
  constexpr std::size_t kBytesPerMillisecond = 1000;
  constexpr int kSlowerThanMembers = 10;
  return kSilence + Milliseconds(bytes / kBytesPerMillisecond) +
         std::chrono::duration_cast<Milliseconds>(step_time) * (kSettledSteps * kSlowerThanMembers);
}

}  // namespace

std::shared_ptr<Store> following_keys(const std::shared_ptr<Store>& store, std::int64_t follower) {
  return std::make_shared<PrefixStore>(concat("world/follower/", follower), store);
}

FollowerGuides::FollowerGuides(const ElasticOptions& options, std::shared_ptr<Store> store,
                               std::shared_ptr<ElasticGroup> group)
    : options_(options), store_(std::move(store)), group_(std::move(group)) {}

void FollowerGuides::begin_epoch(std::int64_t step) {
  first_step_ = step;
  seen_ = 0;
}

void FollowerGuides::look(membership::Member& member, const TrainingState& state, std::int64_t step,
                          std::chrono::microseconds step_time) {
  forget_ended(member);
  if (step < first_step_ + kSettledSteps) return;
  while (const std::optional<membership::EpochMember> follower = member.follower(seen_)) {
    ++seen_;
    expected_.push_back({*follower});
  }
  prepare_for_expected(member, state, step);
  // Those that have come together begin together, so that they share the copy of the state.
  std::shared_ptr<const StateSnapshot> snapshot;
  std::erase_if(expected_, [&](const Expected& expected) {
    if (!expected.is_told || !member.follows_from(expected.follower.number, step)) return false;
    if (snapshot == nullptr) {
      const auto memory = std::exchange(snapshot_memory_, nullptr);
      snapshot = std::make_shared<const StateSnapshot>(snapshot_of(
          state, step, {group_->multiplies_as_it_sums(), group_->has_hosts(), group_->stages_devices()}, memory.get()));
    }
    guide(member, expected.follower, snapshot, step_time);
    return true;
  });
}

void FollowerGuides::forget_ended(membership::Member& member) {
  for (Guided& guided : guides_) {
    // The newcomer may be stuck, and keep others out that wait for the members to stop.
    if (guided.guide->gave_up() && !std::exchange(guided.is_given_up, true)) member.give_up_follower(guided.follower);
  }
  std::erase_if(guides_, [](const Guided& guided) {
    return guided.guide->has_ended() && (guided.is_given_up || !guided.guide->gave_up());
  });
  if (guides_.empty() && expected_.empty() && traffic_ != nullptr) forget_tap();
}

// The memory is for those that are told of together. The others come after these have begun.
void FollowerGuides::prepare_for_expected(membership::Member& member, const TrainingState& state, std::int64_t step) {
  if (std::any_of(expected_.begin(), expected_.end(), [](const Expected& expected) { return expected.is_told; }))
    return;
  if (!expected_.empty()) tap_calls();
  for (Expected& expected : expected_) {
    if (snapshot_memory_ == nullptr) snapshot_memory_ = std::make_unique<SnapshotMemory>(state.all_tensors());
    if (!snapshot_memory_->is_ready()) return;
    member.ready_for(expected.follower.number, step);
    expected.is_told = true;
  }
}

void FollowerGuides::guide(const membership::Member& member, const membership::EpochMember& follower,
                           const std::shared_ptr<const StateSnapshot>& snapshot, std::chrono::microseconds step_time) {
  membership::Epoch with_follower = member.epoch();
  with_follower.members.push_back(follower);
  std::shared_ptr<TapeReader> tape;
  if (recorder_ != nullptr) {
    tape = std::make_shared<TapeReader>(snapshot->bytes + kTapeBytes, patience_at_first(snapshot->bytes, step_time),
                                        kSilence, kNewcomerHolds);
    recorder_->add(tape);
  }
  const auto make_group = [with_follower, rank = group_->rank(), options = options_,
                           name = observe::path_of_following(follower.number)](const std::shared_ptr<Store>& keys) {
    return group_of(with_follower, rank, keys, options, name);
  };
  const auto throw_if_gone = [store = store_, key = membership::refused_key(follower.number)] {
    if (membership::is_there(*store, key)) throw PeerError("the newcomer is gone", {});
  };
  const auto keys = std::make_shared<EpochStore>(following_keys(store_, follower.number), throw_if_gone);
  guides_.push_back({follower.number, std::make_unique<Guide>(make_group, keys, snapshot, std::move(tape), traffic_)});
}

// Before somebody follows, too: the recorder then sees which memory the first step on a tape will take.
void FollowerGuides::tap_calls() {
  if (traffic_ != nullptr) return;
  if (group_->rank() == group_->size() - 1) recorder_ = std::make_shared<TapeRecorder>();
  traffic_ = std::make_shared<TrafficWatch>(recorder_);
  group_->set_tap(traffic_);
}

void FollowerGuides::begin_step(std::int64_t step) {
  if (traffic_ != nullptr) traffic_->begin_step();
  if (recorder_ != nullptr) recorder_->begin_step(step);
}

void FollowerGuides::end_step() {
  if (recorder_ != nullptr) recorder_->end_step();
}

void FollowerGuides::end(std::int64_t step) {
  forget_expected();
  for (const Guided& guided : guides_) guided.guide->end(step);
  forget_tap();
}

void FollowerGuides::abort(const std::string& reason) {
  forget_expected();
  for (const Guided& guided : guides_) guided.guide->abort(reason);
  forget_tap();
}

void FollowerGuides::forget_expected() {
  expected_.clear();
  snapshot_memory_.reset();
}

void FollowerGuides::forget_tap() {
  group_->set_tap(nullptr);
  traffic_.reset();
  recorder_.reset();
}

}  // namespace gradwire::internal
