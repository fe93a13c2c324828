// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/choice_log_internal.h"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/hooks/shape_candidates_internal.h"

namespace gradwire::internal {
namespace {

std::string text_of_cost(double cost) {
  if (!std::isfinite(cost)) return "not measured";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f ms", cost * 1e3);
  return text;
}

std::string message_of(const HookChoice& choice) {
  std::vector<std::string> times;
  if (choice.shapes.empty()) {
    for (const HookTimes& one : choice.measured) times.push_back(concat(one.hook, " ", text_of_cost(one.cost)));
    return concat("hook auto: ", choice.hook, " from iteration ", choice.iteration,
                  " on. From the first bucket of a step to the end of the last one: ", join(times, ", "), ".");
  }
  for (const ShapeTimes& one : choice.shapes) times.push_back(concat(text_of(one.shape), " ", text_of_cost(one.cost)));
  return concat("hook auto: ", choice.hook, " with ", text_of(choice.shape), " from iteration ", choice.iteration,
                " on. From the forward pass to the end of the last bucket: ", join(times, "; "), ".");
}

}  // namespace

ChoiceLog::ChoiceLog(std::vector<std::string> hooks) : hooks_(std::move(hooks)) {}

void ChoiceLog::note_choice(const ChoiceRace& race, const std::vector<ReductionShape>& shapes,
                            std::uint32_t first_iteration, int rank) {
  const ChoiceRace::Choice now = race.current();
  HookChoice choice{first_iteration, hooks_[now.hook], shapes.empty() ? ReductionShape{} : shapes[now.shape], {}, {}};
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const StepTime time = race.measured_hook(i);
    choice.measured.push_back({hooks_[i], time.cost, time.step});
  }
  for (std::size_t i = 0; race.settled() && shapes.size() > 1 && i < shapes.size(); ++i) {
    const StepTime time = race.measured_shape(i);
    choice.shapes.push_back({shapes[i], time.cost, time.step});
  }
  trace::point("auto.chosen", rank, first_iteration,
               {.bytes = choice.shape.cap_bytes, .lane = choice.shape.lanes, .word = hooks_[now.hook].c_str()});
  if (rank == 0 && log::enabled(log::Level::info)) log::info(message_of(choice));
  choices_.push_back(std::move(choice));
}

void trace_measured(const ChoiceRace& race, const std::string& hook, const ReductionShape& shape,
                    const LoopTime& agreed, int rank, std::uint32_t iteration) {
  if (!std::isfinite(agreed.cost)) return;
  const bool of_shapes = race.hooks_settled() && !race.settled() && std::isfinite(agreed.pass);
  const trace::Details details{.kind = static_cast<std::uint64_t>((of_shapes ? agreed.pass : agreed.cost) * 1e9),
                               .bytes = shape.cap_bytes,
                               .lane = shape.lanes,
                               .word = hook.c_str()};
  if (of_shapes) {
    trace::point("auto.shape", rank, iteration, details);
  } else {
    trace::point("auto.hook", rank, iteration, details);
  }
}

}  // namespace gradwire::internal
