// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/choice_race_internal.h"

#include <algorithm>
#include <cmath>

namespace gradwire::internal {
namespace {

constexpr double kGainOfShapes = 0.02;
constexpr double kNearShapes = 0.1;

// A shape changes less than a hook does, so that the noise is larger beside the difference: the gain is larger. After a
// race of hooks the turns are short: so the first decision falls within 50 steps, and a later one soon.
RaceRules rules_of_shapes(RaceRules rules, std::size_t hooks) {
  rules.gain = std::max(rules.gain, kGainOfShapes);
  rules.near = kNearShapes;
  if (hooks == 1) return rules;
  rules.unused = 0;
  rules.first_turn = rules.second_turn = 2;
  rules.short_turn = 1;
  rules.second_round = 2;
  return rules;
}

}  // namespace

LoopTime median_of(std::vector<LoopTime> times) {
  std::vector<StepTime> costs, passes;
  for (const LoopTime& time : times) {
    costs.push_back({time.cost, time.step});
    passes.push_back({time.pass, time.step});
  }
  const StepTime cost = median_of(std::move(costs));
  return {cost.cost, cost.step, median_of(std::move(passes)).cost};
}

ChoiceRace::ChoiceRace(std::size_t hooks, const RaceRules& rules)
    : rules_(rules), hooks_(hooks, rules), shapes_(race_of_shapes(1)) {}

HookRace ChoiceRace::race_of_shapes(std::size_t count) const {
  return HookRace(count, rules_of_shapes(rules_, hooks_.hooks()));
}

void ChoiceRace::set_shapes(std::size_t count) {
  shapes_ = race_of_shapes(count);
  last_.shape = 0;
}

bool ChoiceRace::begin_step() noexcept {
  last_ = current();
  return shapes_race() || shapes_watch() ? shapes_.begin_step() : hooks_.begin_step();
}

void ChoiceRace::add(const Choice& used, const LoopTime& time) {
  if (shapes_race() || shapes_watch()) {
    if (used.hook != hooks_.current()) return;
    const std::size_t shape_of_hooks_race = shapes_.before();
    shapes_.add(used.shape, {time.pass, time.step});
    if (shapes_.settled() && shapes_.current() != shape_of_hooks_race) hooks_.forget_times();
    return;
  }
  if (used.shape != current().shape) return;
  const bool raced = !hooks_.settled();
  hooks_.add(used.hook, {time.cost, time.step});
  if (raced && hooks_.settled()) shapes_.race_again();
}

void ChoiceRace::drop_current_hook() {
  hooks_.drop_current();
  if (hooks_.settled()) shapes_.race_again();
}

std::vector<double> ChoiceRace::save(const HookRace& race, std::size_t last) {
  std::vector<double> numbers = race.save();
  numbers.insert(numbers.begin(), static_cast<double>(last));
  return numbers;
}

bool ChoiceRace::restore(HookRace& race, std::size_t& last, std::span<const double> numbers) {
  if (numbers.empty()) return false;
  const double first = numbers.front();
  const bool valid = first >= 0 && first < static_cast<double>(race.hooks()) && first == std::floor(first);
  if (!valid || !race.restore(numbers.subspan(1))) return false;
  last = static_cast<std::size_t>(first);
  return true;
}

}  // namespace gradwire::internal
