// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/model_averaging.h"

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/hooks/post_local_sgd_hook.h"
#include "gradwire/optim/optim_test_support.h"
#include "gradwire/optim/post_local_sgd_optimizer.h"

namespace gradwire::testing::model_averaging_test {
namespace {

using Level = HierarchicalModelAverager::Level;

// Parameter `i` of `rank` after local step `step`: whole numbers of a size whose averages over 1, 2 and 4 ranks are
// exact.
double value_of(int rank, int step, int i) { return 4 * (rank * rank + 10 * step + i); }

// What `average` makes of each step: the hand-written oracle. Ranks of one block of `block` follow one another.
double mean_of(int rank, int step, int i, int block) {
  const int first = rank / block * block;
  double sum = 0;
  for (int other = first; other < first + block; ++other) sum += value_of(other, step, i);
  return sum / block;
}

std::vector<at::Tensor> parameters_of(int rank, int step) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 4; ++i) {
    at::Tensor values = at::full({3, i + 1}, value_of(rank, step, i), i == 2 ? at::kDouble : at::kFloat);
    if (i == 1) values = values.t();
    parameters.push_back(values.requires_grad_());
    if (i != 3) parameters.back().mutable_grad() = at::zeros_like(parameters.back());
  }
  return parameters;
}

// Runs `steps` steps and compares each with the block size that `block_at` says; 1: not averaged.
void expect_averages(ModelAverager& averager, int rank, int steps, const std::function<int(int)>& block_at) {
  for (int step = 0; step < steps; ++step) {
    EXPECT_EQ(averager.step(), step);
    const auto parameters = parameters_of(rank, step);
    const void* const memory = parameters[0].const_data_ptr();
    averager.average_parameters(parameters);
    EXPECT_EQ(parameters[0].const_data_ptr(), memory);
    for (int i = 0; i < 4; ++i) {
      // The last one has no gradient, and is left alone.
      const double expected = mean_of(rank, step, i, i == 3 ? 1 : block_at(step));
      EXPECT_TRUE(parameters[static_cast<std::size_t>(i)].eq(expected).all().item<bool>())
          << "rank " << rank << ", step " << step << ", parameter " << i << ": "
          << parameters[static_cast<std::size_t>(i)] << " instead of " << expected;
    }
  }
}

TEST(PeriodicAverager, AveragesFirstAtTheEndOfWarmUp) {
  for (const std::string group_kind : {"local", "threads"}) {
    for (const int world : {1, 2, 4}) {
      run_ranks({group_kind}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        PeriodicModelAverager averager(3, 2, group);
        expect_averages(averager, rank, 10, [&](int step) { return step >= 2 && (step - 2) % 3 == 0 ? world : 1; });
        averager.set_step(5);
        const auto parameters = parameters_of(rank, 0);
        averager.average_parameters(parameters);
        EXPECT_EQ(parameters[0][0][0].item<double>(), mean_of(rank, 0, 0, world));
      });
    }
  }
}

TEST(HierarchicalAverager, TheLargestPeriodThatDividesTheStepCounts) {
  run_ranks({"threads"}, 4, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    HierarchicalModelAverager averager({{2, 2}, {6, 4}}, 3, group);
    expect_averages(averager, rank, 14, [](int step) {
      if (step < 3) return 1;
      return step % 6 == 0 ? 4 : step % 2 == 0 ? 2 : 1;
    });
    EXPECT_EQ(averager.group_at(2), nullptr);
    EXPECT_EQ(averager.group_at(12), group);
    EXPECT_EQ(averager.group_at(4)->size(), 2);
  });
  // One level needs no split.
  run_ranks({"local"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    HierarchicalModelAverager averager({{2, 2}}, 0, group);
    expect_averages(averager, rank, 5, [](int step) { return step % 2 == 0 ? 2 : 1; });
    EXPECT_THROW(HierarchicalModelAverager({{2, 1}, {4, 2}}, 0, group), UnsupportedError);
  });
}

TEST(AverageParameters, AveragesEachTypeAndBigOnesInMessages) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    std::vector<at::Tensor> parameters;
    for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble, at::kComplexFloat})
      parameters.push_back(at::full({5, 2}, 2 * rank, type).t());
    parameters.push_back(at::empty({0, 4}));
    parameters.push_back(at::full({4 << 20}, 3.0F * static_cast<float>(rank)));
    parameters.push_back(at::full({4 << 20}, 5.0F * static_cast<float>(rank)));
    average_parameters(parameters, group);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(parameters[i].eq(1).all().item<bool>()) << i;
    EXPECT_TRUE(parameters[6].eq(1.5).all().item<bool>());
    EXPECT_TRUE(parameters[7].eq(2.5).all().item<bool>());
  });
}

TEST(AveragerErrors, NumbersThatMakeNoSenseAreRefused) {
  run_ranks({"threads"}, 4, [](int, const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_THROW(PeriodicModelAverager(0, 0, group), InvalidArgument);
    EXPECT_THROW(PeriodicModelAverager(-2, 0, group), InvalidArgument);
    EXPECT_THROW(PeriodicModelAverager(1, -1, group), InvalidArgument);
    EXPECT_THROW(PeriodicModelAverager(1, 0, group).set_step(-1), InvalidArgument);
    EXPECT_THROW(PeriodicModelAverager(1), InvalidArgument);  // no default group
    const auto refusal = [&](const std::vector<Level>& levels, std::int64_t warm_up = 0) {
      return error_of([&] { HierarchicalModelAverager(levels, warm_up, group); });
    };
    EXPECT_NE(refusal({}).find("no levels"), std::string::npos);
    EXPECT_NE(refusal({{0, 2}, {4, 4}}).find("period 0"), std::string::npos);
    EXPECT_NE(refusal({{4, 2}, {4, 4}}).find("period 4 comes after 4"), std::string::npos);
    EXPECT_NE(refusal({{2, 3}, {4, 4}}).find("groups of 3"), std::string::npos);
    EXPECT_NE(refusal({{2, 0}, {4, 4}}).find("groups of 0"), std::string::npos);
    EXPECT_NE(refusal({{2, 2}}).find("last group size is 2"), std::string::npos);
    EXPECT_NE(refusal({{2, 4}}, -1).find("warm_up"), std::string::npos);
    const auto averager = std::make_shared<PeriodicModelAverager>(2, 0, group);
    EXPECT_THROW(PostLocalSGDOptimizer(nullptr, averager), InvalidArgument);
    EXPECT_THROW(PostLocalSGDOptimizer(plain_optimizer(adam_factory(), {at::ones({2}).requires_grad_()}), nullptr),
                 InvalidArgument);
  });
}

// Ranks that pass other parameters are found, not averaged into one another.
TEST(AveragerErrors, RanksWithOtherGradientsAreFound) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = parameters_of(rank, 0);
    if (rank == 1) parameters[0].mutable_grad() = at::Tensor();
    PeriodicModelAverager averager(1, 0, group);
    EXPECT_THROW(averager.average_parameters(parameters), MismatchError);
  });
}

using Averagers = std::vector<std::pair<std::string, std::function<std::unique_ptr<ModelAverager>()>>>;

// Averagers over two ranks that average at steps 0, 2, 4, ...
Averagers averagers_of(const std::shared_ptr<ProcessGroup>& group) {
  return {{"PeriodicModelAverager", [group] { return std::make_unique<PeriodicModelAverager>(2, 0, group); }},
          {"HierarchicalModelAverager", [group] {
             return std::make_unique<HierarchicalModelAverager>(std::vector<Level>{{2, 2}}, 0, group);
           }}};
}

std::string mismatch_of(ModelAverager& averager, const std::vector<at::Tensor>& parameters) {
  const auto before = values_of(parameters);
  const std::int64_t step = averager.step();
  try {
    averager.average_parameters(parameters);
  } catch (const MismatchError& error) {
    expect_same_bits(values_of(parameters), before, "nothing was averaged");
    EXPECT_EQ(averager.step(), step);
    return error.what();
  }
  return "no MismatchError";
}

// Two parameters of one size and dtype, so that messages of one and of the other have as many bytes.
std::vector<at::Tensor> two_alike(int rank) {
  std::vector<at::Tensor> parameters{at::full({8, 8}, rank, at::kFloat), at::full({8, 8}, 10 + rank, at::kFloat)};
  for (at::Tensor& parameter : parameters) parameter.requires_grad_();
  return parameters;
}

void give_gradient(const at::Tensor& parameter) { parameter.mutable_grad() = at::zeros_like(parameter); }

TEST(AveragerErrors, RanksWithGradientsOfDifferentParametersOfOneSizeAreFound) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    for (const auto& [name, make] : averagers_of(group)) {
      const auto averager = make();
      const auto parameters = two_alike(rank);
      give_gradient(parameters[static_cast<std::size_t>(rank)]);
      const std::string error = mismatch_of(*averager, parameters);
      EXPECT_NE(error.find(name + " at step 0: parameter number 0 (Float [8, 8]) has a gradient on rank 0 and none on "
                                  "rank 1"),
                std::string::npos)
          << error;
      // The group is still good.
      for (const at::Tensor& parameter : parameters) give_gradient(parameter);
      averager->average_parameters(parameters);
      EXPECT_TRUE(parameters[0].eq(0.5).all().item<bool>());
      EXPECT_TRUE(parameters[1].eq(10.5).all().item<bool>());
    }
  });
}

// As after a batch that was empty on one rank.
TEST(AveragerErrors, ARankWithoutGradientsIsFoundAtThisAverage) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    for (const auto& [name, make] : averagers_of(group)) {
      const auto averager = make();
      const auto parameters = two_alike(rank);
      if (rank == 0) give_gradient(parameters[1]);
      const std::string error = mismatch_of(*averager, parameters);
      EXPECT_NE(error.find("parameter number 1 (Float [8, 8]) has a gradient on rank 0 and none on rank 1"),
                std::string::npos)
          << error;
      EXPECT_NE(error.find("Rank 1 has no gradients at all"), std::string::npos) << error;
    }
  });
}

TEST(AveragerErrors, RanksAtDifferentStepsAreFound) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    for (const auto& [name, make] : averagers_of(group)) {
      const auto averager = make();
      averager->set_step(rank == 0 ? 2 : 4);
      const auto parameters = two_alike(rank);
      for (const at::Tensor& parameter : parameters) give_gradient(parameter);
      const std::string error = mismatch_of(*averager, parameters);
      EXPECT_NE(error.find(name + ": rank 0 averages at step 2 and rank 1 at step 4"), std::string::npos) << error;
    }
  });
}

TEST(PeriodicAverager, WithoutAnyGradientNothingIsAveragedAndAWarningSaysSoOnce) {
  log::set_level(log::Level::warn);
  ::testing::internal::CaptureStderr();
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    for (const auto& [name, make] : averagers_of(group)) {
      const auto averager = make();
      const auto parameters = two_alike(rank);
      for (int step = 0; step < 3; ++step) averager->average_parameters(parameters);
      EXPECT_EQ(averager->step(), 3) << name;
      EXPECT_TRUE(parameters[0].eq(rank).all().item<bool>()) << name;
    }
  });
  log::set_level(log::Level::off);
  const std::string lines = ::testing::internal::GetCapturedStderr();
  for (const std::string name : {"PeriodicModelAverager", "HierarchicalModelAverager"}) {
    const std::string warning = name + ": no parameter has a gradient at step 0, so nothing is averaged";
    int count = 0;
    for (auto at = lines.find(warning); at != std::string::npos; at = lines.find(warning, at + 1)) ++count;
    EXPECT_EQ(count, 2) << "one on each rank, in: " << lines;
  }
  EXPECT_EQ(lines.find("at step 2"), std::string::npos) << lines;
}

// DDP with the hook against the algorithm written out: four ranks in two subgroups, warm-up of 3 steps, every second
// step after that averages all. In float64, so that orders of summation do not matter.
TEST(PostLocalSgdOptimizer, TrainsAsThePaperSays) {
  constexpr int kWorld = 4;
  constexpr int kWarmUp = 3;
  constexpr int kSteps = 9;
  const auto input = [](int rank, int step) { return random_tensor({2, 6}, 50 * step + rank).to(at::kDouble); };

  std::vector<Mlp> models;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  const auto factory = optimizer_factory<torch::optim::SGD>(torch::optim::SGDOptions(0.2).momentum(0.9));
  for (int rank = 0; rank < kWorld; ++rank) {
    models.emplace_back(3, 6);
    models.back()->to(at::kDouble);
    optimizers.push_back(plain_optimizer(factory, models.back()->parameters()));
  }
  const auto average_over = [&](int block, const std::function<at::Tensor(const at::Tensor&)>& what) {
    const torch::NoGradGuard no_grad;
    for (int first = 0; first < kWorld; first += block) {
      for (std::size_t i = 0; i < models[0]->parameters().size(); ++i) {
        at::Tensor mean;
        for (int rank = first; rank < first + block; ++rank) {
          const at::Tensor one = what(models[static_cast<std::size_t>(rank)]->parameters()[i]) / block;
          mean = mean.defined() ? mean + one : one.clone();
        }
        for (int rank = first; rank < first + block; ++rank)
          what(models[static_cast<std::size_t>(rank)]->parameters()[i]).copy_(mean);
      }
    }
  };
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < kWorld; ++rank) {
      optimizers[static_cast<std::size_t>(rank)]->zero_grad();
      models[static_cast<std::size_t>(rank)]->forward(input(rank, step)).pow(2).sum().backward();
    }
    average_over(step < kWarmUp ? 4 : 2, [](const at::Tensor& parameter) { return parameter.grad(); });
    for (const auto& optimizer : optimizers) optimizer->step();
    if (step >= kWarmUp && (step - kWarmUp) % 2 == 0)
      average_over(4, [](const at::Tensor& parameter) { return parameter.detach(); });
  }

  run_ranks({"threads"}, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(3, 6);
    net->to(at::kDouble);
    DistributedDataParallel ddp(net, options_for({"threads"}, group));
    ddp.register_comm_hook(make_post_local_sgd_hook({.subgroup = group->split(rank / 2), .start_iteration = kWarmUp}));
    const auto averager = std::make_shared<PeriodicModelAverager>(2, kWarmUp, group);
    PostLocalSGDOptimizer optimizer(plain_optimizer(factory, ddp.parameters()), averager);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      ddp(input(rank, step)).pow(2).sum().backward();
      optimizer.step();
    }
    const auto expected = models[static_cast<std::size_t>(rank)]->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(net->parameters()[i], expected[i], 0, 1e-12))
          << "rank " << rank << ", parameter " << i << " is off by "
          << (net->parameters()[i] - expected[i]).abs().max();
    }
    EXPECT_EQ(averager->step(), kSteps);
  });
}

TEST(PostLocalSgdOptimizer, SavesTheAveragersStepAndTakesOptionsAndGroups) {
  run_ranks({"threads"}, 2, [](int, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = many_parameters();
    const auto expected = many_parameters();
    const auto make = [&](const std::vector<at::Tensor>& all) {
      return plain_optimizer(adam_factory(), std::vector<at::Tensor>(all.begin(), all.end() - 1));
    };
    const auto averager = std::make_shared<PeriodicModelAverager>(1000, 2, group);
    PostLocalSGDOptimizer optimizer(make(parameters), averager);
    const auto plain = make(expected);
    for (int step = 0; step < 5; ++step) {
      if (step == 2) {
        optimizer.param_groups()[0].options().set_lr(0.5);
        plain->param_groups()[0].options().set_lr(0.5);
        optimizer.add_param_group(torch::optim::OptimizerParamGroup({parameters.back()}));
        plain->add_param_group(torch::optim::OptimizerParamGroup({expected.back()}));
      }
      set_gradients(parameters, 2, step);
      set_gradients(expected, 2, step);
      EXPECT_EQ(optimizer.step([] { return at::full({}, 7); }).item<int>(), 7);
      plain->step();
    }
    expect_same_bits(parameters, expected, "after 5 steps");  // all ranks are equal, and so is their average

    const auto other_averager = std::make_shared<PeriodicModelAverager>(1000, 2, group);
    PostLocalSGDOptimizer other(make(parameters), other_averager);
    other.add_param_group(torch::optim::OptimizerParamGroup({parameters.back()}));
    load_bytes(other, bytes_of(optimizer));
    EXPECT_EQ(other_averager->step(), 5);
    EXPECT_EQ(other.param_groups()[0].options().get_lr(), 0.5);
    load_bytes(other, bytes_of(*plain));  // which knows no averager
    EXPECT_EQ(other_averager->step(), 0);
    set_gradients(parameters, 2, 5);
    set_gradients(expected, 2, 5);
    other.step();
    plain->step();
    expect_same_bits(parameters, expected, "loaded");
  });
}

// An averager that refuses every archive.
class RefusingAverager final : public ModelAverager {
 public:
  void average_parameters(const std::vector<at::Tensor>&) override {}
  std::int64_t step() const override { return 0; }
  void set_step(std::int64_t) override {}
  void load(torch::serialize::InputArchive&) override { throw InvalidArgument("not mine"); }
};

TEST(PostLocalSgdOptimizer, KeepsItsStateWhenTheAveragerRefusesTheArchive) {
  const auto parameters = many_parameters();
  PostLocalSGDOptimizer optimizer(plain_optimizer(adam_factory(), parameters), std::make_shared<RefusingAverager>());
  const auto steps_of_the_first = [&] {
    const auto& state = *optimizer.inner().state().at(parameters[0].unsafeGetTensorImpl());
    return static_cast<const torch::optim::AdamParamState&>(state).step();
  };
  set_gradients(parameters, 1, 0);
  optimizer.step();
  const std::string after_one_step = bytes_of(optimizer);
  optimizer.step();
  EXPECT_THROW(load_bytes(optimizer, after_one_step), InvalidArgument);
  EXPECT_EQ(steps_of_the_first(), 2);
}

}  // namespace
}  // namespace gradwire::testing::model_averaging_test
