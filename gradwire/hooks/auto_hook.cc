// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/auto_hook.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/first_rank_memory.h"
#include "gradwire/hooks/auto_hook_internal.h"
#include "gradwire/hooks/hook_race_internal.h"
#include "gradwire/hooks/registry.h"

namespace gradwire {
namespace {

using internal::HookRace;
using internal::StepTime;

constexpr const char* kHook = "auto/hook";
constexpr const char* kRace = "auto/race";
constexpr double kNever = std::numeric_limits<double>::infinity();

// When the buckets of a step began and ended on this rank.
class StepClock {
 public:
  explicit StepClock(std::function<double()> now) : now_(std::move(now)) {}

  // A bucket of `iteration` begins. Returns true for the first bucket of an iteration: last() is then the time of the
  // step before.
  bool begin(std::uint32_t iteration) GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (iteration_ == iteration) return false;
    const double now = now_();
    if (iteration_) last_ = {end_ - start_, now - start_};
    iteration_ = iteration;
    start_ = end_ = now;
    return true;
  }
  void end_bucket() GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    end_ = std::max(end_, now_());
  }
  // The time of the step before the current one; none in the first step.
  std::optional<StepTime> last() const GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return last_;
  }
  // What follows is no step after the last one.
  void forget() GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    iteration_.reset();
    last_.reset();
  }

 private:
  const std::function<double()> now_;
  mutable Mutex mutex_;
  std::optional<std::uint32_t> iteration_ GRADWIRE_GUARDED_BY(mutex_);
  double start_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // seconds
  double end_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::optional<StepTime> last_ GRADWIRE_GUARDED_BY(mutex_);
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f ms", seconds * 1e3);
  return text;
}

std::string message_of(const HookChoice& choice) {
  std::string times;
  for (const HookTimes& one : choice.measured) {
    times += concat(times.empty() ? "" : ", ", one.hook, " ",
                    one.cost == kNever ? std::string("not measured") : milliseconds(one.cost));
  }
  return concat("hook auto: ", choice.hook, " from iteration ", choice.iteration,
                " on. From the first bucket of a step to the end of the last one: ", times, ".");
}

// All ranks' times as one: the cost of the rank that began last, and the longest step. A rank without a time gives
// none. Each rank adds its times to zeros in places of its own, because a group that can average can add.
StepTime agree(ProcessGroup& group, const GradBucket& bucket, const std::optional<StepTime>& mine) {
  const std::int64_t rank = group.rank();
  at::Tensor times = at::zeros({group.size(), 2}, at::kDouble);
  if (mine) times[rank] = at::tensor({mine->cost, mine->step}, at::kDouble);
  times = times.to(bucket.buffer().device());
  group.all_reduce({times})->wait();
  times = times.cpu();
  StepTime agreed{kNever, 0};
  for (std::int64_t i = 0; i < group.size(); ++i) {
    const auto* const of_rank = times.const_data_ptr<double>() + 2 * i;
    if (of_rank[1] <= 0) continue;
    agreed.cost = std::min(agreed.cost, of_rank[0]);
    agreed.step = std::max(agreed.step, of_rank[1]);
  }
  return agreed;
}

class ChoosingHook final : public AutoHook, public FirstRankMemory {
 public:
  ChoosingHook(HookTraits traits, std::vector<std::string> names, const internal::RaceRules& rules,
               std::shared_ptr<ProcessGroup> group, std::function<double()> now)
      : AutoHook(std::move(traits)),
        names_(std::move(names)),
        group_(std::move(group)),
        clock_(std::make_shared<StepClock>(std::move(now))),
        race_(names_.size(), rules),
        hook_(make_hook(names_.front(), group_)) {}

  Future run(GradBucket& bucket) override {
    if (names_.size() == 1) return run_hook(*running(), bucket);
    begin_bucket(bucket);
    if (bucket.is_last()) exchange_times(bucket);
    const Future future = run_or_do_without(bucket);
    if (future->completed()) {
      clock_->end_bucket();
    } else {
      // The future may outlive the hook.
      future->addCallback([clock = clock_](c10::ivalue::Future&) { clock->end_bucket(); });
    }
    return future;
  }

  void end_iteration() override { running()->end_iteration(); }
  bool memory_lies_with_first_ranks() const override { return gradwire::memory_lies_with_first_ranks(*running()); }

  std::string current() const override {
    const MutexLock lock(mutex_);
    return names_[used_];
  }
  std::vector<HookChoice> choices() const override {
    const MutexLock lock(mutex_);
    return choices_;
  }

  HookState state_dict() const override {
    const MutexLock lock(mutex_);
    HookRace race = race_;
    if (drops_ && used_ == race.current()) race.drop_current();
    HookState state = hook_->state_dict();
    state.emplace(kHook, names_[used_]);
    state.emplace(kRace, at::tensor(race.save(), at::kDouble));
    return state;
  }

  void load_state_dict(const HookState& state) override {
    HookState of_hook = state;
    const auto name = of_hook.extract(kHook);
    const auto numbers = of_hook.extract(kRace);
    const auto known = name.empty() || !name.mapped().isString()
                           ? names_.end()
                           : std::find(names_.begin(), names_.end(), name.mapped().toStringRef());
    const MutexLock lock(mutex_);
    HookRace race = race_;
    if (known == names_.end() || numbers.empty() || !restored(race, numbers.mapped())) {
      throw InvalidArgument(concat("The hook '", traits().name, "': the state to load has no valid '", kHook, "' and '",
                                   kRace, "' for the hooks ", join(names_, ", "), "; it was saved by another hook."));
    }
    const auto used = static_cast<std::size_t>(known - names_.begin());
    // Not the present hook: a state that the hook refuses must change nothing.
    const std::shared_ptr<CommHook> hook = make_hook(names_[used], group_);
    if (!of_hook.empty()) hook->load_state_dict(of_hook);
    hook_ = hook;
    used_ = used;
    race_ = std::move(race);
    drops_ = false;
    window_.clear();
    before_.reset();
    clock_->forget();
  }

 private:
  static bool restored(HookRace& race, const c10::IValue& value) {
    if (!value.isTensor() || value.toTensor().scalar_type() != at::kDouble || value.toTensor().dim() != 1) return false;
    const at::Tensor numbers = value.toTensor().cpu().contiguous();
    return race.restore({numbers.const_data_ptr<double>(), static_cast<std::size_t>(numbers.numel())});
  }

  std::shared_ptr<CommHook> running() const GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return hook_;
  }

  // A group of the user's may lack a collective that a hook needs. All ranks find that out before anything was sent:
  // they take the first hook instead, and drop the other one before the next iteration.
  Future run_or_do_without(GradBucket& bucket) GRADWIRE_EXCLUDES(mutex_) {
    try {
      return run_hook(*running(), bucket);
    } catch (const UnsupportedError&) {
      std::shared_ptr<CommHook> first;
      {
        const MutexLock lock(mutex_);
        if (used_ == 0 || race_.settled()) throw;
        drops_ = true;
        first = make_hook(names_.front(), group_);
      }
      return run_hook(*first, bucket);
    }
  }

  // One lock for the clock and the hook: a bucket on another lane must not run before the first bucket of the iteration
  // has changed the hook. No bucket of the iteration before is under way: DDP waits for all of them before the next
  // forward pass.
  void begin_bucket(const GradBucket& bucket) GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (!clock_->begin(bucket.iteration())) return;
    before_ = clock_->last() ? std::optional(used_) : std::nullopt;
    if (std::exchange(drops_, false) && used_ == race_.current()) {
      race_.drop_current();
      if (race_.settled()) note_choice(bucket.iteration(), bucket.group().rank());
    }
    if (used_ == race_.current()) return;
    used_ = race_.current();
    hook_ = make_hook(names_[used_], group_);
  }

  // In the last bucket, because exactly one bucket of an iteration is the last, the same on all ranks. The decision
  // counts from the next iteration on.
  void exchange_times(const GradBucket& bucket) GRADWIRE_EXCLUDES(mutex_) {
    std::optional<StepTime> mine;
    std::size_t hook = 0;
    {
      const MutexLock lock(mutex_);
      // A step that another hook made says nothing about the current one. A rank that has joined waits for the others.
      hook = race_.current();
      if (const std::optional<StepTime> time = clock_->last(); before_ == hook && time && !bucket.joined()) {
        window_.push_back(*time);
      }
      if (!race_.begin_step()) return;
      if (!window_.empty()) mine = internal::median_of(std::exchange(window_, {}));
    }
    const StepTime agreed = agree(group_ != nullptr ? *group_ : bucket.group(), bucket, mine);
    const MutexLock lock(mutex_);
    const bool was_settled = race_.settled();
    race_.add(hook, agreed);
    if (race_.settled() && !was_settled) note_choice(bucket.iteration() + 1, bucket.group().rank());
  }

  void note_choice(std::uint32_t first_iteration, int rank) GRADWIRE_REQUIRES(mutex_) {
    HookChoice choice{first_iteration, names_[race_.current()], {}};
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const StepTime time = race_.measured(i);
      choice.measured.push_back({names_[i], time.cost, time.step});
    }
    if (rank == 0 && log::enabled(log::Level::info)) log::info(message_of(choice));
    choices_.push_back(std::move(choice));
  }

  const std::vector<std::string> names_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::shared_ptr<StepClock> clock_;

  mutable Mutex mutex_;
  HookRace race_ GRADWIRE_GUARDED_BY(mutex_);
  std::shared_ptr<CommHook> hook_ GRADWIRE_GUARDED_BY(mutex_);
  std::size_t used_ GRADWIRE_GUARDED_BY(mutex_) = 0;               // the number of hook_
  std::optional<std::size_t> before_ GRADWIRE_GUARDED_BY(mutex_);  // the hook of the iteration before
  bool drops_ GRADWIRE_GUARDED_BY(mutex_) = false;                 // the hook does not work over this group
  std::vector<StepTime> window_ GRADWIRE_GUARDED_BY(mutex_);       // this rank's times since the last exchange
  std::vector<HookChoice> choices_ GRADWIRE_GUARDED_BY(mutex_);
};

}  // namespace

std::vector<std::string> auto_hook_candidates(HookAccuracy accuracy) {
  std::vector<std::string> hooks{"allreduce"};
  if (accuracy == HookAccuracy::exact) return hooks;
  hooks.insert(hooks.end(), {"bf16_compress", "int8"});
  if (accuracy == HookAccuracy::any) hooks.insert(hooks.end(), {"int4", "power_sgd:rank=4,start=2", "one_bit"});
  return hooks;
}

std::shared_ptr<AutoHook> make_auto_hook(const AutoHookOptions& options, std::shared_ptr<ProcessGroup> group) {
  return internal::make_auto_hook(options, std::move(group), seconds_now);
}

std::shared_ptr<AutoHook> internal::make_auto_hook(const AutoHookOptions& options, std::shared_ptr<ProcessGroup> group,
                                                   std::function<double()> now) {
  if (!(options.gain >= 0 && options.gain < 1)) {
    throw InvalidArgument(concat("make_auto_hook(): the gain is ", options.gain, "; it must be from 0 to below 1."));
  }
  std::vector<std::string> names = options.hooks.empty() ? auto_hook_candidates(options.accuracy) : options.hooks;
  HookTraits traits{.name = "auto", .parallel_safe = true, .single_collective = names.size() == 1};
  if (group != nullptr) traits.groups = {group};
  std::vector<std::string> identities;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (std::find(names.begin() + static_cast<std::ptrdiff_t>(i) + 1, names.end(), names[i]) != names.end()) {
      throw InvalidArgument(concat("make_auto_hook(): the hook '", names[i], "' is named twice."));
    }
    const std::shared_ptr<CommHook> hook = make_hook(names[i], group);
    traits.parallel_safe = traits.parallel_safe && hook->traits().parallel_safe;
    traits.single_collective = traits.single_collective && hook->traits().single_collective;
    identities.push_back(hook->identity());
  }
  traits.identity = concat("auto:gain=", options.gain, ",(", join(identities, " | "), ")");
  internal::RaceRules rules;
  rules.gain = options.gain;
  return std::make_shared<ChoosingHook>(std::move(traits), std::move(names), rules, std::move(group), std::move(now));
}

}  // namespace gradwire
