// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Parameters with sparse gradients.
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include "gradwire/ddp/ddp_parameters_test_support.h"
#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::testing::ddp_parameters_test::sparse {
namespace {

constexpr int kRows = 9;
constexpr int kColumns = 4;

// Two tables of sparse gradients around a dense layer; the bag is used when asked for.
struct TablesImpl : torch::nn::Module {
  TablesImpl() {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, kColumns).sparse(true)));
    linear = register_module("linear", torch::nn::Linear(kColumns, kColumns));
    bag = register_module(
        "bag", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kRows, kColumns).sparse(true).mode(torch::kSum)));
    fill(*this, 2);
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& rows, bool with_bag) {
    at::Tensor h = torch::tanh(linear(table(rows))).sum(0);
    if (with_bag) h = h + bag(rows.view({1, -1})).square().sum(0);
    return h.square().sum();
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear linear{nullptr};
  torch::nn::EmbeddingBag bag{nullptr};
};
TORCH_MODULE(Tables);

// Different rows and numbers of rows on each rank, some twice.
at::Tensor rows_of(int rank, int step) {
  std::vector<std::int64_t> rows;
  for (int i = 0; i <= rank + step % 2; ++i) rows.push_back((3 * rank + step + 2 * i * i) % kRows);
  rows.push_back(rows.front());
  return torch::tensor(rows);
}

using UsesBag = std::function<bool(int rank, int step)>;

std::vector<at::Tensor> dense(std::vector<at::Tensor> gradients) {
  for (at::Tensor& gradient : gradients) {
    if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
  }
  return gradients;
}

// Averages of the ranks' gradients; undefined where no rank has one.
std::vector<at::Tensor> table_average(int world, const std::vector<int>& steps, const UsesBag& bag) {
  Tables net;
  for (const int step : steps) {
    for (int rank = 0; rank < world; ++rank) (net->forward(rows_of(rank, step), bag(rank, step)) / world).backward();
  }
  return dense(gradients_of(*net));
}

void train_tables(const Setup& setup, int world, const UsesBag& bag, const std::function<void(DdpOptions&)>& change,
                  bool hook = false) {
  std::vector<std::vector<at::Tensor>> last(static_cast<std::size_t>(world)), expected;
  for (int step = 0; step < 3; ++step) expected.push_back(table_average(world, {step}, bag));
  expected.push_back(table_average(world, {4, 5}, bag));
  run_ranks(setup, world, [&](int rank, auto group) {
    auto options = options_for(setup, group);
    options.bucket_cap_mb = 0.0001;
    change(options);
    Tables net;
    DistributedDataParallel ddp(net, options);
    int lasts = 0;
    if (hook) {
      ddp.register_comm_hook([&](GradBucket& bucket) {
        lasts += bucket.is_last() ? 1 : 0;
        for (const auto& name : bucket.parameter_names()) EXPECT_EQ(name.substr(0, 6), "linear");
        bucket.group().all_reduce({bucket.buffer().div_(bucket.divisor())})->wait();
        return bucket.buffer();
      });
    }
    torch::optim::SGD optimizer(ddp.parameters(), 0.0);
    for (int step = 0; step < 3; ++step) {
      SCOPED_TRACE(concat("rank ", rank, " of ", world, ", step ", step));
      optimizer.zero_grad();
      ddp(rows_of(rank, step), bag(rank, step)).backward();
      EXPECT_TRUE(net->table->weight.grad().is_sparse());
      expect_close(dense(gradients_of(*net)), expected[static_cast<std::size_t>(step)], 1e-12);
      optimizer.step();
    }
    if (hook) {
      EXPECT_EQ(lasts, 3) << "one bucket of each iteration is the last that a hook gets";
    }
    optimizer.zero_grad();
    {
      const auto local = ddp.no_sync();
      ddp(rows_of(rank, 4), bag(rank, 4)).backward();
    }
    ddp(rows_of(rank, 5), bag(rank, 5)).backward();
    expect_close(dense(gradients_of(*net)), expected.back(), 1e-12);
    last[static_cast<std::size_t>(rank)] = dense(gradients_of(*net));
  });
  for (const auto& rank : last)
    for (std::size_t i = 0; i < rank.size(); ++i) EXPECT_TRUE(at::equal(rank[i], last[0][i])) << "parameter " << i;
}

TEST_P(DdpParameters, SparseGradientsAreAveraged) {
  const auto always = [](int, int) { return true; };
  train_tables(GetParam(), 1, always, [](DdpOptions&) {});
  train_tables(
      GetParam(), 2, always, [](DdpOptions&) {}, /*hook=*/true);
  train_tables(GetParam(), 2, always, [](DdpOptions& o) { o.static_graph = true; });
  train_tables(
      GetParam(), 3, [](int rank, int step) { return step % 2 == 1 && rank != 1; },
      [](DdpOptions& o) { o.find_unused_parameters = true; });
}

// Alone as with another rank.
TEST_P(DdpParameters, ASparseGradientThatWasRemovedAfterALocalPassHasNoEntries) {
  for (const int world : {1, 2}) {
    run_ranks(GetParam(), world, [&](int rank, auto group) {
      SCOPED_TRACE(concat("rank ", rank, " of ", world));
      DdpOptions made = options(group);
      made.find_unused_parameters = true;
      Tables net;
      DistributedDataParallel ddp(net, made);
      {
        const auto local = ddp.no_sync();
        ddp(rows_of(rank, 0), true).backward();
      }
      net->bag->weight.mutable_grad().reset();
      ddp(rows_of(rank, 1), false).backward();
      ASSERT_TRUE(net->bag->weight.grad().defined());
      EXPECT_TRUE(net->bag->weight.grad().is_sparse());
      EXPECT_EQ(net->bag->weight.grad()._nnz(), 0);
      ddp(rows_of(rank, 2), true).backward();
      EXPECT_GT(net->bag->weight.grad()._nnz(), 0);
    });
  }
}

TEST_P(DdpParameters, SparseGradientsInAJoin) {
  run_ranks(GetParam(), 2, [&](int rank, auto group) {
    Tables net;
    DistributedDataParallel ddp(net, options(group));
    {
      Join join = ddp.join({.divide_by_initial_world_size = false});
      for (int step = 0; step < 1 + rank; ++step) {
        ddp.zero_grad();
        ddp(rows_of(rank, step), true).backward();
      }
    }
    Tables alone;
    alone->forward(rows_of(1, 1), true).backward();
    expect_close(dense(gradients_of(*net)), dense(gradients_of(*alone)), 1e-12);
  });
}

TEST_P(DdpParameters, ADenseGradientOfASparseTableIsRefused) {
  const std::string error = error_of([&] {
    run_ranks(GetParam(), 2, [&](int rank, auto group) {
      Tables net;
      DistributedDataParallel ddp(net, options(group));
      (ddp(rows_of(rank, 0), true) + net->table->weight.sum()).backward();
    });
  });
  EXPECT_NE(error.find("'table.weight'"), std::string::npos) << error;
}

TEST_P(DdpParameters, ASparseParameterCannotBeDelayed) {
  run_ranks(GetParam(), 1, [&](int, auto group) {
    auto made = options(group);
    made.delay_all_reduce_named_params = {"table.weight"};
    made.param_to_hook_all_reduce = "linear.weight";
    const std::string error = error_of([&] { DistributedDataParallel ddp(Tables(), made); });
    EXPECT_NE(error.find("'table.weight' of delay_all_reduce_named_params makes sparse gradients"), std::string::npos)
        << error;
  });
}

}  // namespace
}  // namespace gradwire::testing::ddp_parameters_test::sparse
