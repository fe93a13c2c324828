// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/kernels/matrix.h"

#include "gradwire/kernels/dispatch_internal.h"
#include "gradwire/kernels/matrix_internal.h"

namespace gradwire::kernels {

void skinny_product(const float* matrix, std::size_t rows, std::size_t columns, const float* factor, std::size_t rank,
                    float* result) noexcept {
  active().matrix->f32.product(matrix, rows, columns, factor, rank, result);
}

void skinny_product(const double* matrix, std::size_t rows, std::size_t columns, const double* factor, std::size_t rank,
                    double* result) noexcept {
  active().matrix->f64.product(matrix, rows, columns, factor, rank, result);
}

void skinny_product_transposed(const float* matrix, std::size_t rows, std::size_t columns, const float* factor,
                               std::size_t rank, float* result) noexcept {
  active().matrix->f32.product_transposed(matrix, rows, columns, factor, rank, result);
}

void skinny_product_transposed(const double* matrix, std::size_t rows, std::size_t columns, const double* factor,
                               std::size_t rank, double* result) noexcept {
  active().matrix->f64.product_transposed(matrix, rows, columns, factor, rank, result);
}

void expand(const float* left, const float* right, std::size_t rank, std::size_t rows, std::size_t columns,
            float* matrix, float* residual) noexcept {
  active().matrix->f32.expand(left, right, rank, rows, columns, matrix, residual);
}

void expand(const double* left, const double* right, std::size_t rank, std::size_t rows, std::size_t columns,
            double* matrix, double* residual) noexcept {
  active().matrix->f64.expand(left, right, rank, rows, columns, matrix, residual);
}

}  // namespace gradwire::kernels
