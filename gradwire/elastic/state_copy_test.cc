// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/state_copy_internal.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace gradwire::internal {
namespace {

TEST(StateCopyTest, WhatWasKeptComesBackWhateverChangedSinceThen) {
  const std::vector<at::Tensor> tensors{at::arange(6, at::kFloat).view({2, 3}).t(), at::ones({}, at::kLong)};
  const at::Tensor of_part = at::full({3}, 5, at::kHalf);
  StateCopy copy;
  copy.keep(tensors, {{"text", {of_part}}, {"more", {}}});
  const std::vector<at::Tensor> values{tensors[0].clone(), tensors[1].clone()};
  for (const at::Tensor& tensor : tensors) at::Tensor(tensor).add_(1);
  at::Tensor(of_part).zero_();

  const std::vector<ArrivedPart> rest = copy.give_back(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(tensors[i].equal(values[i])) << "tensor " << i;
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(rest[0].text, "text");
  ASSERT_EQ(rest[0].tensors.size(), 1U);
  EXPECT_TRUE(rest[0].tensors[0].equal(at::full({3}, 5, at::kHalf)));
  EXPECT_EQ(rest[1].text, "more");
  EXPECT_TRUE(rest[1].tensors.empty());
}

// Whoever takes tensors over may keep them: the next copy must not write there.
TEST(StateCopyTest, WhatWasGivenBackIsNotWrittenAgain) {
  const std::vector<at::Tensor> tensors{at::zeros({4})};
  StateCopy copy;
  copy.keep(tensors, {{"", {at::zeros({4})}}});
  const at::Tensor taken = copy.give_back(tensors).at(0).tensors.at(0);
  copy.keep(tensors, {{"", {at::ones({4})}}});
  EXPECT_TRUE(taken.equal(at::zeros({4})));
}

// Each step keeps the state: fresh memory would cost more than the copy.
TEST(StateCopyTest, TheMemoryServesAgainWhereItFits) {
  at::Tensor tensor = at::zeros({4});
  StateCopy copy;
  copy.keep({}, {{"", {tensor}}});
  copy.keep({}, {{"", {tensor.add_(1)}}});
  EXPECT_TRUE(copy.give_back({}).at(0).tensors.at(0).equal(at::ones({4})));

  for (const at::Tensor& other : {at::ones({5}), at::ones({4}, at::kDouble), at::ones({2, 2})}) {
    copy.keep({tensor}, {{"", {tensor, tensor}}});
    copy.keep({other}, {{"", {other}}});
    at::Tensor back = at::zeros_like(other);
    const auto rest = copy.give_back({back});
    EXPECT_TRUE(back.equal(other));
    ASSERT_EQ(rest.at(0).tensors.size(), 1U);
    EXPECT_TRUE(rest[0].tensors[0].equal(other));
  }
}

}  // namespace
}  // namespace gradwire::internal
