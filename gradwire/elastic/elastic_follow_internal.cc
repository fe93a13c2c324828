// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a newcomer follows the members of an epoch (following_internal.h).
#include <chrono>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/elastic/elastic_impl_internal.h"
#include "gradwire/elastic/epoch_group_internal.h"
#include "gradwire/elastic/lag_internal.h"
#include "gradwire/elastic/mirror_group_internal.h"
#include "gradwire/membership/stored_values.h"
#include "gradwire/observe/epoch_path.h"

namespace gradwire {

using membership::Epoch;
using membership::Member;

namespace {

// The step makes a call that is not on the tape, or cannot be.
bool cannot_repeat(const std::exception& error) {
  return dynamic_cast<const MismatchError*>(&error) != nullptr ||
         dynamic_cast<const UnsupportedError*>(&error) != nullptr;
}

}  // namespace

bool Elastic::Impl::can_follow() const {
  return options_.follow && state_.shards().empty() && state_.separate_workers() == nullptr;
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
  const auto throw_if_ended = [&member] {
    if (member.followed_epoch_ends()) throw AbortedError("the epoch has ended, or ends");
  };
  const auto keys =
      std::make_shared<internal::EpochStore>(internal::following_keys(store_, member.number()), throw_if_ended);
  const int size = static_cast<int>(epoch.members.size()) - 1;
  internal::Follower follower(
      internal::group_of(epoch, size, keys, options_, observe::path_of_following(member.number())), state_);
  state_.keep_bucket_orders(follower.begin().orders);
  group_->move_to(std::make_shared<internal::MirrorGroup>(size - 1, size, follower.begin().traits));
  state_.enter_group();
  ElasticStep at{follower.begin().step, size - 1, size, epoch.number, /*follows=*/true};
  // What DistributedDataParallel and the hooks agree on in the first steps of a group is agreed on here, with mirrors,
  // while the state is on its way.
  for (std::int64_t i = 0; i < internal::kSettledSteps; ++i) step(at);
  follower.take_state(state_);
  for (DdpCore* core : state_.cores()) core->module().zero_grad(true);
  counted_ = at.step;
  group_->set_tap(follower.player());
  bool has_caught_up = false;
  internal::Lag lag;
  const auto leaves = [this] { return wants_to_leave(); };
  while (!leaves() && follower.player()->wait_for_step(counted_, leaves)) {
    const std::int64_t behind = follower.members_step() - counted_;
    if (internal::is_far_behind(behind, std::chrono::microseconds(own_us_)) && membership::is_there(*store_, next))
      throw AbortedError(concat("the members have stopped, and it is ", behind, " steps behind"));
    at.step = counted_;
    do_step(at, step);
    if (has_caught_up || !lag.has_gone(follower.members_step() - counted_)) continue;
    has_caught_up = true;
    member.caught_up();
  }
}

}  // namespace gradwire
