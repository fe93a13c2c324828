// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// An optimizer that was taken apart and put together goes on with the same bits, and the one that was taken apart does
// not notice.
#include "gradwire/hooks/split_optimizer_internal.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::split_optimizer_test {
namespace {

using namespace gradwire::testing;
using internal::load_split;
using internal::split_optimizer;
using internal::SplitOptimizer;
using torch::optim::Optimizer;

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>;

struct Kind {
  std::string name;
  Make make;
  std::size_t tensors = 0;  // for each parameter
  std::size_t states = 1;   // of large contiguous parameters
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

template <class Class, class Options>
Kind kind(const char* name, Options options, std::size_t tensors, std::size_t states = 1) {
  return {
      name,
      [options](std::vector<at::Tensor> parameters) { return std::make_unique<Class>(std::move(parameters), options); },
      tensors, states};
}

std::vector<Kind> kinds() {
  using namespace torch::optim;
  return {kind<SGD>("sgd", SGDOptions(0.1), 0),
          kind<SGD>("sgd_momentum", SGDOptions(0.1).momentum(0.9).nesterov(true), 1),
          kind<Adam>("adam", AdamOptions(0.01), 2),
          kind<Adam>("adam_amsgrad", AdamOptions(0.01).amsgrad(true), 3),
          kind<AdamW>("adamw", AdamWOptions(0.01), 2),
          kind<RMSprop>("rmsprop", RMSpropOptions(0.01).momentum(0.5).centered(true), 3),
          kind<Adagrad>("adagrad", AdagradOptions(0.01), 1, /*states=*/2)};
}

// Two large parameters, one of which is not contiguous; a small one; and one that never has a gradient.
std::vector<at::Tensor> parameters_of(int seed) {
  std::vector<at::Tensor> all{random_tensor({200, 300}, seed), random_tensor({4, 8, 40, 50}, seed + 1),
                              random_tensor({7}, seed + 2), random_tensor({300, 300}, seed + 3)};
  all[1] = all[1].contiguous(at::MemoryFormat::ChannelsLast);
  for (at::Tensor& parameter : all) parameter.requires_grad_();
  return all;
}

void step(Optimizer& optimizer, const std::vector<at::Tensor>& parameters, int seed) {
  for (std::size_t i = 0; i + 1 < parameters.size(); ++i) {
    parameters[i].mutable_grad() = random_tensor(parameters[i].sizes(), seed + static_cast<int>(i))
                                       .contiguous(parameters[i].suggest_memory_format());
  }
  optimizer.step([] { return at::ones({}); });
}

void copy_values(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < from.size(); ++i) to[i].detach().copy_(from[i]);
}

// Copies of the memory, in one row, as they arrive.
std::vector<at::Tensor> arrived(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& tensor : tensors) rows.push_back(tensor.clone().view({-1}).view(at::kByte));
  return rows;
}

class SplitOptimizerTest : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, SplitOptimizerTest, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SplitOptimizerTest, GoesOnWithTheSameBits) {
  const std::vector<at::Tensor> parameters = parameters_of(1), others = parameters_of(10), never = parameters_of(1);
  const auto optimizer = GetParam().make(parameters), other = GetParam().make(others),
             untouched = GetParam().make(never);
  for (int i = 0; i < 2; ++i) {
    step(*optimizer, parameters, 20 + i);
    step(*untouched, never, 20 + i);
    step(*other, others, 30 + i);  // what the other one has by itself goes
  }
  const SplitOptimizer parts = split_optimizer(*optimizer);
  copy_values(parameters, others);
  load_split(*other, parts.archive, arrived(parts.tensors));
  for (int i = 0; i < 2; ++i) {
    step(*optimizer, parameters, 40 + i);
    step(*other, others, 40 + i);
    step(*untouched, never, 40 + i);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(others[i].equal(parameters[i])) << "parameter " << i;
    EXPECT_TRUE(never[i].equal(parameters[i])) << "parameter " << i << " of an optimizer that was never taken apart";
  }
}

// A rank that has stepped takes the state of one that has not.
TEST_P(SplitOptimizerTest, TheStateOfAnOptimizerThatHasNotSteppedReplacesAnother) {
  const std::vector<at::Tensor> parameters = parameters_of(1), others = parameters_of(1);
  const auto optimizer = GetParam().make(parameters), other = GetParam().make(others);
  const SplitOptimizer parts = split_optimizer(*optimizer);
  step(*other, others, 20);
  load_split(*other, parts.archive, arrived(parts.tensors));
  EXPECT_EQ(other->state().size(), optimizer->state().size());
  copy_values(parameters, others);
  for (int i = 0; i < 2; ++i) {
    step(*optimizer, parameters, 40 + i);
    step(*other, others, 40 + i);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(others[i].equal(parameters[i])) << "parameter " << i;
}

TEST_P(SplitOptimizerTest, LargeContiguousTensorsAreNotCopied) {
  const std::vector<at::Tensor> parameters = parameters_of(1);
  const auto optimizer = GetParam().make(parameters);
  step(*optimizer, parameters, 20);
  const SplitOptimizer parts = split_optimizer(*optimizer);
  ASSERT_EQ(parts.tensors.size(), GetParam().tensors * GetParam().states);
  for (std::size_t i = 0; i < GetParam().tensors; ++i) {
    const at::Tensor& tensor = parts.tensors[i];
    EXPECT_EQ(tensor.sizes(), parameters[0].sizes());
    const at::Tensor before = tensor.clone();
    step(*optimizer, parameters, 30);
    EXPECT_FALSE(tensor.equal(before)) << "it is the optimizer's own";
  }
  // The state of the parameter that is not contiguous stays in the archive, and that of the contiguous one does not.
  const std::size_t in_archive = GetParam().tensors * parameters[1].nbytes();
  EXPECT_GE(parts.archive.size(), in_archive);
  if (GetParam().tensors > 0) {
    EXPECT_LT(parts.archive.size(), in_archive + parameters[0].nbytes() / 2);
  }
}

TEST(SplitOptimizer, OtherTensorsThanTheArchivesAreRefused) {
  const std::vector<at::Tensor> parameters = parameters_of(1);
  torch::optim::Adam adam(parameters, 0.01);
  step(adam, parameters, 20);
  const SplitOptimizer parts = split_optimizer(adam);
  ASSERT_EQ(parts.tensors.size(), 2U);
  const at::Tensor short_one = parts.tensors[1].view({-1}).narrow(0, 0, 100);
  for (const auto& tensors : std::vector<std::vector<at::Tensor>>{
           {}, {parts.tensors[0]}, {parts.tensors[0], short_one}, {short_one, short_one, short_one}}) {
    EXPECT_THROW(load_split(adam, parts.archive, tensors), InternalError) << tensors.size();
    ASSERT_EQ(adam.state().size(), 3U) << "the state from before stays";
    const SplitOptimizer after = split_optimizer(adam);
    ASSERT_EQ(after.tensors.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(after.tensors[i].is_alias_of(parts.tensors[i])) << i;
  }
  torch::optim::Adam of_fewer({random_tensor({3}, 1).requires_grad_()}, 0.01);
  EXPECT_ANY_THROW(load_split(adam, split_optimizer(of_fewer).archive, {}));
  EXPECT_EQ(adam.state().size(), 3U);
}

// Its state is not one of each parameter, and stays in the archive.
TEST(SplitOptimizer, AnotherClassIsOneArchive) {
  std::vector<at::Tensor> parameters{random_tensor({200, 300}, 1)}, others{random_tensor({200, 300}, 2)};
  for (const auto* all : {&parameters, &others}) all->front().requires_grad_();
  torch::optim::LBFGS lbfgs(parameters), other(others);
  step(lbfgs, {parameters[0], others[0]}, 20);
  const SplitOptimizer parts = split_optimizer(lbfgs);
  EXPECT_TRUE(parts.tensors.empty());
  EXPECT_GT(parts.archive.size(), parameters[0].nbytes());
  copy_values(parameters, others);
  load_split(other, parts.archive, {});
  step(lbfgs, {parameters[0], others[0]}, 30);
  others[0].mutable_grad() = parameters[0].grad().clone();
  other.step([] { return at::ones({}); });
  EXPECT_TRUE(others[0].equal(parameters[0]));
}

// As a model with tied weights gives it.
TEST(SplitOptimizer, AParameterThatIsThereTwiceKeepsItsState) {
  std::vector<at::Tensor> parameters = parameters_of(1), others = parameters_of(1);
  parameters.push_back(parameters[0]);
  others.push_back(others[0]);
  torch::optim::Adam adam(parameters, 0.01), never(others, 0.01);
  for (int i = 0; i < 2; ++i) {
    step(adam, parameters, 20 + i);
    step(never, others, 20 + i);
    EXPECT_EQ(split_optimizer(adam).tensors.size(), 4U) << "two for each large contiguous parameter";
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(parameters[i].equal(others[i])) << "parameter " << i;
}

// States of a user's classes: one that cannot be cloned, and one that has more than the class from which it derives.
struct OwnState : torch::optim::OptimizerParamState {
  void serialize(torch::serialize::OutputArchive&) const override {}
};
struct MoreState : torch::optim::OptimizerCloneableParamState<MoreState> {
  void serialize(torch::serialize::OutputArchive&) const override {}
};
struct DerivedState : torch::optim::AdamParamState {
  int more = 5;
};
struct OwnOptimizer : torch::optim::Adam {
  using torch::optim::Adam::Adam;
  void save(torch::serialize::OutputArchive& archive) const override { archive.write("own", c10::IValue(7)); }
};
TEST(SplitOptimizer, StatesOfAUsersClassesAreLeftAlone) {
  const std::vector<at::Tensor> parameters = parameters_of(1);
  OwnOptimizer optimizer(parameters, 0.01);
  auto& states = optimizer.state();
  states[parameters[0].unsafeGetTensorImpl()] = std::make_unique<OwnState>();
  states[parameters[1].unsafeGetTensorImpl()] = std::make_unique<MoreState>();
  auto derived = std::make_unique<DerivedState>();
  derived->exp_avg(at::ones({300, 300}));
  const auto* const before = derived.get();
  states[parameters[3].unsafeGetTensorImpl()] = std::move(derived);
  EXPECT_TRUE(split_optimizer(optimizer).tensors.empty());
  EXPECT_EQ(states.at(parameters[3].unsafeGetTensorImpl()).get(), before);
  EXPECT_EQ(before->more, 5);
}

// A state whose memory is one element, as that of a placeholder.
TEST(SplitOptimizer, AStateThatLooksLikeAPlaceholderStaysWhatItIs) {
  const std::vector<at::Tensor> parameters = parameters_of(1), others = parameters_of(1);
  torch::optim::Adagrad adagrad(parameters, 0.01), other(others, 0.01);
  auto& state = static_cast<torch::optim::AdagradParamState&>(*adagrad.state().at(parameters[0].unsafeGetTensorImpl()));
  state.sum(at::full({1}, 0.25F).expand({200, 300}));
  const SplitOptimizer parts = split_optimizer(adagrad);
  load_split(other, parts.archive, arrived(parts.tensors));
  const auto& loaded =
      static_cast<torch::optim::AdagradParamState&>(*other.state().at(others[0].unsafeGetTensorImpl()));
  EXPECT_TRUE(loaded.sum().eq(0.25F).all().item<bool>());
  EXPECT_EQ(loaded.sum().numel(), 60'000);
}

}  // namespace
}  // namespace gradwire::split_optimizer_test
