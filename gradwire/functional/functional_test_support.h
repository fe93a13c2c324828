// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The differentiable collectives beside what they mean: the same function of all ranks' inputs, composed of torch's own
// operators on one rank, where autograd needs no group.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/functional/functional.h"
#include "gradwire/process_group/init.h"
#include "tests/support/ranks.h"

namespace gradwire::testing {

// Random tensors of one dtype, the same for the same seed on every thread and in every process.
class Draw {
 public:
  Draw(std::uint64_t seed, at::ScalarType dtype)
      : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)), dtype_(dtype) {}

  at::Tensor operator()(at::IntArrayRef sizes) { return at::randn(sizes, generator_, at::TensorOptions(dtype_)); }
  // Of few values, so that ranks hold the same ones, and zeros.
  at::Tensor coarse(at::IntArrayRef sizes) {
    const at::Tensor fine = (*this)(sizes);
    return fine.is_complex() ? at::view_as_complex(at::view_as_real(fine).round()) : fine.round();
  }
  at::ScalarType dtype() const { return dtype_; }

 private:
  at::Generator generator_;
  at::ScalarType dtype_;
};

struct Case {
  std::string name;
  std::function<Tensors(int rank, int size, Draw&)> inputs;
  std::function<Tensors(const Tensors& mine, const functional::Group&)> ours;
  // From all ranks' inputs, all ranks' outputs.
  std::function<std::vector<Tensors>(const std::vector<Tensors>&)> meaning;
  bool real_only = false;
};

// A loss that is neither linear nor the same for two ranks, outputs or elements: first and second derivatives depend on
// every value.
inline at::Tensor loss_of(const Tensors& outputs, int rank) {
  at::Tensor loss = at::zeros({}, at::kDouble);
  double weight = 0.5 + rank;
  for (const at::Tensor& output : outputs) {
    weight += 0.25;
    const at::Tensor real = output.is_complex() ? at::view_as_real(output) : output;
    const at::Tensor weights = (at::arange(real.numel(), at::kDouble) * 0.1 + weight).reshape(real.sizes());
    loss = loss + (weights * (real.pow(3) + real.sin())).sum();
  }
  return loss;
}

inline at::Tensor squares_of(const Tensors& tensors) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& tensor : tensors) {
    sum = sum + (tensor.is_complex() ? at::view_as_real(tensor) : tensor).pow(2).sum();
  }
  return sum;
}

struct Results {
  Tensors outputs, first, second;  // second: the gradients of the sum of the squares of the first
};

inline std::vector<Tensors> draw_all(const Case& test, int size, at::ScalarType dtype, std::uint64_t seed) {
  std::vector<Tensors> all;
  for (int rank = 0; rank < size; ++rank) {
    Draw draw(seed * 100 + static_cast<std::uint64_t>(rank), dtype);
    all.push_back(test.inputs(rank, size, draw));
    for (at::Tensor& input : all.back()) input.requires_grad_();
  }
  return all;
}

// What every rank must get.
inline std::vector<Results> expected(const Case& test, int size, at::ScalarType dtype, std::uint64_t seed) {
  const std::vector<Tensors> all = draw_all(test, size, dtype, seed);
  const std::vector<Tensors> outputs = test.meaning(all);
  Tensors inputs;
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    inputs.insert(inputs.end(), all[rank].begin(), all[rank].end());
    loss = loss + loss_of(outputs[rank], static_cast<int>(rank));
  }
  const Tensors first = torch::autograd::grad({loss}, inputs, {}, true, true, true);
  Tensors defined;
  for (const at::Tensor& gradient : first) {
    if (gradient.defined()) defined.push_back(gradient);
  }
  const Tensors second = torch::autograd::grad({squares_of(defined)}, inputs, {}, {}, false, true);
  std::vector<Results> results;
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    Results result;
    result.outputs = outputs[rank];
    for (std::size_t i = 0; i < all[rank].size(); ++i, ++at) {
      result.first.push_back(first[at]);
      result.second.push_back(second[at]);
    }
    results.push_back(std::move(result));
  }
  return results;
}

inline void expect_close(const Tensors& actual, const Tensors& wanted, const std::string& what) {
  ASSERT_EQ(actual.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const at::Tensor expected = wanted[i].defined() ? wanted[i].detach() : at::zeros_like(actual[i]);
    ASSERT_TRUE(actual[i].defined()) << what << ' ' << i << " is undefined";
    EXPECT_EQ(actual[i].sizes(), expected.sizes()) << what << ' ' << i;
    EXPECT_TRUE(at::allclose(actual[i].detach(), expected, 1e-9, 1e-9)) << what << ' ' << i << " is\n"
                                                                        << actual[i] << "\nbut should be\n"
                                                                        << expected;
  }
}

// This rank's part of the case over `group` is what it should be, to the second derivative.
inline void check(const Case& test, const functional::Group& group, at::ScalarType dtype, std::uint64_t seed) {
  SCOPED_TRACE(
      concat(test.name, ", rank ", group->rank(), " of ", group->size(), ", seed ", seed, ", ", c10::toString(dtype)));
  const auto rank = static_cast<std::size_t>(group->rank());
  const Tensors mine = draw_all(test, group->size(), dtype, seed)[rank];
  const Results wanted = expected(test, group->size(), dtype, seed)[rank];
  const Tensors outputs = test.ours(mine, group);
  expect_close(outputs, wanted.outputs, "output");
  const Tensors first = torch::autograd::grad({loss_of(outputs, group->rank())}, mine, {}, true, true);
  expect_close(first, wanted.first, "gradient");
  const Tensors second = torch::autograd::grad({squares_of(first)}, mine);
  expect_close(second, wanted.second, "second derivative");
}

std::vector<Case> cases();

}  // namespace gradwire::testing
