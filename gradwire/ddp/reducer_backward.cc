// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer during a backward pass.
#include <torch/csrc/autograd/engine.h>

#include <string>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/ddp/backward_watch_internal.h"
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {
namespace {

[[noreturn]] void refuse_second_gradient(const std::string& parameter, GraphKind graph, int rank) {
  if (graph == GraphKind::fixed) {
    throw InvalidArgument(concat(
        "Parameter '", parameter, "' got more gradients on rank ", rank,
        " in one synchronized iteration than in the first one. With static_graph, every iteration must use the same "
        "parameters as often as the first did, in one backward pass for each forward pass (no_sync() accumulates); for "
        "a graph that changes, use find_unused_parameters in its place."));
  }
  throw InvalidArgument(concat(
      "Parameter '", parameter, "' got a second gradient on rank ", rank,
      " in one synchronized iteration. Run one backward pass for each forward pass (no_sync() accumulates); with ",
      "find_unused_parameters, return every tensor that the loss is made of from forward(); and where a parameter is "
      "used inside several re-entrant checkpoints, set static_graph, if every iteration uses it as often."));
}

}  // namespace

// Autograd calls this when a pass goes through an output of forward().
void Reducer::on_output() {
  MutexLock lock(mutex_);
  if (failure_.happened()) return;
  if (parameter_hooks_.current_pass_passes_by()) return;
  iteration_.expect();
  watch_pass();
  watch_outer_pass();
  begin_pass(std::nullopt);
}

// Finds the absent parameters at the beginning of a pass. `parameter`: the parameter whose gradient has come already.
void Reducer::begin_pass(std::optional<std::size_t> parameter) {
  if (!iteration_.begin_pass()) return;
  reducing_ = true;
  trace::point("ddp.backward", group_->rank(), iteration_.number());
  if (use_.kind() == GraphKind::every_parameter) return;
  try {
    if (use_.learning()) {
      torch::autograd::Engine::get_default_engine().queue_callback(
          [self = shared_from_this()] { self->end_of_learning(); });
      return;
    }
    if (use_.kind() == GraphKind::searched) {
      std::vector<bool> reached;
      for (std::size_t i = 0; i < store_.parameter_count(); ++i)
        reached.push_back(i == parameter || parameter_hooks_.current_pass_reaches(i));
      use_.expect(std::move(reached));
    }
    for (const std::size_t absent : use_.absent()) take_absent(absent);
    launch_ready();
  } catch (...) {
    fail_and_throw("backward, at its start");
  }
}

// Autograd calls this after it has accumulated into .grad.
void Reducer::on_gradient(std::size_t parameter) {
  MutexLock lock(mutex_);
  const bool defined = store_.parameter(parameter).grad().defined();
  use_.touch(parameter, defined);
  if (options_.on_pass && std::exchange(mixed_pass_, current_backward_pass()) != current_backward_pass())
    options_.on_pass();
  if (!iteration_.expected()) {
    // All gradients were there when a re-entrant checkpoint ended, and another checkpoint brings one once more.
    if (outer_pass_.has_ended_iteration()) {
      try {
        refuse_second_gradient(store_.name(parameter), use_.kind(), group_->rank());
      } catch (...) {
        fail_and_throw(concat("backward, at parameter '", store_.name(parameter), "'"));
      }
    }
    return;
  }
  // Most failures of other ranks reach this rank's lanes while backward still runs: stop the pass then.
  if (failure_.happened()) throw_failure();
  watch_pass();
  begin_pass(parameter);
  try {
    if (!use_.complete(parameter)) return;
    if (!defined) use_.keep(parameter, {});
    take_gradient(parameter);
    launch_ready();
  } catch (...) {
    fail_and_throw(concat("backward, at parameter '", store_.name(parameter), "'"));
  }
}

void Reducer::take_gradient(std::size_t parameter) {
  if (!iteration_.take(parameter, store_.place(parameter).bucket))
    refuse_second_gradient(store_.name(parameter), use_.kind(), group_->rank());
  if (!idle()) filler_.fill(parameter, reduction_.factor());
}

void Reducer::take_absent(std::size_t parameter) {
  use_.keep(parameter, store_.parameter(parameter).grad());
  take_gradient(parameter);
}

// The first pass over a fixed graph has ended: the gradients of the graph are now known.
void Reducer::end_of_learning() {
  MutexLock lock(mutex_);
  if (!iteration_.expected() || failure_.happened()) return;
  try {
    for (const std::size_t parameter : use_.order_of_completion()) {
      const bool used = use_.fired(parameter) && store_.parameter(parameter).grad().defined();
      used ? take_gradient(parameter) : take_absent(parameter);
    }
    launch_ready();
  } catch (...) {
    fail_and_throw("the end of its first backward pass");
  }
}

// Watches each pass once. A re-entrant pass (a checkpoint) is a pass of its own.
void Reducer::watch_pass() {
  if (!iteration_.enter_pass(current_backward_pass())) return;
  watch_backward_pass([weak = weak_from_this()](const std::exception_ptr& error) {
    if (const auto reducer = weak.lock()) reducer->backward_failed(error);
  });
}

// A re-entrant pass runs within this one.
void Reducer::watch_outer_pass() {
  const int pass = current_backward_pass();
  if (!outer_pass_.enter(pass)) return;
  call_after_backward_pass([weak = weak_from_this(), pass] {
    const auto reducer = weak.lock();
    if (reducer == nullptr) return;
    const MutexLock lock(reducer->mutex_);
    reducer->outer_pass_.leave(pass);
  });
}

void Reducer::backward_failed(const std::exception_ptr& error) {
  MutexLock lock(mutex_);
  if (!iteration_.expected()) return;
  failure_.report(error, "its backward pass");
  leave_buckets();
}

void Reducer::launch_ready() {
  if (!launch_next()) return;
  // Not earlier: a re-entrant pass ends before the others, and its callbacks would find buckets that are not ready.
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->finish(); });
}

// Launches all buckets whose turn it is. Returns whether the last bucket was among them.
bool Reducer::launch_next() {
  if (iteration_.all_launched()) return false;
  reduction_.require_capturable(options_.graph, iteration_);
  while (const auto bucket = iteration_.next_complete_bucket()) {
    if (!idle()) reduction_.launch(store_, *bucket, filler_.take(*bucket), iteration_);
  }
  if (!iteration_.all_launched()) return false;
  if (!idle()) use_.share(*control_);
  return true;
}

}  // namespace gradwire::internal
