// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The steps of both forms of PowerSGD: a random or kept Q, then P, Q and the product.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/hooks/power_sgd_internal.h"
#include "gradwire/kernels/matrix.h"
#include "gradwire/kernels/quantize.h"

namespace gradwire::internal {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

// The largest magnitude; infinity or NaN when a value is.
float largest_magnitude(const float* values, std::size_t count) { return kernels::max_magnitude(values, count); }
double largest_magnitude(const double* values, std::size_t count) {
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double magnitude = std::fabs(values[i]);
    if (!(magnitude <= largest)) largest = magnitude;
    if (std::isnan(largest)) break;
  }
  return largest;
}

// The Ps of all matrices lie in one tensor, and the Qs in another one, so that each takes one collective.
struct Factors {
  at::Tensor ps;
  at::Tensor qs;
};

Factors allocate_factors(std::vector<LowRankMatrix>& matrices) {
  std::int64_t p_count = 0;
  std::int64_t q_count = 0;
  for (const LowRankMatrix& matrix : matrices) {
    p_count += matrix.rank * matrix.rows;
    q_count += matrix.rank * matrix.columns;
  }
  const auto options = matrices.front().values.options();
  // Zeros, because the parts of matrices that are not finite are summed too.
  Factors factors{at::zeros({p_count}, options), at::zeros({q_count}, options)};
  std::int64_t p_at = 0;
  std::int64_t q_at = 0;
  for (LowRankMatrix& matrix : matrices) {
    matrix.p = factors.ps.narrow(0, p_at, matrix.rank * matrix.rows).view({matrix.rank, matrix.rows});
    matrix.q = factors.qs.narrow(0, q_at, matrix.rank * matrix.columns).view({matrix.rank, matrix.columns});
    p_at += matrix.rank * matrix.rows;
    q_at += matrix.rank * matrix.columns;
  }
  return factors;
}

// The Q of the step before; undefined when there is none.
at::Tensor remembered(const PowerSGDState& state, const LowRankMatrix& matrix) {
  if (!state.options().warm_start) return {};
  at::Tensor factor = state.memory().factor(matrix.key);
  if (factor.defined() && factor.sizes() != matrix.q.sizes()) {
    throw InvalidArgument(concat("PowerSGD: the remembered Q of '", matrix.key, "' is ", factor.sizes(),
                                 ", but its gradient takes ", matrix.q.sizes(),
                                 ". Was the state of another model loaded?"));
  }
  return factor;
}

// Fills the Qs of the matrices [first, last), which have one shape, with the numbers of
// torch.randn(last - first, columns, rank).
void randomize(std::vector<LowRankMatrix*>& cold, std::size_t first, std::size_t last, at::Generator& generator,
               at::ScalarType dtype) {
  const LowRankMatrix& shape = *cold[first];
  const auto count = static_cast<std::int64_t>(last - first);
  const at::Tensor random = at::randn({count, shape.columns, shape.rank}, generator, at::TensorOptions().dtype(dtype));
  for (std::size_t i = first; i < last; ++i) {
    cold[i]->q.copy_(random[static_cast<std::int64_t>(i - first)].t());
  }
}

void fill_qs(const PowerSGDState& state, const GradBucket& bucket, std::vector<LowRankMatrix>& matrices) {
  std::vector<LowRankMatrix*> cold;
  for (LowRankMatrix& matrix : matrices) {
    const at::Tensor factor = remembered(state, matrix);
    if (factor.defined()) {
      matrix.q.copy_(factor);
    } else {
      cold.push_back(&matrix);
    }
  }
  // Without a warm start a bucket takes its draw also when it has no matrix, so the draws of other buckets stay the
  // same.
  if (cold.empty() && state.options().warm_start) return;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(state.memory().draw(bucket.index()));
  for (std::size_t first = 0; first < cold.size();) {
    std::size_t last = first + 1;
    const auto same_shape = [&](const LowRankMatrix& other) {
      return other.rows == cold[first]->rows && other.columns == cold[first]->columns;
    };
    if (state.options().batch_tensors_with_same_shape) {
      while (last < cold.size() && same_shape(*cold[last])) ++last;
    }
    randomize(cold, first, last, generator, bucket.buffer().scalar_type());
    first = last;
  }
}

template <class T>
class Approximation {
 public:
  Approximation(const PowerSGDState& state, const GradBucket& bucket, double epsilon)
      : state_(state), bucket_(bucket), epsilon_(epsilon) {}

  void compute_p(LowRankMatrix& matrix) const {
    orthonormalize(data(matrix.q), size(matrix.rank), size(matrix.columns), epsilon_of(matrix));
    kernels::skinny_product(data(matrix.values), size(matrix.rows), size(matrix.columns), data(matrix.q),
                            size(matrix.rank), data(matrix.p));
  }

  void compute_q(LowRankMatrix& matrix) const {
    matrix.finite = std::isfinite(largest(matrix.p));
    if (!matrix.finite) {
      matrix.q.zero_();
      return;
    }
    orthonormalize(data(matrix.p), size(matrix.rank), size(matrix.rows), epsilon_of(matrix));
    kernels::skinny_product_transposed(data(matrix.values), size(matrix.rows), size(matrix.columns), data(matrix.p),
                                       size(matrix.rank), data(matrix.q));
  }

  void finish(LowRankMatrix& matrix) const {
    // No element of P exceeds 1 in magnitude. So with this bound neither the product nor the error overflows.
    const T bound = std::numeric_limits<T>::max() / static_cast<T>(4 * matrix.rank);
    matrix.finite = matrix.finite && largest(matrix.q) < bound;
    if (!matrix.finite) return;
    kernels::expand(data(matrix.p), data(matrix.q), size(matrix.rank), size(matrix.rows), size(matrix.columns),
                    data(matrix.values), matrix.residual.defined() ? data(matrix.residual) : nullptr);
  }

 private:
  static T* data(const at::Tensor& tensor) { return tensor.mutable_data_ptr<T>(); }
  static T largest(const at::Tensor& tensor) { return largest_magnitude(data(tensor), size(tensor.numel())); }
  // As in PyTorch, which uses epsilon with Gram-Schmidt, and none with QR.
  double epsilon_of(const LowRankMatrix& matrix) const {
    const bool half = bucket_.buffer().element_size() < 4;
    return matrix.rank <= 2 || half ? epsilon_ : 0;
  }

  const PowerSGDState& state_;
  const GradBucket& bucket_;
  const double epsilon_;
};

// The steps on a device: the products run there. The Ps and Qs, which are the encoding, come to the host to be made
// orthonormal, so that the ranks need no arithmetic in common but that of their hosts.
template <class T>
class DeviceApproximation {
 public:
  DeviceApproximation(const PowerSGDState& state, const GradBucket& bucket)
      : epsilon_(state.options().orthogonalization_epsilon), half_(bucket.buffer().element_size() < 4) {}

  void compute_p(LowRankMatrix& matrix) const {
    make_orthonormal(matrix.q, matrix.rank, matrix.columns);
    matrix.p.copy_(at::matmul(matrix.q, matrix.values.t()));
  }

  void compute_q(LowRankMatrix& matrix) const {
    matrix.finite = make_orthonormal(matrix.p, matrix.rank, matrix.rows);
    if (!matrix.finite) {
      matrix.q.zero_();
      return;
    }
    matrix.q.copy_(at::matmul(matrix.p, matrix.values));
  }

  void finish(LowRankMatrix& matrix) const {
    const T bound = std::numeric_limits<T>::max() / static_cast<T>(4 * matrix.rank);
    matrix.finite = matrix.finite && at::amax(at::abs(matrix.q)).item<T>() < bound;
    if (!matrix.finite) return;
    const at::Tensor product = at::matmul(matrix.p.t(), matrix.q);
    if (matrix.residual.defined()) matrix.residual.copy_((matrix.values - product).view(matrix.residual.sizes()));
    matrix.values.copy_(product);
  }

 private:
  // Returns false, and changes nothing, when a value is not finite.
  bool make_orthonormal(const at::Tensor& runs, std::int64_t rank, std::int64_t length) const {
    const at::Tensor here = runs.to(at::kCPU).contiguous();
    T* const values = here.mutable_data_ptr<T>();
    if (!std::isfinite(largest_magnitude(values, size(here.numel())))) return false;
    orthonormalize(values, size(rank), size(length), rank <= 2 || half_ ? epsilon_ : 0);
    runs.copy_(here);
    return true;
  }

  const double epsilon_;
  const bool half_;
};

template <class Steps>
void approximate_by(const Steps& steps, const PowerSGDState& state, GradBucket& bucket,
                    std::vector<LowRankMatrix>& matrices) {
  ProcessGroup& group = group_of(state, bucket);
  const Factors factors = allocate_factors(matrices);
  fill_qs(state, bucket, matrices);
  for (LowRankMatrix& matrix : matrices) steps.compute_p(matrix);
  group.all_reduce({factors.ps})->wait();
  for (LowRankMatrix& matrix : matrices) steps.compute_q(matrix);
  group.all_reduce({factors.qs})->wait();
  if (const int divisor = bucket.divisor(group); divisor != 1) at::Tensor(factors.qs).div_(divisor);
  for (LowRankMatrix& matrix : matrices) steps.finish(matrix);
}

template <class T>
void approximate_in(const PowerSGDState& state, GradBucket& bucket, std::vector<LowRankMatrix>& matrices) {
  if (bucket.buffer().is_cpu()) {
    approximate_by(Approximation<T>(state, bucket, state.options().orthogonalization_epsilon), state, bucket, matrices);
  } else {
    approximate_by(DeviceApproximation<T>(state, bucket), state, bucket, matrices);
  }
}

}  // namespace

at::ScalarType compute_type(const GradBucket& bucket, const char* hook) {
  const at::ScalarType type = bucket.buffer().scalar_type();
  if (type == at::kDouble) return at::kDouble;
  if (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) return at::kFloat;
  throw UnsupportedError(concat("The hook '", hook, "' takes float16, bfloat16, float32 and float64; bucket ",
                                bucket.index(), " is ", type, "."));
}

ProcessGroup& group_of(const PowerSGDState& state, GradBucket& bucket) {
  return state.group() != nullptr ? *state.group() : bucket.group();
}

void approximate(const PowerSGDState& state, GradBucket& bucket, std::vector<LowRankMatrix>& matrices) {
  if (matrices.empty()) {
    fill_qs(state, bucket, matrices);
  } else if (matrices.front().values.scalar_type() == at::kDouble) {
    approximate_in<double>(state, bucket, matrices);
  } else {
    approximate_in<float>(state, bucket, matrices);
  }
}

}  // namespace gradwire::internal
