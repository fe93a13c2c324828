// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Loss scaling for training in half precision, as torch.amp.GradScaler: small gradients are kept from becoming zero by
// a factor on the loss, which shrinks when gradients overflow and grows while they do not.
//
//   gradwire::GradScaler scaler;
//   for (...) {
//     optimizer.zero_grad();
//     scaler.scale(loss_of(ddp(x))).backward();
//     scaler.unscale_(optimizer);                    // only to look at the gradients, to clip them, say
//     torch::nn::utils::clip_grad_norm_(...);
//     scaler.step(optimizer);                        // not made when a gradient holds Inf or NaN
//     scaler.update();
//   }
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace gradwire {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;             // above 1
  double backoff_factor = 0.5;          // below 1
  std::int64_t growth_interval = 2000;  // steps without overflow until the scale grows
  bool enabled = true;                  // false: scale() changes nothing, step() steps, the rest does nothing
  // Overflow on one rank counts on all of `process_group`: they skip the same steps and keep one scale. Needed wherever
  // ranks step with gradients of their own (sharded optimizers, no_sync, hooks that do not average); DDP's averages
  // bring Inf and NaN to all ranks anyway. Null: each rank for itself.
  std::shared_ptr<ProcessGroup> process_group;
};

struct GradScalerState {
  double scale = 1;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  std::int64_t growth_tracker = 0;  // steps without overflow since the scale changed
};

// An optimizer is whatever has param_groups(), each with params(), and step(): torch::optim's and wrappers of theirs.
// Each is unscaled at most once, and stepped at most once, between two calls of update(); it must live until then.
//
// With a process group, unscale_() (or step(), where it was not called) is one all_reduce of one float, to be called on
// all ranks alike. Gradients: dense or sparse, real or complex, of any floating type but fp16, which is refused with
// InvalidArgument as in PyTorch (keep the parameters in float); those not defined are left out. The order of calls is
// checked: InvalidArgument for a second unscale_() or step() of one optimizer before update(), unscale_() after step(),
// update() before any step, and any of them before the first scale().
//
// Not thread-safe.
class GradScaler {
 public:
  // Throws InvalidArgument for factors or an interval out of range.
  explicit GradScaler(GradScalerOptions options = {});

  // The outputs times the scale, for backward().
  at::Tensor scale(const at::Tensor& outputs);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  // Divides the optimizer's gradients by the scale, in place, and looks for Inf and NaN.
  template <class Optimizer>
  void unscale_(Optimizer& optimizer) {
    if (options_.enabled) unscale(&optimizer, gradients_of(optimizer));
  }

  // Unscales, unless that was done; steps, unless a gradient held Inf or NaN (here or on another rank of the group).
  // Whether it stepped. Closures are not supported.
  template <class Optimizer>
  bool step(Optimizer& optimizer) {
    if (options_.enabled && !may_step(&optimizer, [&] { return gradients_of(optimizer); })) return false;
    optimizer.step();
    return true;
  }

  // Ends the iteration: the scale times backoff_factor when a step was left out, times growth_factor after
  // growth_interval iterations in a row without; or `new_scale`.
  void update(std::optional<double> new_scale = std::nullopt);

  // Whether the optimizer's gradients, unscaled already, held Inf or NaN. Throws InvalidArgument before unscale_().
  template <class Optimizer>
  bool found_inf(const Optimizer& optimizer) const {
    return found(&optimizer);
  }

  double get_scale() const;  // 1 when not enabled; waits for the device
  double get_growth_factor() const noexcept { return options_.growth_factor; }
  void set_growth_factor(double factor);
  double get_backoff_factor() const noexcept { return options_.backoff_factor; }
  void set_backoff_factor(double factor);
  std::int64_t get_growth_interval() const noexcept { return options_.growth_interval; }
  void set_growth_interval(std::int64_t interval);
  bool is_enabled() const noexcept { return options_.enabled; }

  // For checkpoints, after update(). Null when not enabled; loading into a scaler that is not enabled does nothing, and
  // null into one that is throws InvalidArgument.
  std::optional<GradScalerState> state_dict() const;
  void load_state_dict(const std::optional<GradScalerState>& state);
  // The same in an archive of torch's, under names of its own: beside optimizers and modules in one file.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct PerOptimizer {
    Stage stage = Stage::ready;
    at::Tensor found_inf;  // a float on the scale's device: not zero where something was found
  };

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
  at::Tensor growth_tracker_;                       // int scalar, beside it
  std::map<const void*, PerOptimizer> optimizers_;  // of this iteration
};

}  // namespace gradwire
