// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/choice_race_internal.h"

#include <algorithm>

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

void ChoiceRace::set_shapes(std::size_t count) { shapes_ = race_of_shapes(count); }

bool ChoiceRace::begin_step() noexcept {
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

}  // namespace gradwire::internal
