// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The loops behind matrix.h for one instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire::kernels {

// Functions of one instruction set, with the contracts of matrix.h.
template <class T>
struct MatrixLoopsOf {
  void (*product)(const T* matrix, std::size_t rows, std::size_t columns, const T* factor, std::size_t rank,
                  T* result) noexcept;
  void (*product_transposed)(const T* matrix, std::size_t rows, std::size_t columns, const T* factor, std::size_t rank,
                             T* result) noexcept;
  void (*expand)(const T* left, const T* right, std::size_t rank, std::size_t rows, std::size_t columns, T* matrix,
                 T* residual) noexcept;
};

struct MatrixLoops {
  MatrixLoopsOf<float> f32;
  MatrixLoopsOf<double> f64;
};

const MatrixLoops& matrix_loops_scalar() noexcept;

// The vector loops of one Highway target, null where this build has none.
const MatrixLoops* find_matrix_loops(std::int64_t target) noexcept;

inline constexpr std::size_t kMatrixPartialSums = 16;
inline constexpr std::size_t kMatrixBlockRows = 8;

// The end of every element of skinny_product().
template <class T>
[[gnu::always_inline]] inline T fold_partial_sums(T (&partial)[kMatrixPartialSums]) noexcept {
  for (std::size_t half = kMatrixPartialSums / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) partial[i] += partial[i + half];
  }
  return partial[0];
}

}  // namespace gradwire::kernels
