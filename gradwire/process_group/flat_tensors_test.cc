// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/flat_tensors_internal.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

namespace gradwire::internal::flat_tensors_test {
namespace {

TEST(FlatTensors, AreSortedByTypeInTheOrderInWhichTypesAppear) {
  const std::vector<at::Tensor> tensors{at::ones({2}), at::ones({3}, at::kDouble), at::ones({4}),
                                        at::ones({}, at::kInt), at::ones({0}, at::kDouble)};
  const auto lists = by_type_and_device(tensors);
  ASSERT_EQ(lists.size(), 3u);
  ASSERT_EQ(lists[0].size(), 2u);
  EXPECT_TRUE(lists[0][1].is_same(tensors[2]));
  ASSERT_EQ(lists[1].size(), 2u);
  EXPECT_TRUE(lists[1][0].is_same(tensors[1]));
  EXPECT_TRUE(lists[2][0].is_same(tensors[3]));
  EXPECT_TRUE(by_type_and_device({}).empty());
}

std::vector<std::size_t> lengths_of(const std::vector<std::int64_t>& numels, std::size_t bytes, std::size_t alignment) {
  std::vector<at::Tensor> tensors;
  for (const std::int64_t numel : numels) tensors.push_back(at::zeros({numel}, at::kByte));
  std::vector<std::size_t> lengths;
  for (const auto& run : in_runs_of(tensors, bytes, alignment)) lengths.push_back(run.size());
  return lengths;
}

TEST(FlatTensors, RunsHoldWhatFitsAndAtLeastOne) {
  using Lengths = std::vector<std::size_t>;
  EXPECT_EQ(lengths_of({}, 10, 1), Lengths());
  EXPECT_EQ(lengths_of({4, 6, 1, 9, 1}, 10, 1), (Lengths{2, 2, 1}));
  EXPECT_EQ(lengths_of({30, 1, 30}, 10, 1), (Lengths{1, 1, 1}));
  EXPECT_EQ(lengths_of({0, 0, 10, 0}, 10, 1), Lengths{4});
  EXPECT_EQ(lengths_of({1, 1, 1}, 32, 16), (Lengths{2, 1}));
}

TEST(FlatTensors, GoThereAndBackWhateverTheirStrides) {
  const at::Tensor transposed = at::arange(6, at::kFloat).view({2, 3}).t();
  const std::vector<at::Tensor> tensors{transposed, at::full({}, 7.0f), at::empty({0, 2}), at::arange(4, at::kFloat)};
  const at::Tensor row = flatten(tensors);
  EXPECT_TRUE(row.equal(at::cat({transposed.reshape({-1}), at::full({1}, 7.0f), at::arange(4, at::kFloat)})));
  EXPECT_FALSE(flatten({&tensors[3], 1}).is_alias_of(tensors[3]));
  const auto parts = cut_like(tensors, row);
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(parts[i].equal(tensors[i])) << i;
  EXPECT_TRUE(parts[3].is_alias_of(row));
  unflatten(row * 2, tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(tensors[i].equal(parts[i] * 2)) << i;
}

}  // namespace
}  // namespace gradwire::internal::flat_tensors_test
