// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The options of PowerSGD, the state between iterations, and the saved state.
#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/stream_fence_internal.h"
#include "gradwire/hooks/power_sgd.h"
#include "gradwire/hooks/power_sgd_internal.h"

namespace gradwire {
namespace {

constexpr const char* kErrorPrefix = "local/error/";
constexpr const char* kFactorPrefix = "q/";

void require(bool valid, const std::string& what) {
  if (!valid) throw InvalidArgument(concat("PowerSGD: ", what, "."));
}

PowerSGDOptions checked(PowerSGDOptions options) {
  require(options.matrix_approximation_rank >= 1,
          concat("matrix_approximation_rank must be at least 1, got ", options.matrix_approximation_rank));
  require(options.start_iteration >= 0, concat("start_iteration must not be negative, got ", options.start_iteration));
  require(options.min_compression_rate >= 0,
          concat("min_compression_rate must not be negative, got ", options.min_compression_rate));
  require(options.orthogonalization_epsilon >= 0,
          concat("orthogonalization_epsilon must not be negative, got ", options.orthogonalization_epsilon));
  if (options.start_iteration <= 1) {
    for (const auto& [on, name] :
         {std::pair(options.use_error_feedback, "use_error_feedback"), std::pair(options.warm_start, "warm_start")}) {
      require(!on, concat("start_iteration must be at least 2 with ", name,
                          ", because the first iterations have other buckets and the earliest gradients; got ",
                          options.start_iteration, ". Start later, or turn ", name, " off"));
    }
  }
  options.compression_stats_logging_frequency = std::max<std::int64_t>(1, options.compression_stats_logging_frequency);
  return options;
}

// The options that a saved state depends on.
HookState fixed_options(const PowerSGDOptions& options) {
  return {{"matrix_approximation_rank", options.matrix_approximation_rank},
          {"use_error_feedback", options.use_error_feedback},
          {"warm_start", options.warm_start},
          {"random_seed", static_cast<std::int64_t>(options.random_seed)},
          {"batch_tensors_with_same_shape", options.batch_tensors_with_same_shape}};
}

std::string text_of(const c10::IValue& value) {
  return value.isBool() ? (value.toBool() ? "true" : "false") : std::to_string(value.toInt());
}

const c10::IValue& entry(const HookState& state, const std::string& key) {
  const auto found = state.find(key);
  require(found != state.end(), concat("the state to load has no '", key, "'; it is not one of PowerSGD's"));
  return found->second;
}

std::int64_t count_in(const HookState& state, const std::string& key) {
  const c10::IValue& value = entry(state, key);
  require(value.isInt() && value.toInt() >= 0, concat("'", key, "' in the state to load is not a count"));
  return value.toInt();
}

void require_same_options(const HookState& state, const PowerSGDOptions& options) {
  for (const auto& [key, mine] : fixed_options(options)) {
    const c10::IValue& saved = entry(state, key);
    require(saved.tagKind() == mine.tagKind(), concat("'", key, "' in the state to load has another type"));
    require(text_of(saved) == text_of(mine),
            concat("the state to load was saved with ", key, " = ", text_of(saved), ", this hook has ", text_of(mine)));
  }
}

// The part of `text` after `prefix`; nullopt when `text` does not begin with `prefix`.
std::optional<std::string> after(const std::string& text, const std::string& prefix) {
  if (text.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  return text.substr(prefix.size());
}

at::Tensor tensor_copy(const std::string& key, const c10::IValue& value, std::int64_t dimensions) {
  require(value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == dimensions &&
              value.toTensor().is_floating_point(),
          concat("'", key, "' in the state to load is not a tensor of ", dimensions, " dimensions"));
  return value.toTensor().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

// The caller's stream follows the stream that made the tensor: the backward pass has seen to that.
at::Tensor copy_on_cpu(const at::Tensor& tensor) {
  internal::keep_for_current_stream(tensor);
  return tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> list;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    list.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return list;
}

}  // namespace

PowerSGDState::PowerSGDState(PowerSGDOptions options, std::shared_ptr<ProcessGroup> group)
    : options_(checked(options)),
      group_(std::move(group)),
      memory_(std::make_unique<internal::PowerSGDMemory>(options_)) {}

PowerSGDState::~PowerSGDState() = default;

std::int64_t PowerSGDState::iterations() const { return memory_->iterations(); }

CompressionStats PowerSGDState::compression_stats() const { return memory_->stats(); }

at::Tensor PowerSGDState::error(const std::string& parameter) const {
  const at::Tensor error = memory_->error(parameter);
  internal::keep_for_current_stream(error);
  return error.defined() ? error.clone() : error;
}

HookState PowerSGDState::state_dict() const { return memory_->save(); }

void PowerSGDState::load_state_dict(const HookState& state) { memory_->load(state); }

namespace internal {

bool PowerSGDMemory::begin(const GradBucket& bucket) {
  const MutexLock lock(mutex_);
  const std::size_t index = bucket.index();
  if (current_ != bucket.iteration() || (index < came_.size() && came_[index])) {
    report();
    current_ = bucket.iteration();
    came_.clear();
    current_draws_.clear();
    if (values_.iterations++ == options_.start_iteration) {
      log::info(concat("PowerSGD starts after ", options_.start_iteration, " iterations of plain averaging."));
    }
  }
  if (index >= came_.size()) came_.resize(index + 1);
  came_[index] = true;
  return values_.iterations > options_.start_iteration;
}

void PowerSGDMemory::end_warm_up() {
  const MutexLock lock(mutex_);
  values_.iterations = std::max(values_.iterations, options_.start_iteration);
}

// Called when an iteration is over. Before that, other lanes may still add to the statistics.
void PowerSGDMemory::report() {
  const std::int64_t iteration = values_.iterations - 1;
  if (iteration < options_.start_iteration || iteration < values_.next_report) return;
  values_.next_report = iteration + options_.compression_stats_logging_frequency;
  log::info(concat("PowerSGD after iteration ", iteration, ": ", values_.stats.before, " elements became ",
                   values_.stats.after, ", compression rate ", values_.stats.rate));
}

std::uint32_t PowerSGDMemory::draw(std::size_t bucket_index) {
  const MutexLock lock(mutex_);
  for (; current_draws_.size() <= bucket_index; ++values_.drawn) current_draws_.push_back(draws_.next());
  return current_draws_[bucket_index];
}

void PowerSGDMemory::count(std::int64_t before, std::int64_t after) {
  const MutexLock lock(mutex_);
  values_.stats.before += before;
  values_.stats.after += after;
  values_.stats.rate = values_.stats.after > 0
                           ? static_cast<double>(values_.stats.before) / static_cast<double>(values_.stats.after)
                           : 0;
}

at::Tensor PowerSGDMemory::error(const std::string& parameter) const {
  const MutexLock lock(mutex_);
  const auto found = values_.errors.find(parameter);
  return found == values_.errors.end() ? at::Tensor() : found->second;
}

at::Tensor PowerSGDMemory::factor(const std::string& key) const {
  const MutexLock lock(mutex_);
  const auto found = values_.factors.find(key);
  return found == values_.factors.end() ? at::Tensor() : found->second.runs;
}

void PowerSGDMemory::keep_error(const std::string& parameter, at::Tensor error) {
  const MutexLock lock(mutex_);
  values_.errors[parameter] = std::move(error);
}

void PowerSGDMemory::keep_factor(const std::string& key, const std::vector<std::string>& parameters,
                                 at::Tensor factor) {
  const MutexLock lock(mutex_);
  const auto place = values_.factors.find(key);
  if (place != values_.factors.end()) {
    place->second.runs = std::move(factor);
    return;
  }
  // An entry that shares parameters with this bucket belongs to a bucket before the rebuild: remove it.
  const auto shares = [&](const auto& other) {
    return std::find_first_of(other.second.parameters.begin(), other.second.parameters.end(), parameters.begin(),
                              parameters.end()) != other.second.parameters.end();
  };
  std::erase_if(values_.factors, shares);
  values_.factors[key] = {parameters, std::move(factor)};
}

std::int64_t PowerSGDMemory::iterations() const {
  const MutexLock lock(mutex_);
  return values_.iterations;
}

CompressionStats PowerSGDMemory::stats() const {
  const MutexLock lock(mutex_);
  return values_.stats;
}

HookState PowerSGDMemory::save() const {
  const MutexLock lock(mutex_);
  HookState state = fixed_options(options_);
  state["iterations"] = values_.iterations;
  state["draws"] = values_.drawn;
  state["numel_before"] = values_.stats.before;
  state["numel_after"] = values_.stats.after;
  state["next_report"] = values_.next_report;
  for (const auto& [name, error] : values_.errors) state[kErrorPrefix + name] = copy_on_cpu(error);
  for (const auto& [key, factor] : values_.factors) state[kFactorPrefix + key] = copy_on_cpu(factor.runs);
  return state;
}

void PowerSGDMemory::load(const HookState& state) {
  require_same_options(state, options_);
  std::map<std::string, at::Tensor> errors;
  std::map<std::string, Factor> factors;
  for (const auto& [key, value] : state) {
    if (const auto name = after(key, kErrorPrefix)) errors[*name] = tensor_copy(key, value, 1);
    if (const auto name = after(key, kFactorPrefix)) factors[*name] = {words(*name), tensor_copy(key, value, 2)};
  }
  CompressionStats stats{.before = count_in(state, "numel_before"), .after = count_in(state, "numel_after")};
  if (stats.after > 0) stats.rate = static_cast<double>(stats.before) / static_cast<double>(stats.after);
  Values loaded{.iterations = count_in(state, "iterations"),
                .drawn = count_in(state, "draws"),
                .stats = stats,
                .next_report = count_in(state, "next_report"),
                .errors = std::move(errors),
                .factors = std::move(factors)};
  const MutexLock lock(mutex_);
  replace(std::move(loaded));
}

void PowerSGDMemory::replace(Values values) {
  values_ = std::move(values);
  held_.clear();
  current_.reset();
  came_.clear();
  current_draws_.clear();
  draws_ = NumpyDraws(options_.random_seed);
  draws_.skip(values_.drawn);
}

at::Tensor PowerSGDMemory::room_for_error(const std::string& parameter, const at::Tensor& error) {
  const MutexLock lock(mutex_);
  bool is_needed = held_.contains(parameter);
  if (kept_) {
    const auto kept = kept_->errors.find(parameter);
    is_needed = is_needed || (kept != kept_->errors.end() && kept->second.is_alias_of(error));
  }
  if (!is_needed) return error;
  const at::Tensor spare = std::exchange(spare_errors_[parameter], at::Tensor());
  const bool fits = spare.defined() && spare.sizes() == error.sizes() && spare.dtype() == error.dtype() &&
                    spare.device() == error.device();
  return fits ? spare : at::empty_like(error);
}

void PowerSGDMemory::hold(const std::string& parameter) {
  const MutexLock lock(mutex_);
  Held& held = held_[parameter] = {};
  if (const auto error = values_.errors.find(parameter); error != values_.errors.end()) held.error = error->second;
  if (const auto factor = values_.factors.find(parameter); factor != values_.factors.end())
    held.factor = factor->second;
}

void PowerSGDMemory::restore(const std::string& parameter) {
  const MutexLock lock(mutex_);
  const auto held = held_.extract(parameter);
  if (held.empty()) return;
  values_.errors.erase(parameter);
  if (held.mapped().error.defined()) values_.errors[parameter] = held.mapped().error;
  values_.factors.erase(parameter);
  if (held.mapped().factor) values_.factors[parameter] = *held.mapped().factor;
}

void PowerSGDMemory::release() {
  const MutexLock lock(mutex_);
  held_.clear();
}

void PowerSGDMemory::keep() {
  const MutexLock lock(mutex_);
  if (kept_) {
    for (auto& [name, error] : kept_->errors) {
      const auto now = values_.errors.find(name);
      if (now != values_.errors.end() && !now->second.is_alias_of(error)) spare_errors_[name] = std::move(error);
    }
  }
  kept_ = values_;
}

void PowerSGDMemory::revert() {
  const MutexLock lock(mutex_);
  if (kept_) replace(*kept_);
}

}  // namespace internal
}  // namespace gradwire
