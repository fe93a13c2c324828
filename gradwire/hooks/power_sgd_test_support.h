// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// For the tests of PowerSGD: buckets made by hand, and the algorithm in its plainest form.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/hooks/power_sgd.h"

namespace gradwire::testing {

struct NamedGradient {
  std::string name;
  at::Tensor gradient;
};
using Gradients = std::vector<NamedGradient>;

// A bucket with copies of `gradients`, in their own strides.
inline GradBucket make_bucket(const Gradients& gradients, ProcessGroup& group, std::uint32_t iteration,
                              std::size_t index = 0, bool is_last = true) {
  auto layout = std::make_shared<BucketLayout>();
  layout->index = index;
  for (const auto& [name, gradient] : gradients) {
    layout->dtype = gradient.scalar_type();
    layout->append(layout->slots.size(), gradient, gradient, name);
  }
  at::Tensor buffer = at::empty({layout->numel}, at::TensorOptions().dtype(layout->dtype));
  const auto views = layout->views(buffer);
  for (std::size_t i = 0; i < views.size(); ++i) at::Tensor(views[i]).copy_(gradients[i].gradient);
  return GradBucket(layout, buffer, group, group.size(), is_last, iteration);
}

// A group of `size` ranks that all do what this one does, so that a sum is a multiple; counts bytes.
class EchoGroup final : public ProcessGroup {
 public:
  explicit EchoGroup(int size = 1) : ProcessGroup(0, size) {}
  std::size_t bytes = 0;
  int collectives = 0;

 protected:
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions&) override {
    bytes += tensors[0].nbytes();
    ++collectives;
    tensors[0].mul_(size());
    return std::make_shared<CountingWork>(tensors, calls_);
  }

 private:
  Calls calls_;
};

// What the hook makes of `gradients` in one bucket, as tensors of their own.
inline std::vector<at::Tensor> run_hook(CommHook& hook, ProcessGroup& group, const Gradients& gradients,
                                        std::uint32_t iteration, std::size_t index = 0, bool is_last = true) {
  GradBucket bucket = make_bucket(gradients, group, iteration, index, is_last);
  const Future future = hook.run(bucket);
  future->waitAndThrow();
  const at::Tensor result = tensor_of(*future);
  std::vector<at::Tensor> out;
  for (const at::Tensor& view : bucket.layout().views(result)) out.push_back(view.clone());
  return out;
}

// PowerSGD for all ranks at once, in float64, one gradient after the other, without any of the hook's code.
class PlainPowerSGD {
 public:
  PlainPowerSGD(int world, PowerSGDOptions options) : world_(static_cast<std::size_t>(world)), options_(options) {}

  // gradients[rank][parameter] -> the result for each parameter. `seed` is for those that need a random Q.
  std::vector<at::Tensor> step(const std::vector<std::vector<at::Tensor>>& gradients, std::uint64_t seed) {
    const std::size_t count = gradients[0].size();
    errors_.resize(count);
    qs_.resize(count);
    std::vector<at::Tensor> results(count);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    for (const std::size_t i : by_shape(gradients[0])) results[i] = reduce(column(gradients, i), i, generator);
    return results;
  }
  const at::Tensor& error(std::size_t parameter, std::size_t rank) const { return errors_[parameter][rank]; }

 private:
  static at::Tensor matrix_of(const at::Tensor& tensor) {
    return tensor.to(at::kDouble).reshape({tensor.size(0), tensor.numel() / tensor.size(0)});
  }
  static std::vector<at::Tensor> column(const std::vector<std::vector<at::Tensor>>& gradients, std::size_t i) {
    std::vector<at::Tensor> out;
    for (const auto& of_rank : gradients) out.push_back(matrix_of(of_rank[i]));
    return out;
  }
  static std::vector<std::size_t> by_shape(const std::vector<at::Tensor>& tensors) {
    std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
    std::vector<std::pair<std::size_t, std::size_t>> keyed;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::pair shape(tensors[i].size(0), tensors[i].numel() / tensors[i].size(0));
      const auto found = std::find(shapes.begin(), shapes.end(), shape);
      keyed.emplace_back(static_cast<std::size_t>(found - shapes.begin()), i);
      if (found == shapes.end()) shapes.push_back(shape);
    }
    std::sort(keyed.begin(), keyed.end());
    std::vector<std::size_t> order;
    for (const auto& [shape, i] : keyed) order.push_back(i);
    return order;
  }
  static at::Tensor orthogonal(const at::Tensor& matrix) { return std::get<0>(at::linalg_qr(matrix)); }

  at::Tensor reduce(std::vector<at::Tensor> matrices, std::size_t parameter, at::Generator& generator) {
    const std::int64_t n = matrices[0].size(0);
    const std::int64_t m = matrices[0].size(1);
    const std::int64_t rank = std::min({n, m, options_.matrix_approximation_rank});
    const auto ranks = static_cast<double>(world_);
    if (!(static_cast<double>((n + m) * rank) * options_.min_compression_rate < static_cast<double>(n * m))) {
      at::Tensor sum = at::zeros_like(matrices[0]);
      for (const auto& matrix : matrices) sum += matrix;
      return sum / ranks;
    }
    auto& errors = errors_[parameter];
    if (options_.use_error_feedback && errors.empty()) errors.assign(world_, at::zeros_like(matrices[0]));
    if (options_.use_error_feedback)
      for (std::size_t r = 0; r < world_; ++r) matrices[r] = matrices[r] + errors[r];
    at::Tensor q = qs_[parameter];
    if (!options_.warm_start || !q.defined()) q = at::randn({1, m, rank}, generator)[0].to(at::kDouble);
    q = orthogonal(q);
    at::Tensor p = at::zeros({n, rank}, at::kDouble);
    for (const auto& matrix : matrices) p += at::matmul(matrix, q);
    p = orthogonal(p);
    q = at::zeros({m, rank}, at::kDouble);
    for (const auto& matrix : matrices) q += at::matmul(matrix.t(), p);
    q /= ranks;
    qs_[parameter] = q;
    const at::Tensor result = at::matmul(p, q.t());
    if (options_.use_error_feedback)
      for (std::size_t r = 0; r < world_; ++r) errors[r] = matrices[r] - result;
    return result;
  }

  std::size_t world_;
  PowerSGDOptions options_;
  std::vector<std::vector<at::Tensor>> errors_;  // [parameter][rank]
  std::vector<at::Tensor> qs_;
};

namespace power_sgd_test {

// What numpy.random.RandomState(0).randint(1000000000) gives at first.
inline constexpr std::uint32_t kFirstDraws[] = {209652396, 398764591, 924231285, 404868288, 441365315, 463622907};

inline PowerSGDOptions options_of(std::int64_t rank, double min_rate = 1) {
  PowerSGDOptions options;
  options.matrix_approximation_rank = rank;
  options.start_iteration = 2;
  options.min_compression_rate = min_rate;
  return options;
}

// Past the plain iterations.
template <class State>
void skip_start(State& hook, ProcessGroup& group, const Gradients& gradients, std::uint32_t iterations = 2) {
  for (std::uint32_t i = 0; i < iterations; ++i) (void)run_hook(*hook, group, gradients, i);
}

inline Gradients mixed_gradients(int seed) {
  return {{"a.weight", random_tensor({24, 20}, seed)},
          {"a.bias", random_tensor({24}, seed + 1)},
          {"b.weight", random_tensor({18, 3, 4, 2}, seed + 2)},
          {"c.weight", random_tensor({24, 20}, seed + 3)}};
}

inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return a.size() == b.size();
}

}  // namespace power_sgd_test
}  // namespace gradwire::testing
