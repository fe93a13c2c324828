// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/amp/grad_scaler.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/tensor_memory_internal.h"

namespace gradwire {
namespace {

constexpr const char* kArchive = "grad_scaler";
// libtorch counts the steps in an int.
constexpr std::int64_t kMostSteps = std::numeric_limits<int>::max();

// The numbers of a gradient, as real ones.
at::Tensor values_of(const at::Tensor& gradient) {
  if (gradient.scalar_type() == at::kHalf) {
    throw InvalidArgument(
        "GradScaler: a gradient is of fp16, which cannot be unscaled without loss; keep the parameters in float");
  }
  // A real scale leaves lazy signs as they are.
  const at::Tensor values = internal::without_lazy_signs(gradient.is_sparse() ? gradient._values() : gradient);
  return values.is_complex() ? at::view_as_real(values) : values;
}

void require_scale(double scale) {
  const auto kept = static_cast<float>(scale);
  if (std::isfinite(kept) && kept > 0) return;
  throw InvalidArgument(concat("GradScaler: the scale is ", scale, "; it must be above 0 and finite, as a float"));
}

// Throws InvalidArgument. Written so that NaN fails.
void require_sound(const GradScalerOptions& options) {
  require_scale(options.init_scale);
  const auto require = [](bool sound, const char* what, auto value, const char* rule) {
    if (!sound) throw InvalidArgument(concat("GradScaler: the ", what, " is ", value, "; it must be ", rule));
  };
  require(options.growth_factor > 1, "growth factor", options.growth_factor, "above 1");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff factor", options.backoff_factor,
          "between 0 and 1");
  require(options.growth_interval > 0 && options.growth_interval <= kMostSteps, "growth interval",
          options.growth_interval, concat("1 to ", kMostSteps).c_str());
}

template <class Value>
void set(GradScalerOptions& options, Value GradScalerOptions::*field, Value value) {
  GradScalerOptions changed = options;
  changed.*field = value;
  require_sound(changed);
  options = std::move(changed);
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(std::move(options)) {
  if (options_.enabled) require_sound(options_);
}

void GradScaler::set_growth_factor(double factor) { set(options_, &GradScalerOptions::growth_factor, factor); }

void GradScaler::set_backoff_factor(double factor) { set(options_, &GradScalerOptions::backoff_factor, factor); }

void GradScaler::set_growth_interval(std::int64_t interval) {
  set(options_, &GradScalerOptions::growth_interval, interval);
}

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!options_.enabled) return outputs;
  if (!scale_.defined()) {
    scale_ = at::full({}, options_.init_scale, outputs.options().dtype(at::kFloat).requires_grad(false));
    growth_tracker_ = at::full({}, init_growth_tracker_, scale_.options().dtype(at::kInt));
  }
  return outputs * scale_.to(outputs.device(), /*non_blocking=*/true);
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

void GradScaler::require_scaled(const char* operation) const {
  if (scale_.defined()) return;
  throw InvalidArgument(
      concat("GradScaler: ", operation, " was called before any scale(); scale the loss, then run backward, first"));
}

void GradScaler::refuse_second_step() {
  throw InvalidArgument(
      "GradScaler: step() was called before for this optimizer; call update() at the iteration's end");
}

void GradScaler::unscale(const void* optimizer, const std::vector<at::Tensor>& gradients) {
  require_scaled("unscale_()");
  PerOptimizer& state = optimizers_[optimizer];
  if (state.stage == Stage::unscaled)
    throw InvalidArgument("GradScaler: unscale_() was called before for this optimizer since the last update()");
  if (state.stage == Stage::stepped) throw InvalidArgument("GradScaler: unscale_() is called after step()");

  const c10::NoGradGuard no_grad;
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> kinds;  // one call each
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor values = values_of(gradient);
    kinds[{values.device().str(), values.scalar_type()}].push_back(values);
  }
  // The reciprocal in double, as PyTorch's: in float it is off by a bit for some scales.
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor found_inf = at::zeros({}, scale_.options());
  for (auto& [kind, values] : kinds) {
    const c10::Device device = values.front().device();
    at::Tensor found_here = at::zeros({}, scale_.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(values, found_here, inverse.to(device));
    found_inf.add_(found_here.to(found_inf.device()));
  }
  if (options_.process_group != nullptr) {
    AllReduceOptions reduce;
    reduce.async = false;
    options_.process_group->all_reduce({found_inf}, reduce)->wait();
  }
  state.found_inf = std::move(found_inf);
  state.stage = Stage::unscaled;
}

bool GradScaler::found(const void* optimizer) const {
  const auto state = optimizers_.find(optimizer);
  if (state == optimizers_.end() || !state->second.found_inf.defined()) {
    throw InvalidArgument("GradScaler: this optimizer's gradients were not unscaled in this iteration");
  }
  return state->second.found_inf.item<float>() != 0;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  require_scaled("update()");
  if (new_scale) {
    require_scale(*new_scale);
    scale_.fill_(*new_scale);
  } else {
    at::Tensor found_inf = at::zeros({}, scale_.options());
    bool any = false;
    for (const auto& [optimizer, state] : optimizers_) {
      if (!state.found_inf.defined()) continue;
      found_inf.add_(state.found_inf);
      any = true;
    }
    if (!any) {
      throw InvalidArgument(
          "GradScaler: update() was called, but no optimizer's gradients were unscaled in this iteration");
    }
    at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                           options_.growth_interval);
  }
  optimizers_.clear();
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? scale_.item<float>() : options_.init_scale;
}

std::optional<GradScalerState> GradScaler::state_dict() const {
  if (!options_.enabled) return std::nullopt;
  return GradScalerState{get_scale(), options_.growth_factor, options_.backoff_factor, options_.growth_interval,
                         growth_tracker_.defined() ? growth_tracker_.item<int>() : init_growth_tracker_};
}

void GradScaler::load_state_dict(const std::optional<GradScalerState>& state) {
  if (!options_.enabled) return;
  if (!state) {
    throw InvalidArgument(
        "GradScaler: the state is empty, as that of a scaler that is not enabled; start with a new GradScaler instead");
  }
  GradScalerOptions changed = options_;
  changed.init_scale = state->scale;
  changed.growth_factor = state->growth_factor;
  changed.backoff_factor = state->backoff_factor;
  changed.growth_interval = state->growth_interval;
  require_sound(changed);
  if (state->growth_tracker < 0 || state->growth_tracker >= kMostSteps) {
    throw InvalidArgument(
        concat("GradScaler: the growth tracker is ", state->growth_tracker, "; it must be 0 to ", kMostSteps - 1));
  }
  options_ = std::move(changed);
  init_growth_tracker_ = state->growth_tracker;
  if (scale_.defined()) {
    scale_.fill_(state->scale);
    growth_tracker_.fill_(state->growth_tracker);
  }
}

void GradScaler::save(torch::serialize::OutputArchive& archive) const {
  const std::optional<GradScalerState> state = state_dict();
  if (!state) return;
  torch::serialize::OutputArchive own(archive.compilation_unit());
  own.write("scale", c10::IValue(state->scale));
  own.write("growth_factor", c10::IValue(state->growth_factor));
  own.write("backoff_factor", c10::IValue(state->backoff_factor));
  own.write("growth_interval", c10::IValue(state->growth_interval));
  own.write("growth_tracker", c10::IValue(state->growth_tracker));
  archive.write(kArchive, own);
}

void GradScaler::load(torch::serialize::InputArchive& archive) {
  torch::serialize::InputArchive own;
  std::optional<GradScalerState> state;
  if (archive.try_read(kArchive, own)) {
    const auto read = [&](const char* name) {
      c10::IValue value;
      own.read(name, value);
      return value;
    };
    state =
        GradScalerState{read("scale").toDouble(), read("growth_factor").toDouble(), read("backoff_factor").toDouble(),
                        read("growth_interval").toInt(), read("growth_tracker").toInt()};
  }
  load_state_dict(state);
}

}  // namespace gradwire
