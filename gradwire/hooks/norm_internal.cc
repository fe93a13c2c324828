// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/norm_internal.h"

#include <ATen/Functions.h>

#include <cmath>
#include <cstddef>

#include "gradwire/process_group/flat_tensors_internal.h"
#include "gradwire/process_group/tensor_memory_internal.h"

namespace gradwire::internal {
namespace {

constexpr std::size_t kPartialSums = 8;

template <class T>
double square(T value) noexcept {
  const auto wide = static_cast<double>(value);
  return wide * wide;
}

template <class T>
double sum_of_squares(const T* values, std::size_t count) noexcept {
  double partial[kPartialSums] = {};
  std::size_t i = 0;
  for (; count - i >= kPartialSums; i += kPartialSums) {
    for (std::size_t j = 0; j < kPartialSums; ++j) partial[j] += square(values[i + j]);
  }
  for (std::size_t j = 0; i + j < count; ++j) partial[j] += square(values[i + j]);
  for (std::size_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) partial[j] += partial[j + half];
  }
  return partial[0];
}

// Returns numbers of the magnitudes of `tensor`, as a dense tensor: the elements, without a conjugation or negation
// that is still to be done. Of a sparse tensor, the elements that it holds, each once.
at::Tensor magnitudes(const at::Tensor& tensor) {
  return without_lazy_signs(tensor.is_sparse() ? tensor.detach().coalesce().values() : tensor.detach());
}

// Returns these numbers as a 1-D, contiguous, real tensor.
at::Tensor flat(const at::Tensor& tensor) {
  at::Tensor values = magnitudes(tensor);
  values = values.is_non_overlapping_and_dense() ? values.as_strided({values.numel()}, {1}) : values.reshape(-1);
  if (values.is_complex()) values = at::view_as_real(values).reshape(-1);
  return values;
}

at::Tensor squares_on_device(const at::Tensor& tensor) { return at::sum(at::square(flat(tensor).to(at::kDouble))); }

}  // namespace

double sum_of_squares(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  if (!tensor.is_cpu()) return squares_on_device(tensor).item<double>();
  const at::Tensor values = flat(tensor);
  const auto count = static_cast<std::size_t>(values.numel());
  switch (values.scalar_type()) {
    case at::kFloat:
      return sum_of_squares(values.const_data_ptr<float>(), count);
    case at::kHalf:
      return sum_of_squares(values.const_data_ptr<at::Half>(), count);
    case at::kBFloat16:
      return sum_of_squares(values.const_data_ptr<at::BFloat16>(), count);
    default:
      return sum_of_squares(values.to(at::kDouble).const_data_ptr<double>(), count);
  }
}

double sum_of_squares(const std::vector<at::Tensor>& tensors) {
  double total = 0;
  std::vector<at::Tensor> on_devices;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (tensor.is_cpu()) {
      total += sum_of_squares(tensor);
    } else {
      on_devices.push_back(squares_on_device(tensor));
    }
  }
  for (const auto& of_device : by_type_and_device(on_devices)) total += at::sum(at::stack(of_device)).item<double>();
  return total;
}

double max_magnitude(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const at::Tensor values = magnitudes(tensor);
  if (values.numel() == 0) return 0;
  // The order of the elements does not matter for a maximum.
  return values.abs().max().item<double>();
}

}  // namespace gradwire::internal
