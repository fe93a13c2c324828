// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/auto_hook.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/first_rank_memory.h"
#include "gradwire/ddp/reduction_shape.h"
#include "gradwire/hooks/auto_hook_internal.h"
#include "gradwire/hooks/choice_log_internal.h"
#include "gradwire/hooks/choice_race_internal.h"
#include "gradwire/hooks/loop_clock_internal.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/hooks/shape_candidates_internal.h"
#include "gradwire/hooks/warm_up_internal.h"

namespace gradwire {
namespace {

using internal::ChoiceRace;
using internal::LoopClock;
using internal::LoopTime;

constexpr const char* kVersion = "auto/version";
constexpr std::int64_t kThisVersion = 2;  // of the numbers in the state; version 1 had no number of a version
constexpr const char* kHook = "auto/hook";
constexpr const char* kRace = "auto/race";
constexpr const char* kShapes = "auto/shapes";
constexpr const char* kRaceOfShapes = "auto/race_of_shapes";
constexpr double kNever = std::numeric_limits<double>::infinity();

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// All ranks' times as one: the times of the rank that began last, and the longest step. A rank without a time gives
// none. Each rank adds its times to zeros in places of its own, because a group that can average can add.
LoopTime agree(ProcessGroup& group, const GradBucket& bucket, const std::optional<LoopTime>& mine) {
  const std::int64_t rank = group.rank();
  at::Tensor times = at::zeros({group.size(), 3}, at::kDouble);
  if (mine) times[rank] = at::tensor({mine->cost, mine->step, mine->pass}, at::kDouble);
  times = times.to(bucket.buffer().device());
  group.all_reduce({times})->wait();
  times = times.cpu();
  LoopTime agreed{kNever, 0, kNever};
  for (std::int64_t i = 0; i < group.size(); ++i) {
    const auto* const of_rank = times.const_data_ptr<double>() + 3 * i;
    if (of_rank[1] <= 0) continue;
    agreed.cost = std::min(agreed.cost, of_rank[0]);
    agreed.step = std::max(agreed.step, of_rank[1]);
    agreed.pass = std::min(agreed.pass, of_rank[2]);
  }
  return agreed;
}

// A row of numbers in a state; nothing for another value.
std::optional<std::vector<double>> numbers_in(const HookState::node_type& node) {
  if (node.empty() || !node.mapped().isTensor()) return std::nullopt;
  const at::Tensor& tensor = node.mapped().toTensor();
  if (tensor.scalar_type() != at::kDouble || tensor.dim() != 1) return std::nullopt;
  const at::Tensor numbers = tensor.cpu().contiguous();
  const double* const first = numbers.const_data_ptr<double>();
  return std::vector<double>(first, first + numbers.numel());
}

class ChoosingHook final : public AutoHook, public FirstRankMemory, public ChoosesShape {
 public:
  ChoosingHook(HookTraits traits, std::vector<std::string> names, const AutoHookOptions& options,
               const internal::RaceRules& rules, std::shared_ptr<ProcessGroup> group, std::function<double()> now)
      : AutoHook(std::move(traits)),
        names_(std::move(names)),
        chooses_shape_(options.shape),
        exact_(options.accuracy == HookAccuracy::exact),
        group_(std::move(group)),
        clock_(std::make_shared<LoopClock>(std::move(now))),
        race_(names_.size(), rules),
        hook_(make_hook(names_.front(), group_)),
        log_(names_) {}

  Future run(GradBucket& bucket) override {
    if (names_.size() == 1 && !chooses_shape_) return run_hook(*running(), bucket);
    begin_bucket(bucket);
    if (bucket.is_last()) exchange_times(bucket);
    const Future future = run_or_do_without(bucket);
    // At once where the future is completed. On a device, the callback's current stream follows what the future waits
    // for. The future may outlive the hook.
    future->addCallback(
        [clock = clock_, device = bucket.buffer().device()](c10::ivalue::Future&) { clock->end_bucket(device); });
    return future;
  }

  void revert_unused(const std::vector<std::string>& names) override { running()->revert_unused(names); }
  void end_iteration() override { running()->end_iteration(); }
  bool memory_lies_with_first_ranks() const override { return gradwire::memory_lies_with_first_ranks(*running()); }

  ReductionShape next_shape(const ShapeFreedom& freedom) override {
    const MutexLock lock(mutex_);
    const bool possible = chooses_shape_ && (freedom.buckets || freedom.lanes) && (freedom.same_bits || !exact_);
    if (possible && shapes_.empty()) {
      shapes_ = internal::candidate_shapes(freedom);
      race_.set_shapes(shapes_.size());
    }
    race_.allow_shapes(possible);
    clock_->begin_pass();
    next_shape_ = race_.current().shape;
    return shape_at(next_shape_);
  }

  std::string current() const override {
    const MutexLock lock(mutex_);
    return names_[used_.hook];
  }
  ReductionShape current_shape() const override {
    const MutexLock lock(mutex_);
    return shape_at(used_.shape);
  }
  std::vector<HookChoice> choices() const override {
    const MutexLock lock(mutex_);
    return log_.choices();
  }

  HookState state_dict() const override {
    const MutexLock lock(mutex_);
    ChoiceRace race = race_;
    if (drops_ && used_.hook == race.current().hook) race.drop_current_hook();
    HookState state = hook_->state_dict();
    state.emplace(kVersion, kThisVersion);
    state.emplace(kHook, names_[used_.hook]);
    state.emplace(kRace, at::tensor(race.save_hooks(), at::kDouble));
    if (shapes_.empty()) return state;
    state.emplace(kShapes, at::tensor(internal::numbers_of(shapes_), at::kDouble));
    state.emplace(kRaceOfShapes, at::tensor(race.save_shapes(), at::kDouble));
    return state;
  }

  void load_state_dict(const HookState& state) override {
    HookState of_hook = state;
    const auto version = of_hook.extract(kVersion);
    const bool is_of_this_version =
        !version.empty() && version.mapped().isInt() && version.mapped().toInt() == kThisVersion;
    if (!is_of_this_version && state.count(kHook) + state.count(kRace) == 2) {
      throw InvalidArgument(concat("The hook '", traits().name,
                                   "': the state to load is of another version of this hook; ",
                                   "leave the state out, and the hook measures anew."));
    }
    const auto name = of_hook.extract(kHook);
    const auto known = name.empty() || !name.mapped().isString()
                           ? names_.end()
                           : std::find(names_.begin(), names_.end(), name.mapped().toStringRef());
    const MutexLock lock(mutex_);
    std::vector<ReductionShape> shapes;
    std::optional<ChoiceRace> race = taken_from(of_hook, shapes);
    if (known == names_.end() || !race) {
      throw InvalidArgument(concat("The hook '", traits().name, "': the state to load has no valid '", kHook, "' and '",
                                   kRace, "' for the hooks ", join(names_, ", "), "; it was saved by another hook."));
    }
    const auto used = static_cast<std::size_t>(known - names_.begin());
    // Not the present hook: a state that the hook refuses must change nothing.
    const std::shared_ptr<CommHook> hook = make_hook(names_[used], group_);
    if (!of_hook.empty()) hook->load_state_dict(of_hook);
    hook_ = hook;
    used_ = {used, 0};
    next_shape_ = 0;
    race_ = std::move(*race);
    shapes_ = std::move(shapes);
    drops_ = false;
    window_.clear();
    before_.reset();
    clock_->forget();
  }

 private:
  // Takes the race and the shapes out of `state`. A state without shapes is one of a hook that had not chosen any.
  std::optional<ChoiceRace> taken_from(HookState& state, std::vector<ReductionShape>& shapes) const
      GRADWIRE_REQUIRES(mutex_) {
    ChoiceRace race = race_;
    race.allow_shapes(false);
    const auto of_hooks = numbers_in(state.extract(kRace));
    if (!of_hooks || !race.restore_hooks(*of_hooks)) return std::nullopt;
    const auto listed = state.extract(kShapes), of_shapes = state.extract(kRaceOfShapes);
    race.set_shapes(1);
    if (listed.empty() && of_shapes.empty()) return race;
    const auto numbers = numbers_in(listed), racing = numbers_in(of_shapes);
    if (!numbers || !racing) return std::nullopt;
    const auto found = internal::shapes_of(*numbers);
    if (!found) return std::nullopt;
    race.set_shapes(found->size());
    if (!race.restore_shapes(*racing)) return std::nullopt;
    shapes = *found;
    return race;
  }

  ReductionShape shape_at(std::size_t number) const GRADWIRE_REQUIRES(mutex_) {
    return shapes_.empty() ? ReductionShape{} : shapes_[number];
  }

  // Hooks race when the longest warm-up is over, and each turn makes its hook anew: a warm-up of its own would take the
  // times of plain averaging for those of the hook.
  std::shared_ptr<CommHook> make_warm(std::size_t hook) const {
    std::shared_ptr<CommHook> made = make_hook(names_[hook], group_);
    internal::end_warm_up_of(*made);
    return made;
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
        if (used_.hook == 0 || race_.hooks_settled()) throw;
        drops_ = true;
        first = make_warm(0);
      }
      return run_hook(*first, bucket);
    }
  }

  // One lock for the clock and the hook: a bucket on another lane must not run before the first bucket of the iteration
  // has changed the hook. No bucket of the iteration before is under way: DDP waits for all of them before the next
  // forward pass.
  void begin_bucket(const GradBucket& bucket) GRADWIRE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (!clock_->begin(bucket.iteration(), bucket.buffer().device())) return;
    before_ = clock_->last() ? std::optional(used_) : std::nullopt;
    if (std::exchange(drops_, false) && used_.hook == race_.current().hook) {
      race_.drop_current_hook();
      if (race_.hooks_settled()) log_.note_choice(race_, shapes_, bucket.iteration(), bucket.group().rank());
    }
    used_.shape = next_shape_;
    if (used_.hook == race_.current().hook) return;
    used_.hook = race_.current().hook;
    hook_ = make_warm(used_.hook);
  }

  // In the last bucket, because exactly one bucket of an iteration is the last, the same on all ranks. The decision
  // counts from the next iteration on.
  void exchange_times(const GradBucket& bucket) GRADWIRE_EXCLUDES(mutex_) {
    std::optional<LoopTime> mine;
    ChoiceRace::Choice choice;  // that the times are of
    {
      const MutexLock lock(mutex_);
      choice = race_.last();
      // A window is of the current choice alone. A rank that has joined waits for the others. A rank that has loaded a
      // state has no time of the step before, and the others may have one.
      const bool counts = before_ == choice && (choice == race_.current() || !race_.settled());
      if (const std::optional<LoopTime> time = clock_->last(); counts && time && !bucket.joined()) {
        window_.push_back(*time);
      }
      if (!race_.begin_step()) return;
      if (!window_.empty()) mine = internal::median_of(std::exchange(window_, {}));
    }
    const LoopTime agreed = agree(group_ != nullptr ? *group_ : bucket.group(), bucket, mine);
    const MutexLock lock(mutex_);
    internal::trace_measured(race_, names_[choice.hook], shape_at(choice.shape), agreed, bucket.group().rank(),
                             bucket.iteration() - 1);  // the times are those of the iteration before
    const bool hooks_were_settled = race_.hooks_settled(), was_settled = race_.settled();
    race_.add(choice, agreed);
    const bool decided = (race_.hooks_settled() && !hooks_were_settled) || (race_.settled() && !was_settled);
    if (decided) log_.note_choice(race_, shapes_, bucket.iteration() + 1, bucket.group().rank());
  }

  const std::vector<std::string> names_;
  const bool chooses_shape_;
  const bool exact_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::shared_ptr<LoopClock> clock_;

  mutable Mutex mutex_;
  ChoiceRace race_ GRADWIRE_GUARDED_BY(mutex_);
  std::shared_ptr<CommHook> hook_ GRADWIRE_GUARDED_BY(mutex_);
  ChoiceRace::Choice used_ GRADWIRE_GUARDED_BY(mutex_);                   // its hook is the number of hook_
  std::optional<ChoiceRace::Choice> before_ GRADWIRE_GUARDED_BY(mutex_);  // of the iteration before
  std::vector<ReductionShape> shapes_ GRADWIRE_GUARDED_BY(mutex_);        // empty: not known yet
  std::size_t next_shape_ GRADWIRE_GUARDED_BY(mutex_) = 0;                // the number that DDP was told
  bool drops_ GRADWIRE_GUARDED_BY(mutex_) = false;                        // the hook does not work over this group
  std::vector<LoopTime> window_ GRADWIRE_GUARDED_BY(mutex_);              // this rank's times since the last exchange
  internal::ChoiceLog log_ GRADWIRE_GUARDED_BY(mutex_);
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
  internal::RaceRules rules{.gain = options.gain};
  std::vector<std::string> identities;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (std::find(names.begin() + static_cast<std::ptrdiff_t>(i) + 1, names.end(), names[i]) != names.end()) {
      throw InvalidArgument(concat("make_auto_hook(): the hook '", names[i], "' is named twice."));
    }
    const std::shared_ptr<CommHook> hook = make_hook(names[i], group);
    traits.parallel_safe = traits.parallel_safe && hook->traits().parallel_safe;
    traits.single_collective = traits.single_collective && hook->traits().single_collective;
    identities.push_back(hook->identity());
    rules.unused = static_cast<int>(
        std::clamp<std::int64_t>(internal::warm_up_of(*hook), rules.unused, std::numeric_limits<int>::max()));
  }
  traits.identity =
      concat("auto:gain=", options.gain, options.shape ? "" : ",shape=own", ",(", join(identities, " | "), ")");
  return std::make_shared<ChoosingHook>(std::move(traits), std::move(names), options, rules, std::move(group),
                                        std::move(now));
}

}  // namespace gradwire
