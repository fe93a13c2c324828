// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The requirements of PyTorch's test_c10d_spawn_gloo: DDP in a single process over a FileStore, and the differentiable
// collectives on two ranks.
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>

#include <cmath>
#include <fstream>

#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/functional/functional.h"
#include "gradwire/store/file_store.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing {
namespace {

class SingleProcess : public ::testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { destroy_process_group(); }

  // Over a group that comes from a file that is there already and empty.
  template <class Net, class... Inputs>
  void expect_trains_alike(Net net, const Inputs&... inputs) const {
    const test_support::TemporaryFolder folder;
    const std::string file = folder.path() + "/store";
    std::ofstream(file).close();
    InitOptions init;
    init.backend = GetParam();
    init.store = std::make_shared<FileStore>(file, 1);
    init.rank = 0;
    init.world_size = 1;
    init_process_group(init);
    train_both(net, inputs...);
    destroy_process_group();
  }

 private:
  // Ten Adam steps without zero_grad, under DDP and without.
  template <class Net, class... Inputs>
  static void train_both(Net net, const Inputs&... inputs) {
    DdpOptions options;
    options.process_group = default_group();
    const auto copy = std::dynamic_pointer_cast<typename Net::ContainedType>(net->clone());
    DistributedDataParallel ddp(copy, options);
    torch::optim::Adam net_optimizer(net->parameters(), torch::optim::AdamOptions(0.001));
    torch::optim::Adam ddp_optimizer(ddp.parameters(), torch::optim::AdamOptions(0.001));
    expect_close(ddp.parameters(), net->parameters());
    for (int step = 0; step < 10; ++step) {
      const at::Tensor net_output = net->forward(inputs...), ddp_output = ddp(inputs...);
      net_output.sum().backward();
      ddp_output.sum().backward();
      net_optimizer.step();
      ddp_optimizer.step();
    }
    expect_close(ddp.parameters(), net->parameters());
  }
};

// test_cpu
TEST_P(SingleProcess, ALinearLayer) {
  torch::nn::Linear net(2, 2);
  expect_trains_alike(net, random_tensor({30, 2}, 1));
}

constexpr std::int64_t kWidth = 24, kLayers = 3, kLength = 10, kBatch = 12;

struct RnnImpl : torch::nn::Cloneable<RnnImpl> {
  RnnImpl() { reset(); }
  void reset() override {
    lstm = register_module(
        "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(kWidth, kWidth).num_layers(kLayers).batch_first(true)));
    output = register_module("output", torch::nn::Linear(kWidth, kWidth));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    lstm->flatten_parameters();
    return torch::mse_loss(output(std::get<0>(lstm(x))), y);
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear output{nullptr};
};
TORCH_MODULE(Rnn);

// test_rnn: three layers of LSTM, whose forward() flattens its parameters, takes two inputs and returns the loss.
TEST_P(SingleProcess, ThreeLayersOfLstmThatFlattenTheirParameters) {
  expect_trains_alike(Rnn(), random_tensor({kBatch, kLength, kWidth}, 1), random_tensor({kBatch, kLength, kWidth}, 2));
}

INSTANTIATE_TEST_SUITE_P(Backends, SingleProcess, ::testing::Values("gloo", "shm", "threads"),
                         [](const auto& info) { return std::string(info.param); });

// ---- TestDistributedNNFunctions; gather and scatter are in gradwire/functional/functional_test.cc
// ---------------------------------------------------------------------------------------------------------------------

void on_two(const std::function<void(int rank, const functional::Group& group)>& body) {
  test_support::run_ranks("threads", 2, [&](int rank, const std::shared_ptr<Store>& store) {
    body(rank, make_process_group("threads", store, rank, 2));
  });
}

at::Tensor full(double value) { return at::full({5, 5}, value, at::kDouble); }

at::Tensor leaf(double value) { return full(value).requires_grad_(); }

void expect_full(const at::Tensor& actual, double value) { EXPECT_TRUE(at::allclose(actual, full(value))) << actual; }

TEST(DistributedFunctions, Broadcast) {
  on_two([](int rank, const functional::Group& group) {
    const at::Tensor x = leaf(1 + rank), y = functional::broadcast(x, 1, group);
    expect_full(y, 2);
    y.sin().sum().backward();
    expect_full(x.grad(), rank == 1 ? 2 * std::cos(2.0) : 0);
  });
}

TEST(DistributedFunctions, Reduce) {
  on_two([](int rank, const functional::Group& group) {
    const at::Tensor x = leaf(1 + rank), y = functional::reduce(x, 1, group);
    if (rank == 1) expect_full(y, 3);
    y.sin().sum().backward();
    expect_full(x.grad(), std::cos(3.0));
  });
}

TEST(DistributedFunctions, AllReduce) {
  on_two([](int rank, const functional::Group& group) {
    const at::Tensor x = leaf(1 + rank), y = functional::all_reduce(x, group);
    expect_full(y, 3);
    y.sin().sum().backward();
    expect_full(x.grad(), 2 * std::cos(3.0));
  });
}

TEST(DistributedFunctions, AllGather) {
  on_two([](int rank, const functional::Group& group) {
    const at::Tensor x = leaf(1 + rank);
    const Tensors all = functional::all_gather(x, group);
    for (std::size_t i = 0; i < all.size(); ++i) expect_full(all[i], 1.0 + static_cast<double>(i));
    at::stack(all).sum(0).sin().sum().backward();
    expect_full(x.grad(), 2 * std::cos(3.0));
  });
}

TEST(DistributedFunctions, AllToAll) {
  on_two([](int rank, const functional::Group& group) {
    const at::Tensor x0 = leaf(1 + 2 * rank), x1 = leaf(1 + 2 * rank);
    const Tensors all = functional::all_to_all({x0, x1}, group);
    for (std::size_t i = 0; i < all.size(); ++i) expect_full(all[i], 1.0 + 2 * static_cast<double>(i));
    at::stack(all).sum(0).sin().sum().backward();
    expect_full(x0.grad(), std::cos(4.0));
    expect_full(x1.grad(), std::cos(4.0));
  });
}

TEST(DistributedFunctions, AllToAllSingle) {
  on_two([](int rank, const functional::Group& group) {
    const std::int64_t own = rank + 1;
    const std::vector<std::int64_t> splits{own, 2 * own};
    const at::Tensor x = at::full({3 * own, 5}, own, at::kDouble).requires_grad_();
    const at::Tensor y = functional::all_to_all_single(x, group, splits, splits);
    EXPECT_TRUE(at::equal(y, at::cat({at::full({own, 5}, 1, at::kDouble), at::full({2 * own, 5}, 2, at::kDouble)})));
    y.sin().sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), x.detach().cos()));
  });
}

}  // namespace
}  // namespace gradwire::testing
