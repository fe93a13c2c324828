// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/parameter_watch_internal.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>

namespace gradwire::internal {
namespace {

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
template <class Optimizer, class Options>
MakeOptimizer made(Options options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

// SGD's steps do not count in the parameters' versions.
TEST(ParameterWatchTest, AStepOfAnyOptimizerIsAChange) {
  for (const MakeOptimizer& make :
       {made<torch::optim::SGD>(torch::optim::SGDOptions(0.1)),
        made<torch::optim::SGD>(torch::optim::SGDOptions(1e-3).momentum(0.9).weight_decay(0.1)),
        made<torch::optim::Adam>(torch::optim::AdamOptions(1e-3)),
        made<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3)),
        made<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-3)),
        made<torch::optim::Adagrad>(torch::optim::AdagradOptions(1e-3))}) {
    const std::vector<at::Tensor> parameters{at::rand({3, 5}).t().requires_grad_(), at::rand({}).requires_grad_(),
                                             at::rand({100}, at::kDouble).requires_grad_()};
    const auto optimizer = make(parameters);
    for (at::Tensor parameter : parameters) parameter.mutable_grad() = at::rand_like(parameter);
    ParameterWatch watch;
    watch.keep(parameters);
    EXPECT_FALSE(watch.has_changed(parameters, {}));
    optimizer->step();
    EXPECT_TRUE(watch.has_changed(parameters, {}));
    watch.keep(parameters);
    EXPECT_FALSE(watch.has_changed(parameters, {}));
  }
}

TEST(ParameterWatchTest, AnyParameterCounts) {
  for (const std::int64_t numel : {1, 7, 8, 9, 1000}) {
    for (std::size_t changed = 0; changed < 3; ++changed) {
      const std::vector<at::Tensor> parameters{at::zeros({numel}), at::zeros({numel}, at::kBFloat16),
                                               at::zeros({numel})};
      ParameterWatch watch;
      watch.keep(parameters);
      parameters[changed].data().add_(1);
      EXPECT_TRUE(watch.has_changed(parameters, {})) << numel << " values, parameter " << changed;
    }
  }
}

// Whoever brings values back says with which counter they began.
TEST(ParameterWatchTest, WhatWasBroughtBackHasNotChanged) {
  const at::Tensor parameter = at::ones({4});
  ParameterWatch watch;
  watch.keep({parameter});
  const auto version = static_cast<std::uint32_t>(parameter._version());
  parameter.add_(1);
  EXPECT_TRUE(watch.has_changed({parameter}, {{parameter.unsafeGetTensorImpl(), version}}));
  parameter.sub_(1);
  EXPECT_TRUE(watch.has_changed({parameter}, {}));
  EXPECT_FALSE(watch.has_changed({parameter}, {{parameter.unsafeGetTensorImpl(), version}}));
}

TEST(ParameterWatchTest, OfTensorsWithoutPlainValuesTheCountersAreLookedAt) {
  const std::vector<at::Tensor> parameters{at::zeros({0}), at::zeros({4}, at::device(at::kMeta)),
                                           at::zeros({1}).expand({4}), at::eye(3).to_sparse()};
  ParameterWatch watch;
  watch.keep(parameters);
  EXPECT_FALSE(watch.has_changed(parameters, {}));
  parameters[3].mul_(2);
  EXPECT_TRUE(watch.has_changed(parameters, {}));
}

}  // namespace
}  // namespace gradwire::internal
