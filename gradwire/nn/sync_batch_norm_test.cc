// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm against torch's BatchNorm in float64 over the batch of all ranks together.
#include "gradwire/nn/sync_batch_norm.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <array>
#include <memory>
#include <numeric>
#include <optional>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/nn/layer_group.h"
#include "tests/support/ranks.h"

namespace gradwire::testing::sync_batch_norm_test {
namespace {

using torch::nn::BatchNormOptions;

constexpr std::int64_t kChannels = 3;

at::Tensor random_double(at::IntArrayRef sizes, int seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
  return at::randn(sizes, generator, at::TensorOptions(at::kDouble)) * 2 + 5;
}

// One kind of layer and of batch: how many rows each rank has, and the dimensions behind the channels.
struct Batch {
  const char* name;
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> inner;
  bool affine = true, tracked = true;
  std::optional<double> momentum = 0.1;

  BatchNormOptions options() const {
    return BatchNormOptions(kChannels).affine(affine).track_running_stats(tracked).momentum(momentum).eps(1e-3);
  }
  std::vector<std::int64_t> sizes(std::int64_t all_rows) const {
    std::vector<std::int64_t> sizes{all_rows, kChannels};
    sizes.insert(sizes.end(), inner.begin(), inner.end());
    return sizes;
  }
  std::int64_t all_rows() const { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }
  at::Tensor part(const at::Tensor& whole, int rank) const {
    return whole.split_with_sizes(rows)[static_cast<std::size_t>(rank)];
  }
};

void PrintTo(const Batch& batch, std::ostream* out) { *out << batch.name; }

// torch's layer for the number of dimensions.
torch::nn::AnyModule plain_layer(const Batch& batch) {
  torch::nn::AnyModule any;
  if (batch.inner.size() < 2) any = torch::nn::AnyModule(torch::nn::BatchNorm1d(batch.options()));
  if (batch.inner.size() == 2) any = torch::nn::AnyModule(torch::nn::BatchNorm2d(batch.options()));
  if (batch.inner.size() == 3) any = torch::nn::AnyModule(torch::nn::BatchNorm3d(batch.options()));
  any.ptr()->to(at::kDouble);
  return any;
}

void set_parameters(torch::nn::Module& layer) {
  const at::NoGradGuard no_grad;
  int seed = 50;
  for (auto& parameter : layer.parameters()) parameter.copy_(random_double({kChannels}, seed++));
}

struct Step {
  at::Tensor output, input_gradient;
  std::vector<at::Tensor> gradients, second, buffers;  // of the parameters; second: of input and parameters
};

// A step with a loss that differs for every element, and the derivatives of its input gradient.
template <class Layer>
Step step_of(Layer& layer, torch::nn::Module& module, at::Tensor input, const at::Tensor& weights,
             bool needs_gradient) {
  Step step;
  input = input.clone().requires_grad_(needs_gradient);
  std::vector<at::Tensor> leaves = module.parameters();
  step.output = layer.forward(input);
  const at::Tensor loss = (step.output.pow(3) * weights).sum();
  leaves.insert(leaves.begin(), input);
  if (!needs_gradient) leaves.erase(leaves.begin());
  auto first = torch::autograd::grad({loss}, leaves, {}, true, true, true);
  if (needs_gradient) {
    step.input_gradient = first.front();
    step.second = torch::autograd::grad({step.input_gradient.square().sum()}, leaves, {}, {}, false, true);
    first.erase(first.begin());
  }
  step.gradients = first;
  for (const at::Tensor& buffer : module.buffers()) step.buffers.push_back(buffer.clone());
  return step;
}

std::vector<Step> wanted_steps(const Batch& batch, int steps) {
  torch::nn::AnyModule layer = plain_layer(batch);
  set_parameters(*layer.ptr());
  struct Forward {
    torch::nn::AnyModule& layer;
    at::Tensor forward(const at::Tensor& input) { return layer.forward(input); }
  } forward{layer};
  std::vector<Step> wanted;
  for (int i = 0; i < steps; ++i) {
    const auto sizes = batch.sizes(batch.all_rows());
    wanted.push_back(step_of(forward, *layer.ptr(), random_double(sizes, i), random_double(sizes, 100 + i), true));
  }
  return wanted;
}

void expect_near(const at::Tensor& actual, const at::Tensor& wanted, const char* what) {
  EXPECT_EQ(actual.sizes(), wanted.sizes()) << what;
  EXPECT_TRUE(at::allclose(actual.to(at::kDouble), wanted.to(at::kDouble), 1e-8, 1e-9)) << what << " is\n"
                                                                                        << actual << "\nbut should be\n"
                                                                                        << wanted;
}

at::Tensor sum_of_ranks(const at::Tensor& tensor, ProcessGroup& group) {
  const at::Tensor sum = tensor.detach().clone();
  group.all_reduce({sum})->wait();
  return sum;
}

torch::nn::Sequential net_with(torch::nn::AnyModule norm) {
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(4, kChannels));
  net->push_back(std::move(norm));
  net->push_back(torch::nn::Tanh());
  net->push_back(torch::nn::Linear(kChannels, 2));
  fill(*net, 3);
  net->to(at::kDouble);
  return net;
}

constexpr int kDdpRanks = 2;

// Five steps of `forward`, which is `net` or DDP around it; parameters and buffers at the end.
template <class Forward>
std::vector<at::Tensor> train(Forward& forward, torch::nn::Module& net,
                              const std::function<at::Tensor(const at::Tensor&)>& part) {
  torch::optim::SGD optimizer(net.parameters(), 0.2);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    forward.forward(part(random_tensor({6, 4}, step).to(at::kDouble))).square().mean().backward();
    optimizer.step();
  }
  std::vector<at::Tensor> all = net.parameters();
  for (const at::Tensor& buffer : net.buffers()) all.push_back(buffer.to(at::kDouble));
  return all;
}

void expect_trains_as_one_rank(int rank, const DdpOptions& options) {
  auto alone = net_with(torch::nn::AnyModule(torch::nn::BatchNorm1d(kChannels)));
  auto net = net_with(torch::nn::AnyModule(torch::nn::BatchNorm1d(kChannels)));
  const auto wanted = train(*alone, *alone, [](const at::Tensor& x) { return x; });
  convert_sync_batchnorm(net.ptr(), options.process_group);
  DistributedDataParallel ddp(net, options);
  const auto part = [&](const at::Tensor& x) { return x.chunk(kDdpRanks)[static_cast<std::size_t>(rank)]; };
  expect_close(train(ddp, *net, part), wanted, 1e-9);
}

// First: its ranks are forked.
TEST(SyncBatchNorm, TrainsUnderDdpOnProcesses) {
  test_support::run_ranks("shm", kDdpRanks, [](int rank, const std::shared_ptr<Store>& store) {
    at::set_num_threads(1);
    expect_trains_as_one_rank(rank, options_for({"shm", 1, true}, make_process_group("shm", store, rank, kDdpRanks,
                                                                                     std::chrono::minutes(2))));
  });
}

class SyncBatchNormDdp : public ::testing::TestWithParam<Setup> {};

TEST_P(SyncBatchNormDdp, TrainsAsOneRankOnTheWholeBatch) {
  run_ranks(GetParam(), kDdpRanks, [](int rank, std::shared_ptr<ProcessGroup> group) {
    expect_trains_as_one_rank(rank, options_for(GetParam(), group));
  });
}

INSTANTIATE_TEST_SUITE_P(Setups, SyncBatchNormDdp, ::testing::ValuesIn(all_setups()), name_of_setup);

class SyncBatchNormTest : public ::testing::TestWithParam<Batch> {};

TEST_P(SyncBatchNormTest, IsTheBatchNormOfTheWholeBatchToTheSecondDerivative) {
  const Batch batch = GetParam();
  const std::vector<Step> wanted = wanted_steps(batch, 3);
  for (const char* backend : {"local", "threads"}) {
    run_ranks({backend}, static_cast<int>(batch.rows.size()), [&](int rank, std::shared_ptr<ProcessGroup> group) {
      SCOPED_TRACE(concat(backend, ", rank ", rank));
      SyncBatchNorm layer(batch.options(), group);
      layer->to(at::kDouble);
      set_parameters(*layer);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const auto sizes = batch.sizes(batch.all_rows());
        const at::Tensor input = batch.part(random_double(sizes, static_cast<int>(i)), rank);
        const at::Tensor weights = batch.part(random_double(sizes, 100 + static_cast<int>(i)), rank);
        const Step step = step_of(*layer, *layer, input, weights, true);
        expect_near(step.output, batch.part(wanted[i].output, rank), "output");
        expect_near(step.input_gradient, batch.part(wanted[i].input_gradient, rank), "gradient of the input");
        expect_near(step.second[0], batch.part(wanted[i].second[0], rank), "second derivative");
        for (std::size_t p = 0; p < step.gradients.size(); ++p)
          expect_near(sum_of_ranks(step.gradients[p], *group), wanted[i].gradients[p], "gradient of a parameter");
        if (batch.affine) expect_near(sum_of_ranks(step.second[1], *group), wanted[i].second[1], "mixed derivative");
        ASSERT_EQ(step.buffers.size(), wanted[i].buffers.size());
        for (std::size_t b = 0; b < step.buffers.size(); ++b)
          expect_near(step.buffers[b], wanted[i].buffers[b], "buffer");
        for (const at::Tensor& buffer : step.buffers) {
          at::Tensor first = buffer.clone();
          group->broadcast({first})->wait();
          EXPECT_TRUE(at::equal(first, buffer)) << "not the same bits as on rank 0";
        }
      }
      // Eval mode is local: this rank alone calls it.
      layer->eval();
      if (rank == 0) {
        EXPECT_EQ(layer(random_double(batch.sizes(4), 9)).size(0), 4);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Batches, SyncBatchNormTest,
    ::testing::Values(Batch{"two_dimensions", {4, 2, 3}, {}}, Batch{"three_dimensions", {1, 2}, {5}},
                      Batch{"four_dimensions", {2, 2}, {3, 2}}, Batch{"five_dimensions", {1, 2, 1}, {2, 3, 2}},
                      Batch{"an_empty_batch", {3, 0, 2}, {2, 2}}, Batch{"only_one_rank_has_any", {0, 0, 4}, {}},
                      Batch{"one_element_each", {1, 1, 1}, {}},
                      Batch{"cumulative", {4, 2}, {}, true, true, std::nullopt},
                      Batch{"without_parameters", {4, 2}, {3}, false}, Batch{"untracked", {4, 2}, {}, true, false},
                      Batch{"bare", {2, 0, 1}, {2, 2}, false, false}, Batch{"one_rank", {5}, {2}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(SyncBatchNorm, ARankWhoseInputNeedsNoGradientTakesPart) {
  const Batch batch{"", {2, 3, 1}, {2}, false};
  const Step wanted = wanted_steps(batch, 1)[0];
  run_ranks({"threads"}, 3, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    SyncBatchNorm layer(batch.options(), group);
    const at::Tensor input = batch.part(random_double(batch.sizes(6), 0), rank).clone().requires_grad_(rank != 1);
    const at::Tensor output = layer(input);
    EXPECT_TRUE(output.requires_grad());
    (output.pow(3) * batch.part(random_double(batch.sizes(6), 100), rank)).sum().backward();
    if (rank != 1) expect_near(input.grad(), batch.part(wanted.input_gradient, rank), "gradient");
    EXPECT_EQ(input.grad().defined(), rank != 1);
  });
}

TEST(SyncBatchNorm, HalfTypesComputeInFloatAndKeepTypeAndLayout) {
  run_ranks({"threads"}, 2, [](int rank, std::shared_ptr<ProcessGroup> group) {
    const at::Tensor whole =
        random_double({4, kChannels, 2, 2}, 1).to(at::kBFloat16).contiguous(at::MemoryFormat::ChannelsLast);
    SyncBatchNorm layer(BatchNormOptions(kChannels), group);
    const at::Tensor output = layer(whole.narrow(0, 2 * rank, 2).contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(output.is_contiguous(at::MemoryFormat::ChannelsLast));
    const at::Tensor wide = whole.to(at::kDouble);
    const at::Tensor wanted = at::batch_norm(wide, {}, {}, {}, {}, true, 0, 1e-5, false).narrow(0, 2 * rank, 2);
    EXPECT_TRUE(at::allclose(output.to(at::kDouble), wanted, 1.0 / 128, 1.0 / 128));
  });
}

// In DDP's mixed precision the buffers keep their type, unless buffer_dtype is given.
TEST(SyncBatchNorm, ParametersAndBuffersMayBeOfDifferentTypes) {
  const at::Tensor whole = random_double({6, kChannels}, 1);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const double tolerance = type == at::kDouble ? 1e-6 : 0.05;
    torch::nn::BatchNorm1d wanted{BatchNormOptions(kChannels)};
    wanted->to(at::kDouble);
    const at::Tensor trained = wanted->forward(whole).detach();
    wanted->eval();
    const at::Tensor evaluated = wanted->forward(whole).detach();
    for (const int world : {1, 2}) {
      run_ranks({"threads"}, world, [&](int rank, std::shared_ptr<ProcessGroup> group) {
        SCOPED_TRACE(concat(type, ", rank ", rank, " of ", world));
        const auto part = [&](const at::Tensor& of) { return of.chunk(world)[static_cast<std::size_t>(rank)]; };
        SyncBatchNorm layer(BatchNormOptions(kChannels), group);
        for (const at::Tensor& parameter : layer->parameters()) parameter.set_data(parameter.detach().to(type));
        const at::Tensor input = part(whole).to(type).requires_grad_();
        const at::Tensor output = layer(input);
        EXPECT_EQ(output.scalar_type(), type);
        EXPECT_TRUE(at::allclose(output.detach().to(at::kDouble), part(trained), 0, tolerance));
        output.square().sum().backward();
        EXPECT_EQ(layer->weight.grad().scalar_type(), type);
        EXPECT_EQ(layer->running_var.scalar_type(), at::kFloat);
        EXPECT_TRUE(at::allclose(layer->running_mean.to(at::kDouble), wanted->running_mean, 0, tolerance));
        EXPECT_TRUE(at::allclose(layer->running_var.to(at::kDouble), wanted->running_var, 0, tolerance));
        layer->eval();
        EXPECT_TRUE(at::allclose(layer(input.detach()).detach().to(at::kDouble), part(evaluated), 0, tolerance));
      });
    }
  }
}

TEST(SyncBatchNorm, WhatCannotBeNormalizedIsRefusedOnAllRanksAndTheGroupGoesOn) {
  run_ranks({"threads"}, 2, [](int rank, std::shared_ptr<ProcessGroup> group) {
    SyncBatchNorm layer(BatchNormOptions(kChannels), group);
    const std::string one = error_of([&] { layer(at::ones({rank, kChannels})); });
    EXPECT_NE(one.find("one element a channel over all ranks"), std::string::npos) << one;
    EXPECT_EQ(layer->num_batches_tracked.item<std::int64_t>(), 0);
    const std::string mode = error_of([&] {
      const at::AutoGradMode grad_mode(rank == 0);
      layer(at::ones({2, kChannels}).requires_grad_());
    });
    EXPECT_NE(mode.find("no-grad"), std::string::npos) << mode;
    EXPECT_THROW(layer(at::ones({kChannels})), InvalidArgument);
    EXPECT_THROW(layer(at::ones({2, kChannels + 1})), InvalidArgument);
    EXPECT_THROW(layer(at::ones({2, kChannels}, at::kLong)), InvalidArgument);
    EXPECT_TRUE(at::equal(layer(at::ones({0, kChannels})), at::ones({0, kChannels})));
    EXPECT_EQ(layer(at::rand({2, kChannels})).size(0), 2);
  });
  SyncBatchNorm alone{BatchNormOptions(kChannels)};
  EXPECT_THROW(alone(at::ones({1, kChannels})), InvalidArgument);
  EXPECT_EQ(alone(at::rand({2, kChannels})).size(0), 2);
}

// Without a momentum the statistics are the mean of all batches that had elements.
TEST(SyncBatchNorm, ABatchWithoutElementsDoesNotCount) {
  run_ranks({"threads"}, 2, [](int, std::shared_ptr<ProcessGroup> group) {
    SyncBatchNorm layer(BatchNormOptions(kChannels).momentum(std::nullopt), group);
    layer(at::ones({0, kChannels}));
    EXPECT_EQ(layer->num_batches_tracked.item<std::int64_t>(), 0);
    for (const double mean : {10.0, 20.0}) layer(at::randn({64, kChannels}) * 1e-3 + mean);
    EXPECT_EQ(layer->num_batches_tracked.item<std::int64_t>(), 2);
    EXPECT_TRUE(at::allclose(layer->running_mean, at::full({kChannels}, 15.0F), 1e-3));
  });
}

TEST(SyncBatchNorm, ItsCollectivesDoNotMeetTheUsersOwn) {
  run_ranks({"threads"}, 2, [](int rank, std::shared_ptr<ProcessGroup> group) {
    SyncBatchNorm layer(BatchNormOptions(kChannels), group);
    layer(random_tensor({4, kChannels}, rank));
    // One sequence for both would not bear this.
    const at::Tensor mine = at::ones({1}), input = random_tensor({4, kChannels}, rank).requires_grad_();
    std::shared_ptr<Work> work;
    if (rank == 0) work = group->all_reduce({mine});
    const at::Tensor output = layer(input);
    if (rank == 1) work = group->all_reduce({mine});
    work->wait();
    if (rank == 0) work = group->all_reduce({mine});
    output.pow(2).sum().backward();
    if (rank == 1) work = group->all_reduce({mine});
    work->wait();
    EXPECT_EQ(mine.item<float>(), 4);
  });
}

TEST(SyncBatchNorm, LayersShareADuplicateAsLongAsTheGroupLives) {
  std::array<std::weak_ptr<ProcessGroup>, 2> seen;
  run_ranks({"threads"}, 2, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    std::optional<LayerGroup> kept;  // by one rank alone, as the best model of several
    auto& mine = seen[static_cast<std::size_t>(rank)];
    {
      LayerGroup first(group);
      const auto duplicate = first.duplicate();
      EXPECT_NE(duplicate, group);
      EXPECT_EQ(LayerGroup(group).duplicate(), duplicate);
      mine = duplicate;
      if (rank == 0) kept = first;
    }
    EXPECT_EQ(LayerGroup(group).duplicate(), mine.lock());
    kept.reset();
    EXPECT_FALSE(mine.expired());
  });
  for (const auto& duplicate : seen) EXPECT_TRUE(duplicate.expired()) << "it goes with the group";
  run_local_ranks(2, [](int, std::shared_ptr<LocalGroup> group) {
    EXPECT_EQ(LayerGroup(group).duplicate(), group);  // it has none
  });
}

// As users nest one Sequential in another.
struct BlockImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(at::Tensor x) { return SequentialImpl::forward(std::move(x)); }
};
TORCH_MODULE(Block);

// Every place that can be converted, and a layer that stands in two of them.
struct TreeImpl : torch::nn::Module {
  TreeImpl() {
    body = register_module("body", torch::nn::Sequential(torch::nn::Linear(4, kChannels), Block(shared)));
    list = register_module("list", torch::nn::ModuleList(torch::nn::Tanh(), shared));
    const std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> named{
        {"norm", torch::nn::BatchNorm2d(5).ptr()}};
    dict = register_module("dict", torch::nn::ModuleDict(named));
    ready = register_module("ready", SyncBatchNorm(6));
  }
  at::Tensor forward(const at::Tensor& x) { return body->forward(x); }
  torch::nn::BatchNorm1d shared{BatchNormOptions(kChannels).momentum(0.3)};
  torch::nn::Sequential body{nullptr};
  torch::nn::ModuleList list{nullptr};
  torch::nn::ModuleDict dict{nullptr};
  SyncBatchNorm ready{nullptr};
};
TORCH_MODULE(Tree);

TEST(ConvertSyncBatchnorm, ReplacesLayersInContainersAndKeepsTheirTensors) {
  Tree tree;
  tree->shared->eval();
  const auto before = tree->named_parameters(), buffers = tree->named_buffers();
  const at::Tensor x = random_tensor({4, 4}, 1);
  const at::Tensor output = tree(x);
  run_local_ranks(1, [&](int, std::shared_ptr<LocalGroup> group) {
    EXPECT_EQ(convert_sync_batchnorm(tree.ptr(), group), tree.ptr());
    for (const auto& module : tree->modules()) {
      EXPECT_EQ(module->as<torch::nn::BatchNorm1d>(), nullptr);
      EXPECT_EQ(module->as<torch::nn::BatchNorm2d>(), nullptr);
    }
    const auto in_body = tree->body->ptr<BlockImpl>(1)->ptr<SyncBatchNormImpl>(0);
    ASSERT_NE(in_body, nullptr);
    EXPECT_EQ(tree->list->ptr(1), in_body);
    EXPECT_NE((*tree->dict)["norm"]->as<SyncBatchNorm>(), nullptr);
    EXPECT_EQ(tree->ready->process_group(), group);
    EXPECT_EQ(in_body->process_group(), group);
    EXPECT_EQ(in_body->options.momentum(), 0.3);
    EXPECT_FALSE(in_body->is_training());
    EXPECT_TRUE(at::equal(tree(x), output));
  });
  ASSERT_EQ(tree->named_parameters().keys(), before.keys());
  for (const auto& item : before) EXPECT_TRUE(tree->named_parameters()[item.key()].is_same(item.value())) << item.key();
  for (const auto& item : buffers) EXPECT_TRUE(tree->named_buffers()[item.key()].is_same(item.value())) << item.key();
}

TEST(ConvertSyncBatchnorm, WhatWasConvertedCanBeCloned) {
  torch::nn::Sequential net(torch::nn::Linear(4, kChannels), torch::nn::BatchNorm1d(kChannels));
  convert_sync_batchnorm(net.ptr());
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  const at::Tensor x = random_tensor({4, 4}, 1);
  EXPECT_TRUE(at::equal(copy->forward(x), net->forward(x)));
  EXPECT_NE(copy->ptr(1)->as<SyncBatchNorm>(), nullptr);
  EXPECT_FALSE(copy->parameters()[2].is_same(net->parameters()[2]));
  copy->to(at::kDouble);
  EXPECT_EQ(copy->forward(x.to(at::kDouble)).scalar_type(), at::kDouble);
}

struct TypedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return body->forward(norm(x)); }
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(3));
  torch::nn::Sequential body = register_module("body", torch::nn::Sequential(torch::nn::BatchNorm1d(3)));
};

TEST(ConvertSyncBatchnorm, RefusesTypedMembersByNameAndChangesNothing) {
  const auto typed = std::make_shared<TypedImpl>();
  const torch::nn::Sequential outer(typed);
  const std::string message = error_of([&] { convert_sync_batchnorm(outer.ptr()); });
  EXPECT_NE(message.find("'0.norm'"), std::string::npos) << message;
  EXPECT_NE(message.find("gradwire::SyncBatchNorm"), std::string::npos) << message;
  EXPECT_EQ(message.find("body"), std::string::npos) << message;
  EXPECT_NE(typed->body->ptr(0)->as<torch::nn::BatchNorm1d>(), nullptr);
  EXPECT_THROW(convert_sync_batchnorm(nullptr), InvalidArgument);
}

TEST(ConvertSyncBatchnorm, OfALayerItselfIsItsReplacement) {
  torch::nn::BatchNorm3d plain(7);
  const auto sync = convert_sync_batchnorm(plain.ptr());
  ASSERT_NE(sync->as<SyncBatchNorm>(), nullptr);
  EXPECT_TRUE(sync->as<SyncBatchNorm>()->weight.is_same(plain->weight));
}

}  // namespace
}  // namespace gradwire::testing::sync_batch_norm_test
