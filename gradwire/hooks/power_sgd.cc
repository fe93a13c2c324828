// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/power_sgd.h"

#include <ATen/Functions.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/kept_hook_state.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/power_sgd_internal.h"
#include "gradwire/hooks/support_internal.h"
#include "gradwire/hooks/warm_up_internal.h"

namespace gradwire {
namespace {

using internal::LowRankMatrix;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A compressed gradient of the bucket.
struct Compressed {
  at::Tensor gradient;  // a view into the bucket
  bool in_place;        // true: the values of the matrix lie in the bucket's memory
};

// The division of one bucket. matrices[i] and compressed[i] belong together.
struct Division {
  std::vector<LowRankMatrix> matrices;
  std::vector<Compressed> compressed;
  std::vector<at::Tensor> uncompressed;  // flat views into the buffer
};

// On the device of the bucket, with the dtype of the matrix: the error of a loaded state lies on the CPU, and may come
// from a run in another precision.
at::Tensor remembered_error(const PowerSGDState& state, const GradBucket& bucket, const std::string& parameter,
                            std::int64_t numel, at::ScalarType type) {
  const at::Tensor error = state.memory().error(parameter);
  if (error.defined() && error.numel() != numel) {
    throw InvalidArgument(concat("PowerSGD: the remembered error of '", parameter, "' has ", error.numel(),
                                 " elements, its gradient ", numel, ". Was the state of another model loaded?"));
  }
  return error.defined() ? error.to(bucket.buffer().device(), type) : error;
}

// The matrix of one gradient, with the error of the step before added.
std::pair<LowRankMatrix, Compressed> make_matrix(const PowerSGDState& state, const GradBucket& bucket, std::size_t slot,
                                                 std::int64_t rank, at::ScalarType type) {
  const BucketLayout::Slot& place = bucket.layout().slots[slot];
  const std::string& name = bucket.parameter_names()[slot];
  const std::int64_t rows = place.sizes.front();
  const std::int64_t columns = place.numel / rows;
  const at::Tensor& buffer = bucket.buffer();
  const at::Tensor gradient = buffer.as_strided(place.sizes, place.strides, buffer.storage_offset() + place.offset);
  const at::Tensor values = gradient.contiguous().to(type).view({rows, columns});
  const bool in_place = values.is_alias_of(gradient);
  at::Tensor residual;
  if (state.options().use_error_feedback) {
    const at::Tensor error = remembered_error(state, bucket, name, place.numel, type);
    if (error.defined()) at::Tensor(values).view(-1).add_(error);
    // The new error may overwrite the old one: it is written only when the result is known to be finite.
    residual =
        error.defined() ? state.memory().room_for_error(name, error) : at::empty({place.numel}, values.options());
  }
  return {{.key = name,
           .parameters = {name},
           .rows = rows,
           .columns = columns,
           .rank = rank,
           .values = values,
           .residual = residual},
          {gradient, in_place}};
}

bool pays(std::int64_t rows, std::int64_t columns, std::int64_t rank, double min_rate) {
  return static_cast<double>((rows + columns) * rank) * min_rate < static_cast<double>(rows * columns);
}

// The order in which PyTorch draws random numbers for matrices: by shape, and shapes in the order of their first
// matrices.
std::vector<std::size_t> by_shape(const std::vector<LowRankMatrix>& matrices) {
  std::vector<std::size_t> order;
  std::vector<bool> taken(matrices.size());
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    for (std::size_t j = i; j < matrices.size(); ++j) {
      if (taken[j] || matrices[j].rows != matrices[i].rows || matrices[j].columns != matrices[i].columns) continue;
      taken[j] = true;
      order.push_back(j);
    }
  }
  return order;
}

Division divide(const PowerSGDState& state, const GradBucket& bucket, at::ScalarType type) {
  const PowerSGDOptions& options = state.options();
  Division found;
  std::int64_t before = 0;
  std::int64_t after = 0;
  for (std::size_t slot = 0; slot < bucket.layout().slots.size(); ++slot) {
    const BucketLayout::Slot& place = bucket.layout().slots[slot];
    const std::int64_t rows = place.sizes.empty() ? 1 : place.sizes.front();
    const std::int64_t columns = rows == 0 ? 0 : place.numel / rows;
    const std::int64_t rank = std::min({rows, columns, options.matrix_approximation_rank});
    before += place.numel;
    if (!place.sizes.empty() && pays(rows, columns, rank, options.min_compression_rate)) {
      auto [matrix, compressed] = make_matrix(state, bucket, slot, rank, type);
      found.matrices.push_back(std::move(matrix));
      found.compressed.push_back(std::move(compressed));
      after += (rows + columns) * rank;
    } else {
      found.uncompressed.push_back(bucket.buffer().narrow(0, place.offset, place.numel));
      after += place.numel;
    }
  }
  state.memory().count(before, after);
  Division ordered;
  for (const std::size_t i : by_shape(found.matrices)) {
    ordered.matrices.push_back(std::move(found.matrices[i]));
    ordered.compressed.push_back(std::move(found.compressed[i]));
  }
  ordered.uncompressed = std::move(found.uncompressed);
  return ordered;
}

double largest_in(at::ScalarType type) {
  return type == at::kHalf ? static_cast<double>(std::numeric_limits<c10::Half>::max())
                           : static_cast<double>(std::numeric_limits<c10::BFloat16>::max());
}

// Writes `values` into `target`, which has the same sizes. When the target's dtype is narrower, rounds the values, and
// replaces values beyond the largest number by the largest number. Adds the difference to `residual`, if defined.
void write_rounded(const at::Tensor& values, at::Tensor target, at::Tensor residual) {
  if (target.scalar_type() == values.scalar_type()) {
    target.copy_(values);
    return;
  }
  const double largest = largest_in(target.scalar_type());
  target.copy_(values.clamp(-largest, largest));
  if (residual.defined()) residual.add_(values).sub_(target.to(values.scalar_type()));
}

void remember_factor(const PowerSGDState& state, const LowRankMatrix& matrix) {
  if (state.options().warm_start) state.memory().keep_factor(matrix.key, matrix.parameters, matrix.q.clone());
}

void write_back(const PowerSGDState& state, const LowRankMatrix& matrix, Compressed& compressed) {
  at::Tensor& gradient = compressed.gradient;
  if (!matrix.finite) {
    gradient.fill_(kNan);
    return;
  }
  if (!compressed.in_place) {
    const at::Tensor residual = matrix.residual.defined() ? matrix.residual.view(gradient.sizes()) : at::Tensor();
    write_rounded(matrix.values.view(gradient.sizes()), gradient, residual);
  }
  remember_factor(state, matrix);
  if (matrix.residual.defined()) state.memory().keep_error(matrix.key, matrix.residual);
}

// The whole bucket as a square matrix, with the errors of its parameters added.
LowRankMatrix make_square(const PowerSGDState& state, const GradBucket& bucket, at::ScalarType type) {
  const std::int64_t numel = bucket.buffer().numel();
  auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(numel)));
  while (side * side < numel) ++side;
  const at::Tensor flat = at::zeros({side * side}, bucket.buffer().options().dtype(type));
  flat.narrow(0, 0, numel).copy_(bucket.buffer());
  if (state.options().use_error_feedback) {
    const std::vector<at::Tensor> gradients = bucket.layout().views(flat);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor& gradient = gradients[i];
      const at::Tensor error =
          remembered_error(state, bucket, bucket.parameter_names()[i], gradient.numel(), gradient.scalar_type());
      if (error.defined()) gradient.add_(error.view(gradient.sizes()));
    }
  }
  return {.key = join(bucket.parameter_names(), " "),
          .parameters = bucket.parameter_names(),
          .rows = side,
          .columns = side,
          .rank = std::min(side, state.options().matrix_approximation_rank),
          .values = flat.view({side, side}),
          .residual = state.options().use_error_feedback ? at::empty_like(flat) : at::Tensor()};
}

void write_back_square(const PowerSGDState& state, const GradBucket& bucket, const LowRankMatrix& square) {
  at::Tensor buffer = bucket.buffer();
  const auto front = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.view(-1).narrow(0, 0, buffer.numel()) : tensor;
  };
  if (!square.finite) {
    buffer.fill_(kNan);
    return;
  }
  const at::Tensor residual = front(square.residual);
  write_rounded(front(square.values), buffer, residual);
  remember_factor(state, square);
  if (!residual.defined()) return;
  const std::vector<at::Tensor> errors = bucket.layout().views(residual);
  for (std::size_t i = 0; i < errors.size(); ++i) {
    at::Tensor error = errors[i].clone(at::MemoryFormat::Contiguous).view(-1);
    state.memory().keep_error(bucket.parameter_names()[i], std::move(error));
  }
}

using Body = Future (*)(const std::shared_ptr<PowerSGDState>&, GradBucket&);

class PowerSGDHook final : public CommHook, public Revertible, public internal::HasWarmUp {
 public:
  PowerSGDHook(HookTraits traits, std::shared_ptr<PowerSGDState> state, Body body)
      : CommHook(std::move(traits)), state_(std::move(state)), body_(body) {}

  Future run(GradBucket& bucket) override {
    for (const std::size_t place : bucket.absent()) state_->memory().hold(bucket.parameter_names()[place]);
    return body_(state_, bucket);
  }

  void revert_unused(const std::vector<std::string>& names) override {
    for (const std::string& name : names) state_->memory().restore(name);
  }
  void end_iteration() override { state_->memory().release(); }

  HookState state_dict() const override {
    HookState state = state_->state_dict();
    state["hook"] = traits().name;
    return state;
  }

  void load_state_dict(const HookState& state) override {
    const auto saved = state.find("hook");
    if (saved == state.end() || !saved->second.isString() || saved->second.toStringRef() != traits().name) {
      throw InvalidArgument(concat("The state to load is not one of the hook '", traits().name, "'",
                                   saved != state.end() && saved->second.isString()
                                       ? concat("; it was saved by '", saved->second.toStringRef(), "'")
                                       : std::string(),
                                   "."));
    }
    state_->load_state_dict(state);
  }

  void keep_state() override { state_->memory().keep(); }
  void revert_state() override { state_->memory().revert(); }

  std::int64_t warm_up() const override { return state_->options().start_iteration; }
  void end_warm_up() override { state_->memory().end_warm_up(); }

 private:
  const std::shared_ptr<PowerSGDState> state_;
  const Body body_;
};

// The options on which ranks must agree. Numbers have enough digits to tell any two values apart.
std::string describe(const PowerSGDOptions& options) {
  return concat(std::setprecision(std::numeric_limits<double>::max_digits10),
                "rank=", options.matrix_approximation_rank, ",start=", options.start_iteration,
                ",min_rate=", options.min_compression_rate, ",error_feedback=", options.use_error_feedback,
                ",warm_start=", options.warm_start, ",epsilon=", options.orthogonalization_epsilon,
                ",seed=", options.random_seed, ",same_shape=", options.batch_tensors_with_same_shape);
}

std::shared_ptr<CommHook> make(const char* name, std::shared_ptr<PowerSGDState> state, Body body) {
  if (state == nullptr) throw InvalidArgument(concat("The hook '", name, "' got a null state."));
  HookTraits traits{.name = name, .parallel_safe = true, .identity = concat(name, ":", describe(state->options()))};
  if (state->group() != nullptr) traits.groups.push_back(state->group());
  return std::make_shared<PowerSGDHook>(std::move(traits), std::move(state), body);
}

}  // namespace

Future power_sgd_hook(const std::shared_ptr<PowerSGDState>& state, GradBucket& bucket) {
  if (!bucket.buffer().is_floating_point()) return allreduce_hook(state->group(), bucket);
  const at::ScalarType type = internal::compute_type(bucket, "power_sgd");
  if (!state->memory().begin(bucket)) return allreduce_hook(state->group(), bucket);
  Division division = divide(*state, bucket, type);
  if (division.matrices.empty()) {
    internal::approximate(*state, bucket, division.matrices);
    return allreduce_hook(state->group(), bucket);
  }
  ProcessGroup& over = internal::group_of(*state, bucket);
  internal::average_together(over, bucket.divisor(over), division.uncompressed);
  internal::approximate(*state, bucket, division.matrices);
  for (std::size_t i = 0; i < division.matrices.size(); ++i) {
    write_back(*state, division.matrices[i], division.compressed[i]);
  }
  return completed_future(bucket.buffer());
}

Future batched_power_sgd_hook(const std::shared_ptr<PowerSGDState>& state, GradBucket& bucket) {
  if (!bucket.buffer().is_floating_point()) return allreduce_hook(state->group(), bucket);
  const at::ScalarType type = internal::compute_type(bucket, "batched_power_sgd");
  if (!state->memory().begin(bucket) || bucket.buffer().numel() == 0) return allreduce_hook(state->group(), bucket);
  std::vector<LowRankMatrix> square{make_square(*state, bucket, type)};
  state->memory().count(bucket.buffer().numel(), 2 * square[0].rows * square[0].rank);
  internal::approximate(*state, bucket, square);
  write_back_square(*state, bucket, square[0]);
  return completed_future(bucket.buffer());
}

std::shared_ptr<CommHook> make_power_sgd_hook(std::shared_ptr<PowerSGDState> state) {
  return make("power_sgd", std::move(state), power_sgd_hook);
}

std::shared_ptr<CommHook> make_batched_power_sgd_hook(std::shared_ptr<PowerSGDState> state) {
  return make("batched_power_sgd", std::move(state), batched_power_sgd_hook);
}

std::shared_ptr<CommHook> make_power_sgd_hook(PowerSGDOptions options, std::shared_ptr<ProcessGroup> group) {
  return make_power_sgd_hook(std::make_shared<PowerSGDState>(options, std::move(group)));
}

std::shared_ptr<CommHook> make_batched_power_sgd_hook(PowerSGDOptions options, std::shared_ptr<ProcessGroup> group) {
  return make_batched_power_sgd_hook(std::make_shared<PowerSGDState>(options, std::move(group)));
}

}  // namespace gradwire
