// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision which hook and which shape of the reduction a training loop uses: the hooks race first, and then the
// shapes race with the hook that won. When the hooks race again, the shapes do so after them.
//
// Pure, as HookRace.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "gradwire/hooks/hook_race_internal.h"

namespace gradwire::internal {

// The time of one step, or the medians of several.
struct LoopTime {
  double cost = 0;  // seconds from the first bucket of the step to the end of the last one
  double step = 0;  // seconds from the first bucket of the step to that of the next step
  // Seconds from the beginning of the forward pass to the end of the last bucket. Infinite: not known. Shapes are
  // judged by this time, because a larger first bucket begins later.
  double pass = 0;
};

// The medians of each; infinite for no times, and the shorter one of two times.
LoopTime median_of(std::vector<LoopTime> times);

// A value type; not thread-safe.
class ChoiceRace {
 public:
  struct Choice {
    std::size_t hook = 0;
    std::size_t shape = 0;
    bool operator==(const Choice&) const = default;
  };

  // `hooks`: how many there are, at least 1. There is one shape.
  explicit ChoiceRace(std::size_t hooks, const RaceRules& rules = {});

  // There are `count` shapes from now on, at least 1, in the order of preference. They race when the hooks have
  // settled.
  void set_shapes(std::size_t count);
  std::size_t shapes() const noexcept { return shapes_.hooks(); }
  // Whether shapes other than the first can be used. At the beginning they cannot. While they cannot, the shapes do not
  // race, and the first shape is the current one.
  void allow_shapes(bool allowed) noexcept { allowed_ = allowed; }

  Choice current() const noexcept { return {hooks_.current(), allowed_ ? shapes_.current() : 0}; }
  bool hooks_settled() const noexcept { return hooks_.settled(); }
  bool settled() const noexcept { return hooks_.settled() && (!allowed_ || shapes_.settled()); }
  // What the step of the last begin_step() used. In the next step, before begin_step(), this is what the times are of.
  Choice last() const noexcept { return last_; }
  // As HookRace. The step uses current().
  bool begin_step() noexcept;
  // Adds the time of a step that used `used`, or the medians of a window, to the race that wants it. As
  // HookRace::add(): the last time of a turn comes in the first step of the next one, and other times of another choice
  // than current() change nothing.
  void add(const Choice& used, const LoopTime& time);
  // As HookRace::drop_current(), for the current hook.
  void drop_current_hook();

  // The median times in the last race: `cost` of a hook, and `pass` (as StepTime::cost) of a shape.
  StepTime measured_hook(std::size_t hook) const { return hooks_.measured(hook); }
  StepTime measured_shape(std::size_t shape) const { return shapes_.measured(shape); }

  // The whole state as numbers, and back: of the hooks, and of the shapes. restore_hooks() and restore_shapes() return
  // false, and change nothing, for numbers that are no state of a race of as many hooks and as many shapes.
  std::vector<double> save_hooks() const { return save(hooks_, last_.hook); }
  std::vector<double> save_shapes() const { return save(shapes_, last_.shape); }
  bool restore_hooks(std::span<const double> numbers) { return restore(hooks_, last_.hook, numbers); }
  bool restore_shapes(std::span<const double> numbers) { return restore(shapes_, last_.shape, numbers); }

 private:
  bool shapes_race() const noexcept { return allowed_ && hooks_.settled() && !shapes_.settled(); }
  bool shapes_watch() const noexcept { return allowed_ && hooks_.hooks() == 1; }
  HookRace race_of_shapes(std::size_t count) const;
  static std::vector<double> save(const HookRace& race, std::size_t last);
  static bool restore(HookRace& race, std::size_t& last, std::span<const double> numbers);

  RaceRules rules_;
  HookRace hooks_;
  HookRace shapes_;
  Choice last_;
  bool allowed_ = false;
};

}  // namespace gradwire::internal
