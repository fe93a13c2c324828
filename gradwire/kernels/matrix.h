// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Products of a large matrix with a narrow one, for low-rank compression.
//
// Matrices are row-major, rows x columns. A factor is narrow, so it is stored column by column: `rank` runs of as many
// elements as the side of the matrix that it belongs to; element i of run k stands at [k * side + i].
//
// The bits depend neither on the kernel nor on alignment: every sum has a fixed order, and no multiplication is fused
// with an addition. Every kernel gives NaN for the same elements, with unspecified sign and payload. Each function
// reads the matrix from memory once (up to four runs at a time; more runs read pieces again that are in the cache). All
// functions are noexcept and thread-safe, allocate nothing and use the calling thread alone. Buffers have the alignment
// of their type and do not overlap unless stated; any size may be 0.
#pragma once

#include <cstddef>

namespace gradwire::kernels {

// result = matrix x factor. `factor` belongs to the columns, `result` to the rows.
// Each element is 16 sums, of which sum l takes the columns c with c % 16 == l in ascending order; then the upper half
// of the sums is added to the lower one until one is left.
void skinny_product(const float* matrix, std::size_t rows, std::size_t columns, const float* factor, std::size_t rank,
                    float* result) noexcept;
void skinny_product(const double* matrix, std::size_t rows, std::size_t columns, const double* factor, std::size_t rank,
                    double* result) noexcept;

// result = transposed matrix x factor. `factor` belongs to the rows, `result` to the columns.
// Each element is a sum of sums: eight rows at a time in ascending order, and those sums in ascending order.
void skinny_product_transposed(const float* matrix, std::size_t rows, std::size_t columns, const float* factor,
                               std::size_t rank, float* result) noexcept;
void skinny_product_transposed(const double* matrix, std::size_t rows, std::size_t columns, const double* factor,
                               std::size_t rank, double* result) noexcept;

// matrix = left x transposed right, run 0 first. `left` belongs to the rows, `right` to the columns. When `residual` is
// not null, it gets the old matrix minus the new one (row-major, in other memory).
void expand(const float* left, const float* right, std::size_t rank, std::size_t rows, std::size_t columns,
            float* matrix, float* residual) noexcept;
void expand(const double* left, const double* right, std::size_t rank, std::size_t rows, std::size_t columns,
            double* matrix, double* residual) noexcept;

}  // namespace gradwire::kernels
