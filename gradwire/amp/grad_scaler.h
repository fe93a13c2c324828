// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Loss scaling for training in half precision, as torch.amp.GradScaler. The loss is multiplied by a factor, the scale,
// which keeps small gradients from becoming zero. The scale shrinks when gradients overflow and grows while they do
// not.
//
//   gradwire::GradScaler scaler;
//   for (...) {
//     optimizer.zero_grad();
//     scaler.scale(loss_of(ddp(x))).backward();
//     scaler.unscale_(optimizer);                    // only needed before the gradients are read or clipped
//     torch::nn::utils::clip_grad_norm_(...);
//     scaler.step(optimizer);                        // does not step when a gradient holds Inf or NaN
//     scaler.update();
//   }
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace gradwire {

struct GradScalerOptions {
  double init_scale = 65536;            // above 0, and a finite float
  double growth_factor = 2;             // above 1
  double backoff_factor = 0.5;          // above 0 and below 1
  std::int64_t growth_interval = 2000;  // steps without overflow until the scale grows; 1 to the largest int
  bool enabled = true;                  // false: scale() changes nothing, step() steps, the rest does nothing
  // An overflow on one rank counts on all ranks of `process_group`: all of them skip the step and keep the same scale.
  // Set the group where ranks step with gradients of their own (sharded optimizers, no_sync, hooks that do not
  // average). DDP's averages carry Inf and NaN to all ranks, so plain DDP does not need the group. Null: each rank
  // decides for itself.
  std::shared_ptr<ProcessGroup> process_group;
};

// The state of a GradScaler for a checkpoint.
struct GradScalerState {
  double scale = 1;
  double growth_factor = 2;             // see GradScalerOptions
  double backoff_factor = 0.5;          // see GradScalerOptions
  std::int64_t growth_interval = 2000;  // see GradScalerOptions
  std::int64_t growth_tracker = 0;      // steps without overflow since the scale changed
};

// An optimizer is any class with step() and param_groups(), each group with params(): torch::optim's optimizers and
// wrappers around them. Between two calls of update(), an optimizer is unscaled at most once and stepped at most once,
// and must stay alive. Optimizers that step in the backward pass (ZeroOptions::overlap_with_ddp,
// make_hook_then_optimizer) do not go with a GradScaler: they step with the gradients of the scaled loss.
//
// With a process group, unscale_() (or step(), where unscale_() was not called) is collective: one all_reduce of one
// float. Gradients may be dense or sparse, real or complex, of any floating type except fp16; fp16 gradients throw
// InvalidArgument, as in PyTorch (keep the parameters in float). Undefined gradients are skipped. The order of calls is
// checked; InvalidArgument is thrown for a second unscale_() or step() of one optimizer before update(), unscale_()
// after step(), update() before any step, and any of them before the first scale().
//
// Threads: one thread at a time.
class GradScaler {
 public:
  // Throws InvalidArgument for a scale, a factor or an interval that GradScalerOptions does not allow, unless the
  // scaler is not enabled.
  explicit GradScaler(GradScalerOptions options = {});

  // Returns the outputs times the scale; call backward() on the result. The first call creates the scale on the device
  // of the outputs.
  at::Tensor scale(const at::Tensor& outputs);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  // Divides the gradients of the optimizer by the scale, in place, and checks them for Inf and NaN. Collective with a
  // process group.
  template <class Optimizer>
  void unscale_(Optimizer& optimizer) {
    if (options_.enabled) unscale(identity_of(optimizer), gradients_of(optimizer));
  }

  // Calls unscale_() unless the caller did, and then optimizer.step() unless a gradient held Inf or NaN on this rank or
  // on another rank of the group. Returns whether the optimizer stepped. Closures are not supported.
  template <class Optimizer>
  bool step(Optimizer& optimizer) {
    if (options_.enabled && !may_step(identity_of(optimizer), [&] { return gradients_of(optimizer); })) return false;
    optimizer.step();
    return true;
  }

  // Ends the iteration. Multiplies the scale by backoff_factor when a step was skipped, or by growth_factor after
  // growth_interval iterations without a skipped step. `new_scale` sets the scale instead; a `new_scale` that is not
  // above 0 throws InvalidArgument.
  void update(std::optional<double> new_scale = std::nullopt);

  // Forgets which optimizers were unscaled and stepped since the last update(): the iteration is done again, as a step
  // of an elastic job is whose collective failed. The scale stays.
  void restart() noexcept { optimizers_.clear(); }

  // Returns whether the gradients held Inf or NaN when they were unscaled. Throws InvalidArgument before unscale_().
  template <class Optimizer>
  bool found_inf(const Optimizer& optimizer) const {
    return found(identity_of(optimizer));
  }

  // The current scale and options. get_scale() returns 1 when the scaler is not enabled, and waits for the device. A
  // setter takes effect from the next update() on, and throws InvalidArgument for a value that GradScalerOptions does
  // not allow.
  double get_scale() const;
  double get_growth_factor() const noexcept { return options_.growth_factor; }
  void set_growth_factor(double factor);
  double get_backoff_factor() const noexcept { return options_.backoff_factor; }
  void set_backoff_factor(double factor);
  std::int64_t get_growth_interval() const noexcept { return options_.growth_interval; }
  void set_growth_interval(std::int64_t interval);
  bool is_enabled() const noexcept { return options_.enabled; }

  // state_dict() returns the state for a checkpoint, or null when the scaler is not enabled; call state_dict() after
  // update(). load_state_dict() replaces the state. It does nothing in a scaler that is not enabled. It throws
  // InvalidArgument, and changes nothing, for null in an enabled scaler and for values out of range.
  std::optional<GradScalerState> state_dict() const;
  void load_state_dict(const std::optional<GradScalerState>& state);
  // Write and read the same state in an archive of torch, with the errors of load_state_dict(). The archive of an
  // optimizer or a module uses other keys, so one file can hold all of them.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct PerOptimizer {
    Stage stage = Stage::ready;
    at::Tensor found_inf;  // a float on the scale's device: not zero where something was found
  };

  // The same by whichever of its classes the caller knows the object.
  template <class Optimizer>
  static const void* identity_of(const Optimizer& optimizer) {
    if constexpr (std::is_polymorphic_v<Optimizer>) {
      return dynamic_cast<const void*>(&optimizer);
    } else {
      return &optimizer;
    }
  }
  template <class Optimizer>
  static std::vector<at::Tensor> gradients_of(Optimizer& optimizer) {
    std::vector<at::Tensor> gradients;
    for (auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) gradients.push_back(parameter.grad());
      }
    }
    return gradients;
  }
  template <class Gradients>
  bool may_step(const void* optimizer, const Gradients& gradients) {
    require_scaled("step");
    PerOptimizer& state = optimizers_[optimizer];
    if (state.stage == Stage::stepped) refuse_second_step();
    if (state.stage == Stage::ready) unscale(optimizer, gradients());
    state.stage = Stage::stepped;
    return !found(optimizer);
  }

  void unscale(const void* optimizer, const std::vector<at::Tensor>& gradients);
  bool found(const void* optimizer) const;
  void require_scaled(const char* operation) const;
  [[noreturn]] static void refuse_second_step();

  GradScalerOptions options_;
  std::int64_t init_growth_tracker_ = 0;
  at::Tensor scale_;                                // float scalar; undefined before the first scale()
  at::Tensor growth_tracker_;                       // int scalar on the device of scale_
  std::map<const void*, PerOptimizer> optimizers_;  // of this iteration
};

}  // namespace gradwire
