// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/elastic_impl_internal.h"

#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/elastic/epoch_group_internal.h"
#include "gradwire/elastic/job_details_internal.h"
#include "gradwire/membership/job_store.h"
#include "gradwire/membership/patient_store.h"
#include "gradwire/observe/epoch_path.h"
#include "gradwire/process_group/wait_clock_internal.h"

namespace gradwire {

using internal::crosses_hosts;
using internal::group_of;
using internal::keys_of;
using internal::kNoState;
using membership::Epoch;
using membership::Member;

namespace {

std::shared_ptr<Store> store_of(const ElasticOptions& options) {
  if (options.store != nullptr) return options.store;
  const auto place = environment("GRADWIRE_ELASTIC");
  if (!place) {
    throw InvalidArgument(
        "Elastic: GRADWIRE_ELASTIC is not set, so there is no coordinator; start the program with gradwire-run "
        "--elastic "
        "MIN:MAX, or give ElasticOptions::store");
  }
  return membership::open_job_store(*place, options.timeout);
}

void seed_generator(std::uint64_t seed, const ElasticStep& at) {
  const std::array<std::int64_t, 3> numbers{static_cast<std::int64_t>(seed), at.step, at.rank};
  at::manual_seed(stable_hash(std::span<const std::int64_t>(numbers)));
}

}  // namespace

Elastic::Impl::Impl(ElasticOptions options)
    : options_(std::move(options)),
      store_(store_of(options_)),
      group_(std::make_shared<ElasticGroup>()),
      guides_(options_, store_, group_),
      departure_(options_.hand_over_patience) {
  group_->set_group_name("elastic");
  if (options_.timeout.count() <= 0)
    throw InvalidArgument(concat("Elastic: a timeout of ", options_.timeout.count(), " ms; give a positive one"));
  group_->set_timeout(options_.timeout);
  if (options_.slow) membership::require_valid(*options_.slow);
  if (options_.backend == "nccl") {
    throw UnsupportedError(
        "Elastic: the backend nccl; a step would count before its kernels have ended. Leave ElasticOptions::backend "
        "empty: models on a device train through the memory of the host");
  }
}

ElasticEnd Elastic::Impl::run(std::int64_t steps, const std::function<void(const ElasticStep&)>& step) {
  has_run_ = true;
  std::optional<internal::LeaveSignal> signal;
  if (options_.leave_on_sigterm) signal.emplace();
  const std::string program =
      concat(options_.program, options_.program.empty() ? "" : ", ", state_.description(), ", ", steps, " steps, ",
             options_.slow ? concat("slow ranks: ", membership::to_text(*options_.slow)) : "no rule for slow ranks",
             options_.follow ? ", newcomers follow" : "");
  const std::string details = state_.details();
  std::optional<Member> joined;
  try {
    joined.emplace(
        store_, program, options_.timeout, [this] { return leaves_now(); },
        environment("GRADWIRE_ELASTIC_HOST").value_or(""), can_follow());
  } catch (const MismatchError& refused) {
    throw MismatchError(concat(refused.what(), internal::first_difference(*store_, details)));
  }
  Member& member = *joined;
  internal::leave_details(*store_, details);
  state_.leave_group();
  if (can_follow()) follow(member, step);
  while (true) {
    if (leaves_now()) {
      member.leave();
      state_.enter_group();  // of this rank alone
      return ElasticEnd::left;
    }
    if (member.was_dropped()) {
      log::warn(concat("elastic training: this member leaves, because ", member.why_dropped()));
      member.leave();
      state_.enter_group();
      return ElasticEnd::dropped;
    }
    if (!member.meet()) {
      if (!member.job_has_finished()) continue;  // it wants to leave, or was dropped
      state_.enter_group();
      return counted_ == steps ? ElasticEnd::finished : ElasticEnd::too_late;
    }
    if (wants_to_leave() && !departure_.is_of_use(member.epoch())) {
      member.leave();
      state_.enter_group();
      return ElasticEnd::left;
    }
    departure_.enters();
    try {
      if (!enter(member)) break;
      if (train(member, steps, step) == Stop::counted_all) {
        member.done();
        if (watch_) watch_->end();
        guides_.abort("the job has finished");
        guides_.wait_for_threads();
        return ElasticEnd::finished;
      }
    } catch (const std::exception& error) {
      give_up_epoch(describe(error));
      if (!ends_epoch(error) && !is_of_a_newcomer(error, member.epoch())) {
        member.fails();
        throw;
      }
      continue;
    }
    give_up_epoch("");
  }
  give_up_epoch("");
  throw member.state_is_lost();
}

bool Elastic::Impl::leaves_now() {
  return wants_to_leave() && departure_.goes_now([this] {
    return state_.separate_workers() == nullptr && counted_ != kNoState &&
           internal::holds_local_memory(state_, memory_);
  });
}

bool Elastic::Impl::ends_epoch(const std::exception& error) {
  return dynamic_cast<const PeerError*>(&error) != nullptr || dynamic_cast<const TimeoutError*>(&error) != nullptr ||
         dynamic_cast<const AbortedError*>(&error) != nullptr;
}

// A newcomer that lacks memory, threads or descriptors for the group leaves, and takes nobody along: the rank that
// lacks them tells all ranks of the epoch.
bool Elastic::Impl::is_of_a_newcomer(const std::exception& error, const Epoch& epoch) const {
  if (dynamic_cast<const ResourceError*>(&error) == nullptr || counted_ == kNoState || met_.empty()) return false;
  return std::any_of(epoch.members.begin(), epoch.members.end(),
                     [&](const membership::EpochMember& member) { return !met_.contains(member.number); });
}

// Leaves the present epoch. With a reason, the others of the epoch are told; without one, all stop at this boundary.
void Elastic::Impl::give_up_epoch(const std::string& reason) {
  if (!reason.empty()) {
    log::info(concat("elastic training: the epoch ends on rank ", group_->rank(), ": ", reason));
    group_->abort(reason);
  }
  if (watch_) watch_->end();
  reason.empty() ? guides_.end(counted_) : guides_.abort(reason);
  state_.leave_group();
  group_->move_out();
  if (std::exchange(in_step_, false) && !state_.undo_step()) {
    log::warn(concat("elastic training: step ", counted_,
                     " changed parameters before it failed; this member takes the "
                     "state of another one"));
    counted_ = kNoState;
  }
  // A step whose exchange failed has ended: the next epoch does the exchange.
  if (state_.separate_workers() != nullptr && counted_ != kNoState) counted_ = state_.separate_workers()->steps_ended();
}

bool Elastic::Impl::enter(Member& member) {
  const Epoch& epoch = member.epoch();
  auto keys = keys_of(epoch, store_);
  // Ranks of one host see each other's ends, but not that the job has another store.
  const bool watches = crosses_hosts(epoch) || std::dynamic_pointer_cast<membership::PatientStore>(store_) != nullptr;
  if (watches) {
    if (!watch_)
      watch_ = std::make_unique<internal::EpochWatch>(membership::without_patience(store_));  // looks again by itself
    std::vector<std::int64_t> numbers;
    for (const membership::EpochMember& each : epoch.members) numbers.push_back(each.number);
    keys = watch_->begin(epoch.number, std::move(numbers), std::move(keys), membership::name_of_job_store(*store_));
  }
  try {
    auto made = group_of(epoch, member.rank(), keys, options_, observe::path_of_epoch(epoch.number));
    if (watches) watch_->go_on_with(made);
    group_->move_to(std::move(made));
  } catch (const UnreachableError& error) {
    member.report_unreachable(error.peers());
    throw;
  }
  if (watches) watch_->attach(group_);
  if (SeparateWorkers* const workers = state_.separate_workers()) {
    counted_ = internal::exchange_separate_state(*group_, state_, counted_, epoch.fresh);
    if (counted_ == kNoState) return false;
    workers->resume();
  } else {
    counted_ = internal::exchange_state(*group_, state_, counted_, epoch.fresh, memory_, &has_followed_);
    if (counted_ == kNoState) return false;
    has_followed_ = false;
  }
  state_.enter_group();
  met_.clear();
  for (const membership::EpochMember& each : epoch.members) met_.insert(each.number);
  asked_to_leave_ = false;
  std::optional<SlowRule> slow_rule = member.slow_rule();
  if (!slow_rule) slow_rule = options_.slow;
  slow_.reset();
  // Members that train separately do other steps at a time, so they have no step whose times they could compare.
  if (slow_rule && state_.separate_workers() == nullptr) slow_.emplace(*slow_rule, group_->size());
  member.began(counted_);
  guides_.begin_epoch(counted_);
  return true;
}

bool Elastic::Impl::stops_here(Member& member) const {
  const SeparateWorkers* const workers = state_.separate_workers();
  if (workers == nullptr) return member.stops_before(counted_);
  return workers->looks_before(counted_) && member.stops_before(counted_, workers->boundary_after(counted_));
}

Elastic::Impl::Stop Elastic::Impl::train(Member& member, std::int64_t steps,
                                         const std::function<void(const ElasticStep&)>& step) {
  const std::int64_t begun = counted_;
  while (counted_ < steps) {
    if (wants_to_leave() && !std::exchange(asked_to_leave_, true)) member.ask_to_leave();
    if (stops_here(member)) {
      hand_over(member);
      return Stop::boundary;
    }
    if (can_follow()) guides_.look(member, state_, counted_, std::chrono::microseconds(own_us_));
    do_step({counted_, group_->rank(), group_->size(), member.epoch().number}, step);
    const bool tells = group_->rank() == 0 && std::has_single_bit(static_cast<std::uint64_t>(counted_ - begun));
    if (tells) member.reached(counted_);
    look_for_slow_members(member);
  }
  if (state_.separate_workers() != nullptr) state_.separate_workers()->settle();
  // When this returns, every member has counted the last step, so none needs another one's state any more.
  group_->barrier()->wait();
  return Stop::counted_all;
}

void Elastic::Impl::hand_over(Member& member) {
  const bool leaves = wants_to_leave() || member.was_dropped();
  bool another_stays = group_->size() > 1;
  // Members that train separately keep the memories of their hooks to themselves.
  if (state_.separate_workers() == nullptr) {
    // Before the exchange: when it fails, some members may have what this one gave.
    if (leaves) departure_.hands_over();
    another_stays = internal::take_over_from_leavers(*group_, state_, leaves, memory_);
  }
  if (!another_stays) departure_.no_other_stays(member.epoch());
}

void Elastic::Impl::require_one_separate_step() const {
  const SeparateWorkers* const workers = state_.separate_workers();
  if (workers == nullptr || workers->steps_ended() == counted_) return;
  throw InvalidArgument(concat("Elastic::run(): after step ", counted_ - 1, " the optimizer of this member has ended ",
                               workers->steps_ended(),
                               " steps; call its step() once in each call of the step function"));
}

void Elastic::Impl::require_cores_well() const {
  for (const DdpCore* const core : state_.cores()) core->require_well();
}

void Elastic::Impl::do_step(const ElasticStep& at, const std::function<void(const ElasticStep&)>& step) {
  state_.begin_step(options_.copy_before_step);
  in_step_ = true;
  const bool has_memory = state_.has_memory(*group_);
  if (options_.seed) seed_generator(*options_.seed, at);
  guides_.begin_step(counted_);
  const internal::WaitClock clock;
  try {
    step(at);
  } catch (const AbortedError&) {
    // It may quote an exception of the program, which would come again and again if the step were done again.
    require_cores_well();
    throw;
  }
  // A step may have caught the error, as loops do that leave out a bad batch.
  require_cores_well();
  own_us_ = clock.own_nanoseconds() / 1000;
  guides_.end_step();
  in_step_ = false;
  ++counted_;
  require_one_separate_step();
  // Not before the step: when the step breaks, this member still has the memory of before it to give.
  if (!has_memory) memory_.holds = false;
  memory_.step_has_counted();
  state_.step_has_counted();
}

void Elastic::Impl::look_for_slow_members(Member& member) {
  if (!slow_) return;
  for (const auto& [slow, host] : slow_->add(*group_, counted_ - 1, own_us_)) {
    if (slow.rank == group_->rank()) member.report_slow(slow, slow_->rule().drop, host);
    if (!options_.on_slow) continue;
    options_.on_slow({slow.rank, host, slow.step, static_cast<double>(slow.own_us) / 1e6,
                      static_cast<double>(slow.others_us) / 1e6});
  }
}

}  // namespace gradwire
