// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// GradScaler against its rules, written down once more in plain numbers, and over ranks.
#include "gradwire/amp/grad_scaler.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <limits>
#include <random>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/init.h"
#include "tests/support/local_group.h"
#include "tests/support/ranks.h"

namespace gradwire {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

at::Tensor parameter(double value = 1) { return at::full({3}, value, at::kFloat).requires_grad_(); }

torch::optim::SGD sgd(std::vector<at::Tensor> parameters) {
  return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.5));
}

// What a scaler is after each iteration.
struct Rules {
  double scale, growth, backoff;
  std::int64_t interval, good = 0;
  void iteration(bool overflow) {
    if (overflow) {
      scale *= backoff;
      good = 0;
    } else if (++good == interval) {
      good = 0;
      // A scale that is not finite in float would be of no use.
      if (scale * growth < std::numeric_limits<float>::max()) scale *= growth;
    }
  }
};

TEST(GradScaler, FollowsItsRulesThroughRandomOverflows) {
  for (const unsigned seed : {1U, 2U, 3U}) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    GradScalerOptions options;
    options.init_scale = 1024;
    options.growth_factor = 2;
    options.backoff_factor = 0.25;
    options.growth_interval = 1 + static_cast<std::int64_t>(seed);
    GradScaler scaler(options);
    Rules rules{options.init_scale, options.growth_factor, options.backoff_factor, options.growth_interval};
    at::Tensor x = parameter();
    auto optimizer = sgd({x});
    double value = 1;
    for (int i = 0; i < 200; ++i) {
      const bool overflow = random() % 5 == 0, look = random() % 2 == 0;
      optimizer.zero_grad();
      scaler.scale((x * at::full({3}, 2.0)).sum()).backward();
      EXPECT_EQ(x.grad()[0].item<double>(), 2 * rules.scale);
      if (overflow) x.mutable_grad()[1] = random() % 2 == 0 ? kInf : kNan;
      if (look) {
        scaler.unscale_(optimizer);
        EXPECT_EQ(x.grad()[0].item<double>(), 2);
        EXPECT_EQ(scaler.found_inf(optimizer), overflow);
      }
      EXPECT_EQ(scaler.step(optimizer), !overflow);
      if (!overflow) value -= 0.5 * 2;
      EXPECT_EQ(x[2].item<double>(), value);
      scaler.update();
      rules.iteration(overflow);
      ASSERT_EQ(scaler.get_scale(), rules.scale);
      ASSERT_EQ(scaler.state_dict()->growth_tracker, rules.good);
    }
  }
}

TEST(GradScaler, GrowsNoFurtherThanAFloat) {
  GradScalerOptions options;
  options.init_scale = 1e38;
  options.growth_interval = 1;
  GradScaler scaler(options);
  at::Tensor x = parameter();
  auto optimizer = sgd({x});
  for (const double wanted : {2e38, 2e38}) {
    x.mutable_grad() = at::ones({3});
    scaler.scale(at::ones({}));
    scaler.step(optimizer);
    scaler.update();
    EXPECT_FLOAT_EQ(static_cast<float>(scaler.get_scale()), static_cast<float>(wanted));
  }
}

TEST(GradScaler, EveryKindOfGradientIsUnscaled) {
  GradScalerOptions options;
  options.init_scale = 4;
  GradScaler scaler(options);
  const at::Tensor loss = scaler.scale(at::ones({}));
  EXPECT_EQ(loss.item<float>(), 4);
  const auto several = scaler.scale(std::vector<at::Tensor>{at::ones({2}), at::ones({}, at::kDouble)});
  EXPECT_EQ(several[0][1].item<float>(), 4);
  EXPECT_EQ(several[1].scalar_type(), at::kDouble);
  std::vector<at::Tensor> parameters;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kComplexFloat}) {
    parameters.push_back(at::zeros({2, 3}, type).requires_grad_());
    parameters.back().mutable_grad() = at::full({3, 2}, 8, type).t();  // not in order
  }
  parameters.push_back(at::zeros({5, 2}).requires_grad_());
  parameters.back().mutable_grad() =
      at::sparse_coo_tensor(at::ones({1, 2}, at::kLong), at::full({2, 2}, 8.0), {5, 2}).to(at::kFloat);
  parameters.push_back(parameter());  // has none
  auto optimizer = sgd(parameters);
  scaler.unscale_(optimizer);
  EXPECT_FALSE(scaler.found_inf(optimizer));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(at::equal(parameters[i].grad(), at::full({2, 3}, 2, parameters[i].scalar_type()))) << i;
  }
  EXPECT_TRUE(at::equal(parameters[4].grad().to_dense()[1], at::full({2}, 4.0f)));  // two entries for one row
  EXPECT_FALSE(parameters[5].grad().defined());

  at::Tensor half = at::zeros({2}, at::kHalf).requires_grad_();
  half.mutable_grad() = at::ones({2}, at::kHalf);
  auto half_optimizer = sgd({half});
  EXPECT_THROW(scaler.unscale_(half_optimizer), InvalidArgument);
}

// Autograd makes gradients whose conjugation or negation is still to be done.
TEST(GradScaler, LazyGradientsAreUnscaledToo) {
  at::Tensor conjugated = at::ones({3}, at::kComplexFloat).requires_grad_();
  at::Tensor negated = at::ones({3}).requires_grad_();
  auto optimizer = sgd({conjugated, negated});
  GradScaler scaler;
  scaler.scale(at::ones({1}));
  const at::Tensor numbers = at::view_as_complex(at::arange(6, at::kFloat).view({3, 2}));
  conjugated.mutable_grad() = (numbers * 65536).conj();
  negated.mutable_grad() = (at::arange(3, at::kFloat) * 65536)._neg_view();
  ASSERT_TRUE(conjugated.grad().is_conj());
  ASSERT_TRUE(negated.grad().is_neg());
  scaler.unscale_(optimizer);
  EXPECT_FALSE(scaler.found_inf(optimizer));
  EXPECT_TRUE(at::equal(conjugated.grad().resolve_conj(), numbers.conj().resolve_conj()));
  EXPECT_TRUE(at::equal(negated.grad().resolve_neg(), -at::arange(3, at::kFloat)));
}

TEST(GradScaler, KnowsAnOptimizerByWhicheverOfItsClasses) {
  struct Counts {
    virtual ~Counts() = default;
    int steps = 0;
  };
  struct Mine final : Counts, torch::optim::SGD {
    using torch::optim::SGD::SGD;
  };
  at::Tensor x = parameter();
  Mine optimizer({x}, torch::optim::SGDOptions(1));
  torch::optim::Optimizer& base = optimizer;
  GradScaler scaler;
  scaler.scale((x * 3).sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_FALSE(scaler.found_inf(base));
  EXPECT_TRUE(scaler.step(base));
  EXPECT_TRUE(at::equal(x.detach(), at::full({3}, -2.0F)));
}

TEST(GradScaler, WhatIsOutOfRangeIsRefusedAndChangesNothing) {
  GradScaler scaler;
  scaler.scale(at::ones({1}));
  const auto refused = [&](auto change) {
    GradScalerState state = *scaler.state_dict();
    change(state);
    EXPECT_THROW(scaler.load_state_dict(state), InvalidArgument);
    EXPECT_EQ(scaler.get_scale(), 65536);
    EXPECT_EQ(scaler.get_growth_factor(), 2);
    EXPECT_EQ(scaler.state_dict()->growth_tracker, 0);
  };
  refused([](GradScalerState& state) { state.growth_tracker = -5; });
  refused([](GradScalerState& state) {
    state.growth_factor = 3;
    state.growth_tracker = std::int64_t{1} << 40;
  });
  for (const double scale : {static_cast<double>(kInf), static_cast<double>(kNan), 0.0, 1e-60, 1e60})
    refused([&](GradScalerState& state) { state.scale = scale; });
  EXPECT_THROW(scaler.update(1e-60), InvalidArgument);
  EXPECT_THROW(scaler.update(1e60), InvalidArgument);
}

TEST(GradScaler, SeveralOptimizersShareOneScale) {
  GradScalerOptions options;
  options.init_scale = 8;
  GradScaler scaler(options);
  at::Tensor a = parameter(), b = parameter();
  auto first = sgd({a}), second = sgd({b});
  scaler.scale((a + b).sum()).backward();
  b.mutable_grad()[0] = kInf;
  EXPECT_TRUE(scaler.step(first));
  EXPECT_FALSE(scaler.step(second));
  EXPECT_EQ(a[0].item<float>(), 0.5);
  EXPECT_EQ(b[0].item<float>(), 1);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 4);
  scaler.update(32);
  EXPECT_EQ(scaler.get_scale(), 32);
}

TEST(GradScaler, CallsInAnotherOrderAreRefused) {
  GradScaler scaler;
  at::Tensor x = parameter();
  auto optimizer = sgd({x});
  EXPECT_THROW(scaler.unscale_(optimizer), InvalidArgument);
  EXPECT_THROW(scaler.step(optimizer), InvalidArgument);
  EXPECT_THROW(scaler.update(), InvalidArgument);
  scaler.scale(x.sum()).backward();
  EXPECT_THROW(scaler.update(), InvalidArgument);
  EXPECT_THROW(scaler.found_inf(optimizer), InvalidArgument);
  scaler.unscale_(optimizer);
  EXPECT_THROW(scaler.unscale_(optimizer), InvalidArgument);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_THROW(scaler.step(optimizer), InvalidArgument);
  EXPECT_THROW(scaler.unscale_(optimizer), InvalidArgument);
  EXPECT_THROW(scaler.update(0), InvalidArgument);
  scaler.update();
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_THROW(scaler.set_growth_factor(1), InvalidArgument);
  EXPECT_THROW(scaler.set_backoff_factor(1), InvalidArgument);
  EXPECT_THROW(scaler.set_growth_interval(0), InvalidArgument);
  EXPECT_EQ(scaler.get_growth_factor(), 2);
  GradScalerOptions bad;
  bad.init_scale = kNan;
  EXPECT_THROW(GradScaler{bad}, InvalidArgument);
}

TEST(GradScaler, StateGoesThroughACheckpoint) {
  at::Tensor x = parameter();
  auto optimizer = sgd({x});
  const auto iterate = [&](GradScaler& scaler, int times) {
    for (int i = 0; i < times; ++i) {
      scaler.scale(x.sum()).backward();
      scaler.step(optimizer);
      scaler.update();
    }
  };
  GradScalerOptions options;
  options.init_scale = 16;
  options.growth_interval = 5;
  GradScaler scaler(options);
  iterate(scaler, 3);
  std::stringstream file;
  {
    torch::serialize::OutputArchive archive;
    archive.write("beside", at::ones({2}));
    scaler.save(archive);
    archive.save_to(file);
  }
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  GradScaler fresh, used;
  iterate(used, 1);
  for (GradScaler* other : {&fresh, &used}) {
    other->load(archive);
    EXPECT_EQ(other->get_scale(), 16);
    iterate(*other, 1);
    EXPECT_EQ(other->get_scale(), 16);
    iterate(*other, 1);
    EXPECT_EQ(other->get_scale(), 32);  // three good steps before, two after
  }
  options.enabled = false;
  GradScaler off(options);
  EXPECT_FALSE(off.state_dict().has_value());
  off.load(archive);
  EXPECT_THROW(scaler.load_state_dict(off.state_dict()), InvalidArgument);
  torch::serialize::OutputArchive nothing;
  off.save(nothing);
}

TEST(GradScaler, NotEnabledItIsNotThere) {
  GradScalerOptions options;
  options.enabled = false;
  GradScaler scaler(options);
  at::Tensor x = parameter();
  auto optimizer = sgd({x});
  const at::Tensor loss = x.sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  x.mutable_grad() = at::full({3}, kInf);
  scaler.unscale_(optimizer);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(x.isinf().all().item<bool>());
}

void overflow_on_rank_one(int rank, const std::shared_ptr<ProcessGroup>& group, bool together) {
  GradScalerOptions options;
  options.init_scale = 8;
  if (together) options.process_group = group;
  GradScaler scaler(options);
  at::Tensor x = parameter();
  auto optimizer = sgd({x});
  scaler.scale(x.sum()).backward();
  if (rank == 1) x.mutable_grad()[0] = kNan;
  EXPECT_EQ(scaler.step(optimizer), !together && rank != 1);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), together || rank == 1 ? 4 : 8);
}

TEST(GradScaler, OverflowOnOneRankReachesAllOfTheGroup) {
  for (const bool together : {true, false}) {
    test_support::run_ranks("threads", 3, [&](int rank, const std::shared_ptr<Store>& store) {
      overflow_on_rank_one(rank, make_process_group("threads", store, rank, 3), together);
    });
    testing::run_local_ranks(
        2, [&](int rank, std::shared_ptr<testing::LocalGroup> group) { overflow_on_rank_one(rank, group, together); });
  }
}

}  // namespace
}  // namespace gradwire
