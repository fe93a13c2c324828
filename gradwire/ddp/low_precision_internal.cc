// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/low_precision_internal.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/ddp/backward_watch_internal.h"

namespace gradwire::internal {

// An object that all graphs of one forward pass share. It is destroyed with the last of these graphs.
class LowPrecision::Graph final {
 public:
  Graph(std::weak_ptr<LowPrecision> of, std::uint64_t lowering) : of_(std::move(of)), lowering_(lowering) {}
  ~Graph() {
    if (const auto of = of_.lock()) of->graph_gone(lowering_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void begin_backward() const {
    if (const auto of = of_.lock()) of->begin_backward();
  }

 private:
  const std::weak_ptr<LowPrecision> of_;
  const std::uint64_t lowering_;
};

bool LowPrecision::Entry::was_changed() const {
  return was_replaced() ? parameter.scalar_type() != full.scalar_type() : parameter._version() != version;
}

LowPrecision::LowPrecision(std::vector<at::Tensor> parameters, at::ScalarType dtype)
    : parameters_(std::move(parameters)), dtype_(dtype) {
  MutexLock lock(mutex_);
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.is_floating_point() && parameter.scalar_type() != dtype) entries_.push_back({parameter, {}, {}});
  }
}

bool LowPrecision::is_lowered() const {
  MutexLock lock(mutex_);
  return lowered_;
}

bool LowPrecision::lower() {
  MutexLock lock(mutex_);
  restoring_ = false;
  const bool changed = lowered_ && std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
                         return entry.was_replaced() || entry.was_changed();
                       });
  if (changed) {
    lock.unlock();
    restore();
    lock.lock();
  }
  in_forward_ = true;
  if (lowered_ || entries_.empty()) return false;
  const c10::NoGradGuard no_grad;
  lowered_ = true;
  ++lowering_;
  graphs_ = 0;
  for (Entry& entry : entries_) {
    entry.full = entry.parameter.variable_data();
    entry.low = entry.full.to(dtype_);
    entry.parameter.set_data(entry.low);
    entry.version = entry.parameter._version();
  }
  return true;
}

void LowPrecision::restore_after(const std::vector<at::Tensor>& outputs) {
  end_forward();
  if (!c10::GradMode::is_enabled()) {
    if (!awaits_backward()) restore();
    return;
  }
  std::uint64_t lowering = 0;
  {
    MutexLock lock(mutex_);
    if (!lowered_) return;
    ++graphs_;
    lowering = lowering_;
  }
  // The destruction of the graph of unknown outputs cannot be noticed.
  if (outputs.empty()) return;
  const auto graph = std::make_shared<Graph>(weak_from_this(), lowering);
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([graph](const at::Tensor&) { graph->begin_backward(); });
  }
}

void LowPrecision::graph_gone(std::uint64_t lowering) noexcept {
  {
    MutexLock lock(mutex_);
    if (lowering != lowering_ || !lowered_ || --graphs_ > 0 || restoring_ || in_forward_) return;
  }
  restore_or_log();
}

void LowPrecision::abandon_forward() noexcept {
  end_forward();
  if (!awaits_backward()) restore_or_log();
}

void LowPrecision::end_forward() noexcept {
  MutexLock lock(mutex_);
  in_forward_ = false;
}

bool LowPrecision::awaits_backward() const noexcept {
  MutexLock lock(mutex_);
  return graphs_ > 0;
}

void LowPrecision::restore_or_log() noexcept {
  try {
    restore();
  } catch (const std::exception& error) {
    log::error(error.what());
  }
}

// Called in a backward pass through an output.
void LowPrecision::begin_backward() {
  // After torch::autograd::grad() of an input, the pass with the parameters' gradients is still to come.
  if (!current_pass_leaves_out(parameters_)) restore_at_end();
}

void LowPrecision::restore_at_end() {
  {
    MutexLock lock(mutex_);
    if (!lowered_ || std::exchange(restoring_, true)) return;
  }
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this()] { run_backward(self->errors_, [&] { self->restore(); }); });
  // The callbacks of a pass that ends with an exception do not run.
  if (watch_backward_pass([self = shared_from_this()](const std::exception_ptr&) { self->restore_or_log(); }))
    restore_or_log();
}

void LowPrecision::restore() {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gone;  // destroyed after the lock is released: the destruction may call this object again
  bool lost = false;
  {
    MutexLock lock(mutex_);
    if (!lowered_) return;
    lowered_ = false;
    restoring_ = false;
    for (Entry& entry : entries_) {
      const at::ScalarType dtype = entry.full.scalar_type();
      lost = lost || entry.was_changed();
      if (!entry.was_replaced() || entry.parameter.scalar_type() != dtype) entry.parameter.set_data(entry.full);
      gone.push_back(std::exchange(entry.full, {}));
      gone.push_back(std::exchange(entry.low, {}));
      at::Tensor& grad = entry.parameter.mutable_grad();
      if (grad.defined() && grad.scalar_type() != dtype) gone.push_back(std::exchange(grad, grad.to(dtype)));
    }
  }
  if (!lost) return;
  throw InvalidArgument(
      "A parameter was changed while mixed_precision had it in a lower precision, between forward() and the end of the "
      "backward pass; the change is lost. Step optimizers after the backward pass, not in hooks.");
}

}  // namespace gradwire::internal
