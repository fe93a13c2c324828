// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a newcomer follows the members of an epoch, and how they let it follow (following_internal.h).
#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/elastic/elastic_impl_internal.h"
#include "gradwire/elastic/epoch_group_internal.h"
#include "gradwire/elastic/lag_internal.h"
#include "gradwire/elastic/mirror_group_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire {

using membership::Epoch;
using membership::EpochMember;
using membership::Member;

namespace {

// After so many steps of an epoch, all steps make the same calls: before, buckets and hooks are still agreed on.
constexpr std::int64_t kSettled = 3;
// So many bytes may wait for a newcomer besides as many as the state has. It is too slow then.
constexpr std::size_t kTapeBytes = std::size_t{256} << 20;

std::shared_ptr<Store> following_keys(const std::shared_ptr<Store>& store, std::int64_t follower) {
  return std::make_shared<PrefixStore>(concat("world/follower/", follower), store);
}

// The step makes a call that is not on the tape, or cannot be.
bool cannot_repeat(const std::exception& error) {
  return dynamic_cast<const MismatchError*>(&error) != nullptr ||
         dynamic_cast<const UnsupportedError*>(&error) != nullptr;
}

std::string following_name(std::int64_t follower) { return concat("member ", follower, " follows"); }

}  // namespace

bool Elastic::Impl::can_follow() const {
  return options_.follow && state_.shards().empty() && state_.separate_workers() == nullptr;
}

void Elastic::Impl::look_for_followers(Member& member) {
  if (!can_follow()) return;
  for (Guided& guided : guides_) {
    // The newcomer may be stuck, and keep others out that wait for the members to stop.
    if (guided.guide->gave_up() && !std::exchange(guided.is_given_up, true)) member.give_up_follower(guided.follower);
  }
  std::erase_if(guides_, [](const Guided& guided) {
    return guided.guide->has_ended() && (guided.is_given_up || !guided.guide->gave_up());
  });
  if (guides_.empty() && traffic_ != nullptr) forget_tap();
  if (counted_ < first_step_ + kSettled) return;
  while (const std::optional<EpochMember> follower = member.follower(followers_seen_)) {
    ++followers_seen_;
    expected_.push_back({*follower});
  }
  prepare_for_expected(member);
  // Those that have come together begin together, so that they share the copy of the state.
  std::shared_ptr<const internal::StateSnapshot> snapshot;
  std::erase_if(expected_, [&](const Expected& expected) {
    if (!expected.is_told || !member.follows_from(expected.follower.number, counted_)) return false;
    if (snapshot == nullptr) {
      const auto memory = std::exchange(snapshot_memory_, nullptr);
      snapshot = std::make_shared<const internal::StateSnapshot>(internal::snapshot_of(
          state_, counted_, {group_->multiplies_as_it_sums(), group_->has_hosts()}, memory.get()));
    }
    guide(member, expected.follower, snapshot);
    return true;
  });
}

// The memory is for those that are told of together. The others come after these have begun.
void Elastic::Impl::prepare_for_expected(Member& member) {
  if (std::any_of(expected_.begin(), expected_.end(), [](const Expected& expected) { return expected.is_told; }))
    return;
  for (Expected& expected : expected_) {
    if (snapshot_memory_ == nullptr)
      snapshot_memory_ = std::make_unique<internal::SnapshotMemory>(state_.all_tensors());
    if (!snapshot_memory_->is_ready()) return;
    member.ready_for(expected.follower.number, counted_);
    expected.is_told = true;
  }
}

void Elastic::Impl::guide(const Member& member, const EpochMember& follower,
                          const std::shared_ptr<const internal::StateSnapshot>& snapshot) {
  Epoch with_follower = member.epoch();
  with_follower.members.push_back(follower);
  const bool is_last = group_->rank() == group_->size() - 1;
  if (traffic_ == nullptr) {
    if (is_last) recorder_ = std::make_shared<internal::TapeRecorder>();
    traffic_ = std::make_shared<internal::TrafficWatch>(recorder_);
    group_->set_tap(traffic_);
  }
  std::shared_ptr<internal::TapeReader> tape;
  if (is_last) {
    tape = std::make_shared<internal::TapeReader>(snapshot->bytes + kTapeBytes);
    recorder_->add(tape);
  }
  const auto make_group = [with_follower, rank = group_->rank(), options = options_,
                           name = following_name(follower.number)](const std::shared_ptr<Store>& keys) {
    return internal::group_of(with_follower, rank, keys, options, name);
  };
  const auto throw_if_gone = [store = store_, key = membership::refused_key(follower.number)] {
    if (store->check(std::span(&key, 1))) throw PeerError("the newcomer is gone", {});
  };
  const auto keys = std::make_shared<internal::EpochStore>(following_keys(store_, follower.number), throw_if_gone);
  guides_.push_back(
      {follower.number, std::make_unique<internal::Guide>(make_group, keys, snapshot, std::move(tape), traffic_)});
}

void Elastic::Impl::forget_tap() {
  group_->set_tap(nullptr);
  traffic_.reset();
  recorder_.reset();
}

void Elastic::Impl::end_guiding(const std::string& reason) {
  expected_.clear();
  snapshot_memory_.reset();
  for (const Guided& guided : guides_) reason.empty() ? guided.guide->end(counted_) : guided.guide->abort(reason);
  forget_tap();
}

void Elastic::Impl::follow(Member& member, const std::function<void(const ElasticStep&)>& step) {
  has_followed_ = true;
  bool differs = false;
  try {
    if (const std::optional<Epoch> epoch = member.wait_to_follow()) do_taped_steps(member, *epoch, step);
  } catch (const std::exception& error) {
    if (!ends_epoch(error) && !cannot_repeat(error)) {
      give_up_epoch("");
      throw;
    }
    differs = cannot_repeat(error);
    log::info(
        concat("elastic training: this newcomer follows no longer, and takes the state of the others when they "
               "stop for it: ",
               describe(error)));
  }
  give_up_epoch("");
  if (differs) counted_ = internal::kNoState;
  // Local parts are those of the member whose steps it did.
  memory_.holds = false;
  if (!wants_to_leave()) member.caught_up();
}

void Elastic::Impl::do_taped_steps(Member& member, const Epoch& epoch,
                                   const std::function<void(const ElasticStep&)>& step) {
  const std::string next = membership::epoch_key(epoch.number + 1);
  const auto keys =
      std::make_shared<internal::EpochStore>(following_keys(store_, member.number()), [store = store_, next] {
        if (store->check(std::span(&next, 1))) throw AbortedError("the epoch has ended");
      });
  const int size = static_cast<int>(epoch.members.size()) - 1;
  internal::Follower follower(internal::group_of(epoch, size, keys, options_, following_name(member.number())));
  state_.keep_bucket_orders(follower.begin().orders);
  group_->move_to(std::make_shared<internal::MirrorGroup>(size - 1, size, follower.begin().traits));
  state_.enter_group();
  ElasticStep at{follower.begin().step, size - 1, size, epoch.number, /*follows=*/true};
  // What DistributedDataParallel and the hooks agree on in the first steps of a group is agreed on here, with mirrors.
  for (int i = 0; i < kSettled; ++i) step(at);
  follower.take_state(state_);
  for (DdpCore* core : state_.cores()) core->module().zero_grad(true);
  counted_ = at.step;
  group_->set_tap(follower.player());
  bool has_caught_up = false;
  internal::Lag lag;
  const auto leaves = [this] { return wants_to_leave(); };
  while (!leaves() && follower.player()->wait_for_step(counted_, leaves)) {
    const std::int64_t behind = follower.members_step() - counted_;
    if (internal::is_far_behind(behind, std::chrono::microseconds(own_us_)) && store_->check(std::span(&next, 1)))
      throw AbortedError(concat("the members have stopped, and it is ", behind, " steps behind"));
    at.step = counted_;
    do_step(at, step);
    if (has_caught_up || !lag.has_gone(follower.members_step() - counted_)) continue;
    has_caught_up = true;
    member.caught_up();
  }
}

}  // namespace gradwire
