// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The decision which of several hooks a training loop uses, from the times of steps.
//
// Each hook gets a turn of a few steps; the hooks that are near the best get a second, longer turn; then the race is
// settled. While it is settled, the times of whole windows of steps are compared with those of the first windows, and
// of a race that was not the first. When a window differs by more than windows usually do, and so do the two steps
// after it, the hooks race again, in short turns. Another hook wins such a race only when it also beats the old choice
// in a closing turn: else the times of the hooks are of different conditions. After a race that saves nothing clear,
// the hooks do not race again for some time, for 768 steps at most.
//
// Pure: no clock, no group, no hook. Members that are given the same times decide alike, and a copy that restore()
// made goes on as the original does.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace gradwire::internal {

// The time of one step, or the medians of several.
struct StepTime {
  double cost = 0;  // seconds from the first bucket of the step to the end of the last one
  double step = 0;  // seconds from the first bucket of the step to that of the next step
};

struct RaceRules {
  // Steps at the very start that do not count: memory is allocated, buckets are rebuilt. 0: the first turn begins at
  // once.
  int unused = 2;
  int first_turn = 3;    // counted steps of a hook's first turn; one step comes before them, and does not count
  int second_turn = 3;   // the same for the second turn
  int short_turn = 2;    // the same when the hooks race again
  int second_round = 3;  // so many hooks get a second turn at most
  double gain = 0.01;    // a later hook must save more than this share of a step, and more than steps vary
  // A hook later than the choice before must save more than this share when the hooks race again, where few steps are
  // measured.
  double clear_gain = 0.03;
  double near = 0.05;  // hooks within this share of a step from the best get a second turn
  double far = 0.5;    // a hook that is this share of a step behind the best ends its turn at once
  int window = 3;      // steps of a window
  // A window differs when its cost is this share of a step away: `change` at first, then four times as far as windows
  // usually are, from `least_change` to `most_change`.
  double change = 0.15, least_change = 0.06, most_change = 0.3;
};

// A value type; not thread-safe.
class HookRace {
 public:
  // `hooks`: how many there are, at least 1. They are in the order of preference: a later hook wins only when it saves
  // more than `rules.gain`.
  explicit HookRace(std::size_t hooks, const RaceRules& rules = {});

  std::size_t hooks() const noexcept { return samples_.size(); }
  // The hook for the next step.
  std::size_t current() const noexcept { return current_; }
  bool settled() const noexcept { return phase_ == Phase::settled; }
  // The choice before the race, or, when the race is settled, the current one.
  std::size_t before() const noexcept { return before_; }
  // Begins a step. Returns whether add() gets times in this step: in every step while hooks race, and, when the race is
  // settled, at the end of a window and in the steps after a window that differs. A race of one hook never wants times.
  bool begin_step() noexcept;
  // Adds the time of the step before, or the median of a window; `hook`: the one that made it. In a race, the first
  // step of a turn adds the last time of the turn before. Other times of another hook than current(), and a time that
  // is negative or not finite, change nothing; but a turn begins again when its only time, its last one, is such a
  // time.
  void add(std::size_t hook, const StepTime& time);

  // Ends the turn of the current hook, which never races again. Not for the first hook, and not when the race is
  // settled.
  void drop_current();

  // Starts a race: in short turns where the race is settled; a race that is under way begins anew.
  void race_again();
  // What was measured is of other conditions than what follows: the windows to come are the first ones.
  void forget_times() noexcept {
    reference_ = {};
    calm_ = 0;
    doubts_.clear();
  }

  // The median time of a hook in the last race; infinite for a hook without a counted step.
  StepTime measured(std::size_t hook) const;

  // The whole state as numbers, and back. restore() returns false, and changes nothing, for numbers that are no state
  // of a race of as many hooks.
  std::vector<double> save() const;
  bool restore(std::span<const double> numbers);

 private:
  enum class Phase { unused, first, second, again, closing, settled };

  int turn_length() const noexcept;
  bool is_far(const StepTime& time) const;
  bool is_late(std::size_t hook) const;
  bool races() const noexcept { return phase_ != Phase::unused && phase_ != Phase::settled; }
  bool races_again() const noexcept { return phase_ == Phase::again || phase_ == Phase::closing; }
  bool saves_clearly(std::size_t hook) const;
  double usual_distance() const;
  void start_round(Phase phase, std::vector<std::size_t> order);
  void take(const StepTime& time);
  void take_late(std::size_t hook, const StepTime& time);
  void next_turn();
  void end_round();
  std::size_t winner() const;
  void settle_on(std::size_t hook);
  void watch(const StepTime& window);
  void learn(const StepTime& window);
  double distance(const StepTime& time) const;
  bool differs(const StepTime& time) const;
  StepTime best() const;
  std::vector<std::size_t> others() const;
  std::vector<std::size_t> current_then_others() const;

  RaceRules rules_;
  Phase phase_ = Phase::unused;
  std::size_t current_ = 0;
  std::size_t before_ = 0;          // the choice of the race before
  std::vector<std::size_t> order_;  // the hooks of this round
  std::size_t at_ = 0;              // whose turn it is, in order_
  int steps_ = 0;                   // counted steps of this turn; -1: the step that does not count comes next
  std::vector<std::vector<StepTime>> samples_;  // by hook

  std::vector<char> dropped_;  // by hook; 1: drop_current() was called

  int in_window_ = 0;             // steps of this window
  StepTime reference_{};          // what windows are compared with; step = 0: not known
  double tolerance_;              // the share of a step by which a window differs
  std::vector<StepTime> doubts_;  // a window that differs, and the steps after it
  int quiet_ = 0;                 // windows since the race was settled
  int wait_ = 0;                  // windows before the hooks may race again
  int calm_ = 0;                  // windows since the race was settled that did not differ
};

// The medians of the costs and of the steps; infinite for no times, and the shorter one of two times.
StepTime median_of(std::vector<StepTime> times);

}  // namespace gradwire::internal
