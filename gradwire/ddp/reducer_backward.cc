// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The Reducer during a backward pass.
#include <torch/csrc/autograd/engine.h>

#include <exception>
#include <string>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/ddp/backward_watch_internal.h"
#include "gradwire/ddp/reducer_internal.h"

namespace gradwire::internal {
namespace {

bool is_error_of_gradwire(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

// Autograd calls this when a pass goes through an output of forward().
void Reducer::on_output() {
  MutexLock lock(mutex_);
  if (failure_.happened()) return;
  if (is_passed_by()) return;
  iteration_.expect();
  watch_pass();
  watch_outer_pass();
  begin_pass(std::nullopt);
}

// Whether the running pass is for chosen inputs that leave out all parameters.
bool Reducer::is_passed_by() const {
  return parameter_hooks_.current_pass_passes_by() &&
         (options_.delayed == nullptr || options_.delayed->current_pass_passes_by());
}

// Finds the absent parameters at the beginning of a pass. `parameter`: the parameter whose gradient has come already.
void Reducer::begin_pass(std::optional<std::size_t> parameter) {
  if (!iteration_.begin_pass()) return;
  calls_.begin_pass();
  trace::point("ddp.backward", group_->rank(), iteration_.number());
  // The callbacks run in the order in which they are queued. The last bucket is launched before the pass waits for the
  // delayed gradients, and finish() comes behind: shadow_backward() keeps this order too.
  const bool learns = store_.bucket_count() > 0 && intake_.learns();
  if (learns) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this()] { self->end_of_learning(); });
  }
  if (options_.delayed != nullptr) options_.delayed->begin_pass();
  // All parameters are delayed: there is no last bucket whose launch does this.
  if (store_.bucket_count() == 0) return finish_after_pass();
  if (learns || options_.graph == GraphKind::every_parameter) return;
  try {
    const ParameterHooks* const hooks = &parameter_hooks_;
    intake_.take_absent([&](std::size_t i) { return i == parameter || hooks->current_pass_reaches(i); }, factor());
    launch_ready();
  } catch (...) {
    fail_and_throw("backward, at its start");
  }
}

// Autograd calls this after it has accumulated into .grad.
void Reducer::on_gradient(std::size_t parameter) {
  MutexLock lock(mutex_);
  const bool defined = intake_.touch(parameter);
  begin_mixed_pass();
  if (!iteration_.expected()) {
    // All gradients were there when a re-entrant checkpoint ended, and another checkpoint brings one once more.
    if (outer_pass_.has_ended_iteration()) {
      try {
        intake_.refuse_second(parameter);
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
    if (!intake_.take_arrived(parameter, defined, factor())) return;
    launch_ready();
  } catch (...) {
    fail_and_throw(concat("backward, at parameter '", store_.name(parameter), "'"));
  }
}

void Reducer::begin_mixed_pass() {
  if (options_.on_pass && std::exchange(mixed_pass_, current_backward_pass()) != current_backward_pass())
    options_.on_pass();
}

void Reducer::on_delayed_gradient() {
  MutexLock lock(mutex_);
  begin_mixed_pass();
  if (!iteration_.expected()) return;
  if (failure_.happened()) throw_failure();
  watch_pass();
  begin_pass(std::nullopt);
}

void Reducer::fail(const std::string& where) {
  MutexLock lock(mutex_);
  fail_and_throw(where);
}

void Reducer::give_up(const std::string& why) noexcept {
  try {
    MutexLock lock(mutex_);
    failure_.report(std::make_exception_ptr(AbortedError(why)), "a Join");
    leave_buckets();
  } catch (const std::exception& error) {
    log::error(error.what());
  }
}

// The first pass over a fixed graph has ended: the gradients of the graph are now known.
void Reducer::end_of_learning() {
  MutexLock lock(mutex_);
  if (!iteration_.expected() || failure_.happened()) return;
  try {
    intake_.take_learnt(factor());
    launch_ready();
  } catch (...) {
    fail_and_throw("the end of its first backward pass");
  }
}

// Watches each pass once. A re-entrant pass (a checkpoint) is a pass of its own.
void Reducer::watch_pass() {
  if (!iteration_.enter_pass(current_backward_pass())) return;
  const std::exception_ptr ended_with = watch_backward_pass([weak = weak_from_this()](const std::exception_ptr& error) {
    if (const auto reducer = weak.lock()) reducer->backward_failed(error);
  });
  if (ended_with == nullptr) return;
  failure_.report(ended_with, "its backward pass");
  throw_failure();
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
  // The language names the classes of its own exceptions in what(); it throws gradwire's later, where the pass ends. It
  // may wait for its lock, so this thread holds none.
  if (options_.errors != nullptr && !is_error_of_gradwire(error)) options_.errors(error);
  MutexLock lock(mutex_);
  if (!iteration_.expected()) return;
  failure_.report(error, "its backward pass");
  leave_buckets();
}

void Reducer::launch_ready() {
  // Not earlier: a re-entrant pass ends before the others, and its callbacks would find buckets that are not ready.
  if (launch_next()) finish_after_pass();
}

void Reducer::finish_after_pass() {
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->finish(); });
}

// Launches all buckets whose turn it is. Returns whether the last bucket was among them.
bool Reducer::launch_next() {
  if (iteration_.all_launched()) return false;
  reduction_.require_capturable(options_.graph, iteration_);
  while (const auto bucket = iteration_.next_complete_bucket()) {
    if (idle()) continue;
    reduction_.launch(store_, *bucket, intake_.filling(*bucket), intake_.absent_in(*bucket), iteration_);
  }
  if (!iteration_.all_launched()) return false;
  if (!idle()) intake_.share_use(*control_);
  return true;
}

}  // namespace gradwire::internal
