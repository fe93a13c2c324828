// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The tensors and comparisons of the conformance suite. Internal to the suite.
#pragma once

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace gradwire::testing::conformance {

// Returns `count` small whole numbers, which differ from rank to rank. Their sums are exact in every dtype and in every
// order of summation.
inline at::Tensor values(int rank, std::int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).add(rank * 3 + 1).remainder(5).to(type);
}

// Returns the same values in a tensor that is not contiguous.
inline at::Tensor scattered(const at::Tensor& dense) {
  const at::Tensor column = at::zeros({dense.numel(), 2}, dense.options()).select(1, 1);
  column.copy_(dense.reshape({-1}));
  return column;
}

// Returns values(); contiguous when `in_order`.
inline at::Tensor make(int rank, std::int64_t count, at::ScalarType type, bool in_order) {
  const at::Tensor dense = values(rank, count, type);
  return in_order ? dense : scattered(dense);
}

// Returns a tensor for a result, filled with the values of rank 99, which no group has.
inline at::Tensor blank(std::int64_t count, at::ScalarType type, bool in_order = true) {
  return make(99, count, type, in_order);
}

// Returns the sum of values() over the ranks of a group of size `world`; for bool, the logical or.
inline at::Tensor sum_over_ranks(int world, std::int64_t count, at::ScalarType type) {
  at::Tensor sum = values(0, count, type);
  for (int rank = 1; rank < world; ++rank) {
    sum = type == at::kBool ? sum.logical_or(values(rank, count, type)) : sum.add(values(rank, count, type));
  }
  return sum;
}

// Fails the test unless the tensors have equal sizes and values. `what` is for the message.
inline void expect_same(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  if (at::equal(actual, expected)) return;
  std::ostringstream shown;
  if (expected.numel() <= 32) shown << ":\n" << actual << "\nagainst\n" << expected;
  ADD_FAILURE() << what << ": " << actual.scalar_type() << actual.sizes() << " is not what it should be, "
                << expected.scalar_type() << expected.sizes() << shown.str();
}

// Calls body(type, count, in_order) for each dtype, several lengths, contiguous and not contiguous.
template <class Body>
void for_each_shape(const std::vector<at::ScalarType>& types, const Body& body) {
  for (const at::ScalarType type : types) {
    for (const std::int64_t count : {0, 1, 17, 5000}) {
      for (const bool in_order : {true, false}) body(type, count, in_order);
    }
  }
}

// Returns default options with the given root.
template <class Options>
Options with_root(int root) {
  Options options;
  options.root = root;
  return options;
}

}  // namespace gradwire::testing::conformance
