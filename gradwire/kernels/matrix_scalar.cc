// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The reference of matrix.h's loops.
#include <algorithm>

#include "gradwire/kernels/matrix_internal.h"

namespace gradwire::kernels {
namespace {

template <class T>
void product(const T* matrix, std::size_t rows, std::size_t columns, const T* factor, std::size_t rank,
             T* result) noexcept {
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t k = 0; k < rank; ++k) {
      T partial[kMatrixPartialSums] = {};
      for (std::size_t j = 0; j < columns; ++j) {
        partial[j % kMatrixPartialSums] += matrix[i * columns + j] * factor[k * columns + j];
      }
      result[k * rows + i] = fold_partial_sums(partial);
    }
  }
}

template <class T>
void product_transposed(const T* matrix, std::size_t rows, std::size_t columns, const T* factor, std::size_t rank,
                        T* result) noexcept {
  std::fill_n(result, rank * columns, T{0});
  for (std::size_t first = 0; first < rows; first += kMatrixBlockRows) {
    const std::size_t last = std::min(rows, first + kMatrixBlockRows);
    for (std::size_t k = 0; k < rank; ++k) {
      for (std::size_t j = 0; j < columns; ++j) {
        T sum{0};
        for (std::size_t i = first; i < last; ++i) sum += matrix[i * columns + j] * factor[k * rows + i];
        result[k * columns + j] += sum;
      }
    }
  }
}

template <class T>
void expand(const T* left, const T* right, std::size_t rank, std::size_t rows, std::size_t columns, T* matrix,
            T* residual) noexcept {
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      T sum{0};
      for (std::size_t k = 0; k < rank; ++k) sum += left[k * rows + i] * right[k * columns + j];
      T& element = matrix[i * columns + j];
      if (residual != nullptr) residual[i * columns + j] = element - sum;
      element = sum;
    }
  }
}

template <class T>
constexpr MatrixLoopsOf<T> kLoopsOf{&product<T>, &product_transposed<T>, &expand<T>};

}  // namespace

const MatrixLoops& matrix_loops_scalar() noexcept {
  static constexpr MatrixLoops kLoops{kLoopsOf<float>, kLoopsOf<double>};
  return kLoops;
}

}  // namespace gradwire::kernels
