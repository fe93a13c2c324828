// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One member of an elastic job: how it goes from epoch to epoch, and from step to step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gradwire/elastic/departure_internal.h"
#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/epoch_watch_internal.h"
#include "gradwire/elastic/follower_guides_internal.h"
#include "gradwire/elastic/leave_signal_internal.h"
#include "gradwire/elastic/slow_watch_internal.h"
#include "gradwire/elastic/state_exchange_internal.h"
#include "gradwire/elastic/training_state_internal.h"
#include "gradwire/membership/member.h"

namespace gradwire {

class Elastic::Impl {
 public:
  explicit Impl(ElasticOptions options);

  ElasticEnd run(std::int64_t steps, const std::function<void(const ElasticStep&)>& step);

  const ElasticOptions& options() const noexcept { return options_; }
  internal::TrainingState& state() noexcept { return state_; }
  const std::shared_ptr<ElasticGroup>& group() const noexcept { return group_; }
  void leave() noexcept { leave_ = true; }
  std::int64_t counted() const noexcept { return std::max<std::int64_t>(counted_, 0); }
  bool has_run() const noexcept { return has_run_; }

 private:
  // How the steps of an epoch ended.
  enum class Stop { counted_all, boundary };
  // Returns false when no member holds the state of the job.
  bool enter(membership::Member& member);
  Stop train(membership::Member& member, std::int64_t steps, const std::function<void(const ElasticStep&)>& step);
  bool stops_here(membership::Member& member) const;
  // Throws the error with which one of the DDP objects has ended: the first, as it was.
  void require_cores_well() const;
  void do_step(const ElasticStep& at, const std::function<void(const ElasticStep&)>& step);
  void hand_over(membership::Member& member);
  void require_one_separate_step() const;
  void look_for_slow_members(membership::Member& member);
  void give_up_epoch(const std::string& reason);
  // Whether the job goes on in another epoch after this error.
  static bool ends_epoch(const std::exception& error);
  bool is_of_a_newcomer(const std::exception& error, const membership::Epoch& epoch) const;
  // elastic_follow_internal.cc: how this member follows the others, as a newcomer.
  bool can_follow() const;
  void follow(membership::Member& member, const std::function<void(const ElasticStep&)>& step);
  void do_taped_steps(membership::Member& member, const membership::Epoch& epoch,
                      const std::function<void(const ElasticStep&)>& step);
  bool wants_to_leave() const noexcept { return leave_ || (options_.leave_on_sigterm && internal::leave_was_asked()); }
  // Between epochs.
  bool leaves_now();

  const ElasticOptions options_;
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<ElasticGroup> group_;
  std::unique_ptr<internal::EpochWatch> watch_;  // null until an epoch crosses hosts
  internal::TrainingState state_;
  internal::FollowerGuides guides_;
  std::optional<internal::SlowWatch> slow_;  // of the present epoch
  std::int64_t own_us_ = 0;                  // this member's own time of the last step
  std::atomic<bool> leave_{false};
  std::int64_t counted_ = internal::kNoState;
  std::set<std::int64_t> met_;       // the members of the last epoch whose group was made
  internal::MemoryStanding memory_;  // of the hooks
  internal::Departure departure_;    // of this member
  bool has_followed_ = false;        // what it holds, it has by following, and no member has confirmed that
  bool in_step_ = false;
  bool asked_to_leave_ = false;
  bool has_run_ = false;
};

}  // namespace gradwire
