// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Vector loops of matrix.h.
#include "gradwire/kernels/highway_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gradwire/kernels/matrix_vector.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "gradwire/kernels/dispatch_internal.h"
#include "gradwire/kernels/matrix_internal.h"

// Vectors must be of a size that is known at compile time, to be elements of arrays.
#if !HWY_HAVE_SCALABLE
HWY_BEFORE_NAMESPACE();
namespace gradwire::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
inline constexpr std::size_t kLanes = std::min<std::size_t>(kMatrixPartialSums, HWY_MAX_BYTES / sizeof(T));
template <class T>
using Tag = hn::FixedTag<T, kLanes<T>>;
template <class T>
using Vector = hn::Vec<Tag<T>>;

// How many accumulators fit the registers: AVX-512 has 32 of them, others 16.
inline constexpr bool kManyRegisters = HWY_MAX_BYTES >= 64;

// Runs of the factors that are worked on at a time.
inline constexpr std::size_t kRuns = 4;

// The runs [0, kK) of `factor` with kRows rows of the matrix. `rows` is the distance of the result's runs.
template <class T, std::size_t kRows, std::size_t kK>
HWY_INLINE void product_tile(const T* HWY_RESTRICT matrix, std::size_t columns, const T* HWY_RESTRICT factor,
                             T* HWY_RESTRICT result, std::size_t rows) {
  constexpr std::size_t kVectors = kMatrixPartialSums / kLanes<T>;
  const Tag<T> tag;
  Vector<T> sums[kRows][kK][kVectors];
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t k = 0; k < kK; ++k) {
      for (std::size_t v = 0; v < kVectors; ++v) sums[r][k][v] = hn::Zero(tag);
    }
  }
  const std::size_t whole = columns / kMatrixPartialSums * kMatrixPartialSums;
  for (std::size_t j = 0; j < whole; j += kMatrixPartialSums) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      Vector<T> weights[kK];
      for (std::size_t k = 0; k < kK; ++k) weights[k] = hn::LoadU(tag, factor + k * columns + j + v * kLanes<T>);
      for (std::size_t r = 0; r < kRows; ++r) {
        const Vector<T> values = hn::LoadU(tag, matrix + r * columns + j + v * kLanes<T>);
        for (std::size_t k = 0; k < kK; ++k) sums[r][k][v] = hn::Add(sums[r][k][v], hn::Mul(values, weights[k]));
      }
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t k = 0; k < kK; ++k) {
      T partial[kMatrixPartialSums];
      for (std::size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[r][k][v], tag, partial + v * kLanes<T>);
      for (std::size_t j = whole; j < columns; ++j)
        partial[j - whole] += matrix[r * columns + j] * factor[k * columns + j];
      result[k * rows + r] = fold_partial_sums(partial);
    }
  }
}

template <class T, std::size_t kRows>
HWY_INLINE void product_rows(const T* matrix, std::size_t columns, const T* factor, std::size_t rank, T* result,
                             std::size_t rows) {
  std::size_t k = 0;
  for (; k + kRuns <= rank; k += kRuns) {
    product_tile<T, kRows, kRuns>(matrix, columns, factor + k * columns, result + k * rows, rows);
  }
  factor += k * columns;
  result += k * rows;
  if (rank - k == 1) product_tile<T, kRows, 1>(matrix, columns, factor, result, rows);
  if (rank - k == 2) product_tile<T, kRows, 2>(matrix, columns, factor, result, rows);
  if (rank - k == 3) product_tile<T, kRows, 3>(matrix, columns, factor, result, rows);
}

template <class T>
void product(const T* matrix, std::size_t rows, std::size_t columns, const T* factor, std::size_t rank,
             T* result) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  if (rank == 0) return;  // a result without runs may be null
  constexpr std::size_t kRows = !kManyRegisters ? 1 : sizeof(T) == 4 ? 4 : 2;
  std::size_t i = 0;
  for (; i + kRows <= rows; i += kRows) {
    product_rows<T, kRows>(matrix + i * columns, columns, factor, rank, result + i, rows);
  }
  for (; i < rows; ++i) product_rows<T, 1>(matrix + i * columns, columns, factor, rank, result + i, rows);
}

// Adds `count` rows, weighted, to the runs [0, kK) of `result`, from column `j` on as many columns as fill kVectors
// vectors.
template <class T, std::size_t kK, std::size_t kVectors>
HWY_INLINE void add_rows(const T* HWY_RESTRICT matrix, std::size_t columns, const T (&weights)[kMatrixBlockRows][kRuns],
                         std::size_t count, std::size_t j, T* HWY_RESTRICT result) {
  const Tag<T> tag;
  Vector<T> sums[kK][kVectors];
  for (std::size_t k = 0; k < kK; ++k) {
    for (std::size_t v = 0; v < kVectors; ++v) sums[k][v] = hn::Zero(tag);
  }
  for (std::size_t r = 0; r < count; ++r) {
    Vector<T> values[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) values[v] = hn::LoadU(tag, matrix + r * columns + j + v * kLanes<T>);
    for (std::size_t k = 0; k < kK; ++k) {
      const Vector<T> weight = hn::Set(tag, weights[r][k]);
      for (std::size_t v = 0; v < kVectors; ++v) sums[k][v] = hn::Add(sums[k][v], hn::Mul(values[v], weight));
    }
  }
  for (std::size_t k = 0; k < kK; ++k) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      T* HWY_RESTRICT to = result + k * columns + j + v * kLanes<T>;
      hn::StoreU(hn::Add(hn::LoadU(tag, to), sums[k][v]), tag, to);
    }
  }
}

// One block of rows, the runs [0, kK) of `factor`, whose runs are `rows` apart.
template <class T, std::size_t kK>
HWY_INLINE void transposed_block(const T* HWY_RESTRICT matrix, std::size_t columns, const T* HWY_RESTRICT factor,
                                 std::size_t rows, std::size_t count, T* HWY_RESTRICT result) {
  constexpr std::size_t kVectors = kManyRegisters ? 4 : 2;
  T weights[kMatrixBlockRows][kRuns];
  for (std::size_t r = 0; r < count; ++r) {
    for (std::size_t k = 0; k < kK; ++k) weights[r][k] = factor[k * rows + r];
  }
  std::size_t j = 0;
  for (; j + kVectors * kLanes<T> <= columns; j += kVectors * kLanes<T>) {
    add_rows<T, kK, kVectors>(matrix, columns, weights, count, j, result);
  }
  for (; j + kLanes<T> <= columns; j += kLanes<T>) add_rows<T, kK, 1>(matrix, columns, weights, count, j, result);
  for (; j < columns; ++j) {
    for (std::size_t k = 0; k < kK; ++k) {
      T sum{0};
      for (std::size_t r = 0; r < count; ++r) sum += matrix[r * columns + j] * weights[r][k];
      result[k * columns + j] += sum;
    }
  }
}

template <class T>
void product_transposed(const T* matrix, std::size_t rows, std::size_t columns, const T* factor, std::size_t rank,
                        T* result) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  std::fill_n(result, rank * columns, T{0});
  for (std::size_t i = 0; i < rows; i += kMatrixBlockRows) {
    const std::size_t count = std::min(kMatrixBlockRows, rows - i);
    const T* block = matrix + i * columns;
    std::size_t k = 0;
    for (; k + kRuns <= rank; k += kRuns) {
      transposed_block<T, kRuns>(block, columns, factor + k * rows + i, rows, count, result + k * columns);
    }
    const T* rest = factor + k * rows + i;
    T* to = result + k * columns;
    if (rank - k == 1) transposed_block<T, 1>(block, columns, rest, rows, count, to);
    if (rank - k == 2) transposed_block<T, 2>(block, columns, rest, rows, count, to);
    if (rank - k == 3) transposed_block<T, 3>(block, columns, rest, rows, count, to);
  }
}

// kRows rows; `rank` is kK where that is not 0.
template <class T, std::size_t kRows, std::size_t kK, bool kResidual>
HWY_INLINE void expand_rows(const T* HWY_RESTRICT left, const T* HWY_RESTRICT right, std::size_t rank, std::size_t rows,
                            std::size_t columns, T* HWY_RESTRICT matrix, T* HWY_RESTRICT residual) {
  const Tag<T> tag;
  const std::size_t runs = kK != 0 ? kK : rank;
  std::size_t j = 0;
  for (; j + kLanes<T> <= columns; j += kLanes<T>) {
    Vector<T> sums[kRows];
    for (std::size_t r = 0; r < kRows; ++r) sums[r] = hn::Zero(tag);
    for (std::size_t k = 0; k < runs; ++k) {
      const Vector<T> values = hn::LoadU(tag, right + k * columns + j);
      for (std::size_t r = 0; r < kRows; ++r) {
        sums[r] = hn::Add(sums[r], hn::Mul(hn::Set(tag, left[k * rows + r]), values));
      }
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      T* HWY_RESTRICT to = matrix + r * columns + j;
      if constexpr (kResidual) hn::StoreU(hn::Sub(hn::LoadU(tag, to), sums[r]), tag, residual + r * columns + j);
      hn::StoreU(sums[r], tag, to);
    }
  }
  for (; j < columns; ++j) {
    for (std::size_t r = 0; r < kRows; ++r) {
      T sum{0};
      for (std::size_t k = 0; k < runs; ++k) sum += left[k * rows + r] * right[k * columns + j];
      T& element = matrix[r * columns + j];
      if constexpr (kResidual) residual[r * columns + j] = element - sum;
      element = sum;
    }
  }
}

template <class T, std::size_t kK, bool kResidual>
HWY_NOINLINE void expand_all(const T* left, const T* right, std::size_t rank, std::size_t rows, std::size_t columns,
                             T* matrix, T* residual) {
  constexpr std::size_t kRows = kManyRegisters ? 4 : 2;
  std::size_t i = 0;
  const auto residual_at = [&](std::size_t row) { return kResidual ? residual + row * columns : nullptr; };
  const auto left_at = [&](std::size_t row) { return rank == 0 ? left : left + row; };  // without runs it may be null
  for (; i + kRows <= rows; i += kRows) {
    expand_rows<T, kRows, kK, kResidual>(left_at(i), right, rank, rows, columns, matrix + i * columns, residual_at(i));
  }
  for (; i < rows; ++i) {
    expand_rows<T, 1, kK, kResidual>(left_at(i), right, rank, rows, columns, matrix + i * columns, residual_at(i));
  }
}

template <class T, bool kResidual>
HWY_INLINE void expand_rank(const T* left, const T* right, std::size_t rank, std::size_t rows, std::size_t columns,
                            T* matrix, T* residual) {
  if (rank == 1) return expand_all<T, 1, kResidual>(left, right, rank, rows, columns, matrix, residual);
  if (rank == 2) return expand_all<T, 2, kResidual>(left, right, rank, rows, columns, matrix, residual);
  if (rank == 4) return expand_all<T, 4, kResidual>(left, right, rank, rows, columns, matrix, residual);
  expand_all<T, 0, kResidual>(left, right, rank, rows, columns, matrix, residual);
}

template <class T>
void expand(const T* left, const T* right, std::size_t rank, std::size_t rows, std::size_t columns, T* matrix,
            T* residual) noexcept {
  note_run(hwy::TargetName(HWY_TARGET));
  if (residual != nullptr) return expand_rank<T, true>(left, right, rank, rows, columns, matrix, residual);
  expand_rank<T, false>(left, right, rank, rows, columns, matrix, residual);
}

const MatrixLoops* matrix_loops() noexcept {
  static constexpr MatrixLoops kLoops {
    {&product<float>, &product_transposed<float>, &expand<float>},
#if HWY_HAVE_FLOAT64
    {
      &product<double>, &product_transposed<double>, &expand<double>
    }
  };
#else
        matrix_loops_scalar().f64
  };
#endif
  return &kLoops;
}

}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
HWY_AFTER_NAMESPACE();
#else
namespace gradwire::kernels {
namespace HWY_NAMESPACE {
const MatrixLoops* matrix_loops() noexcept { return &matrix_loops_scalar(); }
}  // namespace HWY_NAMESPACE
}  // namespace gradwire::kernels
#endif

#if HWY_ONCE
namespace gradwire::kernels {

const MatrixLoops* find_matrix_loops(std::int64_t target) noexcept {
  return loops_of<MatrixLoops>(GRADWIRE_FOR_TARGET(target, matrix_loops));
}

}  // namespace gradwire::kernels
#endif
