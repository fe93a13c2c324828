// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// PowerSGD's random numbers and orthonormalization: plain scalar code, which gives the same bits on every processor.
#include <algorithm>
#include <array>
#include <cmath>

#include "gradwire/hooks/power_sgd_internal.h"

namespace gradwire::internal {
namespace {

// The number of partial sums: a fixed order of operations that compilers can vectorize.
constexpr std::size_t kPartialSums = 8;

double dot(const double* a, const double* b, std::size_t length) {
  std::array<double, kPartialSums> partial{};
  std::size_t i = 0;
  for (; i + kPartialSums <= length; i += kPartialSums) {
    for (std::size_t l = 0; l < kPartialSums; ++l) partial[l] += a[i + l] * b[i + l];
  }
  for (std::size_t l = 0; i + l < length; ++l) partial[l] += a[i + l] * b[i + l];
  for (std::size_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) partial[l] += partial[l + half];
  }
  return partial[0];
}

// column -= (earlier . column) earlier, for each of the `count` earlier columns.
void take_out(const double* earlier, std::size_t count, std::size_t length, double* column) {
  for (std::size_t k = 0; k < count; ++k) {
    const double* other = earlier + k * length;
    const double part = dot(other, column, length);
    for (std::size_t i = 0; i < length; ++i) column[i] -= part * other[i];
  }
}

void divide(double* column, std::size_t length, double by) {
  for (std::size_t i = 0; i < length; ++i) column[i] /= by;
}

double largest_of(const double* column, std::size_t length) {
  double largest = 0;
  for (std::size_t i = 0; i < length; ++i) largest = std::max(largest, std::fabs(column[i]));
  return largest;
}

// A column whose norm falls below this part of its norm before consists of rounding errors of double precision only.
constexpr double kNegligible = 1e-12;

// Sets `column` to the first unit vector that is not nearly in the span of the earlier columns, made orthogonal to
// them. There is such a vector: with fewer earlier columns than dimensions, some unit vector has at least 1 / length of
// its square outside of the span.
void replace(const double* earlier, std::size_t count, std::size_t length, double* column) {
  const double enough = 0.5 / std::sqrt(static_cast<double>(length));
  for (std::size_t unit = 0; unit < length; ++unit) {
    std::fill_n(column, length, 0.0);
    column[unit] = 1;
    take_out(earlier, count, length, column);
    const double norm = std::sqrt(dot(column, column, length));
    if (norm < enough) continue;
    divide(column, length, norm);
    take_out(earlier, count, length, column);
    divide(column, length, std::sqrt(dot(column, column, length)));
    return;
  }
}

// Makes `column` orthogonal to the earlier columns and normalizes it. First scales `column` so that its largest element
// is 1: then squares neither overflow nor underflow.
void finish_column(const double* earlier, std::size_t count, std::size_t length, double epsilon, double* column) {
  const double scale = largest_of(column, length);
  if (scale == 0) return replace(earlier, count, length, column);
  divide(column, length, scale);
  if (epsilon > 0) {
    // As PyTorch computes: one subtraction, and norms a little below 1.
    take_out(earlier, count, length, column);
    const double norm = std::sqrt(dot(column, column, length));
    if (norm == 0) return replace(earlier, count, length, column);
    return divide(column, length, norm + epsilon / scale);
  }
  const double before = std::sqrt(dot(column, column, length));
  take_out(earlier, count, length, column);
  const double left = std::sqrt(dot(column, column, length));
  if (left <= before * kNegligible) return replace(earlier, count, length, column);
  divide(column, length, left);
  if (count == 0) return;
  take_out(earlier, count, length, column);
  divide(column, length, std::sqrt(dot(column, column, length)));
}

}  // namespace

std::uint32_t NumpyDraws::next() {
  // As RandomState: takes the number of bits that the largest result needs, and repeats until the result is small
  // enough.
  constexpr std::uint32_t kLargest = 999'999'999;
  constexpr std::uint32_t kMask = (1u << 30) - 1;
  std::uint32_t value = 0;
  do {
    value = static_cast<std::uint32_t>(engine_()) & kMask;
  } while (value > kLargest);
  return value;
}

void NumpyDraws::skip(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) next();
}

template <class T>
void orthonormalize(T* columns, std::size_t count, std::size_t length, double epsilon) {
  std::vector<double> work(columns, columns + count * length);
  for (std::size_t k = 0; k < count; ++k) finish_column(work.data(), k, length, epsilon, work.data() + k * length);
  for (std::size_t i = 0; i < work.size(); ++i) columns[i] = static_cast<T>(work[i]);
}

template void orthonormalize(float*, std::size_t, std::size_t, double);
template void orthonormalize(double*, std::size_t, std::size_t, double);

}  // namespace gradwire::internal
