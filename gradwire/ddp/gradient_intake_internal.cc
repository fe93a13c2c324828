// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/gradient_intake_internal.h"

#include <string>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {

GradientIntake::GradientIntake(BucketStore& store, Iteration& iteration, GraphKind graph, BucketFiller::Options options)
    : store_(store),
      iteration_(iteration),
      rank_(options.rank),
      use_(graph, store.parameter_count()),
      filler_(store, options) {}

bool GradientIntake::touch(std::size_t parameter) {
  const bool defined = store_.parameter(parameter).grad().defined();
  use_.touch(parameter, defined);
  return defined;
}

bool GradientIntake::take_arrived(std::size_t parameter, bool defined, Factor factor) {
  if (!use_.complete(parameter)) return false;
  if (!defined) use_.keep(parameter, {});
  take(parameter, factor);
  return true;
}

void GradientIntake::take_learnt(Factor factor) {
  for (const std::size_t parameter : use_.order_of_completion()) {
    const bool used = use_.fired(parameter) && store_.parameter(parameter).grad().defined();
    used ? take(parameter, factor) : take_kept(parameter, factor);
  }
}

void GradientIntake::take_zeros(bool copies) {
  for (std::size_t bucket = 0; bucket < store_.bucket_count(); ++bucket) {
    for (const std::size_t parameter : store_.members(bucket)) {
      if (use_.kind() != GraphKind::every_parameter) use_.keep(parameter, store_.parameter(parameter).grad());
      iteration_.take(parameter, bucket);
      if (copies) filler_.fill_zeros(parameter);
    }
  }
}

void GradientIntake::take(std::size_t parameter, Factor factor) {
  if (!iteration_.take(parameter, store_.place(parameter).bucket)) refuse_second(parameter);
  if (factor) filler_.fill(parameter, *factor);
}

void GradientIntake::take_kept(std::size_t parameter, Factor factor) {
  use_.keep(parameter, store_.parameter(parameter).grad());
  take(parameter, factor);
}

std::vector<std::size_t> GradientIntake::absent_in(std::size_t bucket) const {
  std::vector<std::size_t> absent;
  for (const std::size_t parameter : store_.members(bucket)) {
    if (use_.may_be_unused(parameter)) absent.push_back(store_.place(parameter).slot);
  }
  return absent;
}

void GradientIntake::settle_alone() {
  for (const std::size_t parameter : use_.settle_alone()) filler_.define(parameter);
}

const std::vector<std::size_t>& GradientIntake::end_iteration() {
  use_.end_iteration(iteration_.joined());
  return use_.unused();
}

void GradientIntake::refuse_second(std::size_t parameter) const {
  const std::string& name = store_.name(parameter);
  if (use_.kind() == GraphKind::fixed) {
    throw InvalidArgument(concat(
        "Parameter '", name, "' got more gradients on rank ", rank_,
        " in one synchronized iteration than in the first one. With static_graph, every iteration must use the same "
        "parameters as often as the first did, in one backward pass for each forward pass (no_sync() accumulates); for "
        "a graph that changes, use find_unused_parameters in its place."));
  }
  throw InvalidArgument(concat(
      "Parameter '", name, "' got a second gradient on rank ", rank_,
      " in one synchronized iteration. Run one backward pass for each forward pass (no_sync() accumulates); with ",
      "find_unused_parameters, return every tensor that the loss is made of from forward(); and where a parameter is "
      "used inside re-entrant checkpoints (several, or one with find_unused_parameters), set static_graph, if every "
      "iteration uses it as often, or make checkpoints that are not re-entrant (in Python, use_reentrant=False)."));
}

void GradientIntake::require_finished(int ranks) const {
  if (!iteration_.under_way()) return;
  std::vector<std::string> missing, frozen;
  for (const std::size_t parameter : iteration_.missing()) {
    missing.push_back(concat("'", store_.name(parameter), "'"));
    if (!store_.parameter(parameter).requires_grad()) frozen.push_back(missing.back());
  }
  const std::string about_frozen =
      frozen.empty() ? std::string()
                     : concat(" Frozen since the module was wrapped: ", join(frozen, ", "),
                              "; freeze the same parameters on all ranks, with find_unused_parameters, or wrap the "
                              "module again.");
  throw InvalidArgument(concat(
      "The reduction of the iteration before did not finish on rank ", rank_, " of ", ranks, ": ", missing.size(),
      " of ", store_.parameter_count(), " parameters got no gradient: ", join(missing, ", "),
      ". Every parameter that needs a gradient must take part in the loss on every rank, unless find_unused_parameters "
      "is set; and backward must run once for each synchronized forward; use no_sync() to accumulate.",
      about_frozen));
}

}  // namespace gradwire::internal
