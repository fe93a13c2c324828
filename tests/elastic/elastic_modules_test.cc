// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A part of a model that communicates by itself, in an elastic job: SyncBatchNorm goes on.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <atomic>

#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/nn/sync_batch_norm.h"

namespace gradwire::elastic_modules_test {
namespace {

using namespace gradwire::testing;

// A net with one normalization in the middle.
template <class Norm>
struct NormalizedImpl : torch::nn::Module {
  explicit NormalizedImpl(Norm given)
      : first(register_module("first", torch::nn::Linear(8, 8))),
        norm(register_module("norm", given)),
        last(register_module("last", torch::nn::Linear(8, 2))) {
    fill(*this, 1);
  }
  at::Tensor forward(const at::Tensor& x) { return last(torch::tanh(norm(first(x)))); }
  torch::nn::Linear first;
  Norm norm;
  torch::nn::Linear last;
};
using Synced = torch::nn::ModuleHolder<NormalizedImpl<SyncBatchNorm>>;

at::Tensor mean_loss(const at::Tensor& output) { return output.square().mean(); }

// The parameters and buffers when one process trains on the samples of all ranks at once, with plain batch
// normalization.
std::vector<at::Tensor> serial_state(const std::vector<int>& sizes) {
  NormalizedImpl<torch::nn::BatchNorm1d> net(torch::nn::BatchNorm1d(8));
  torch::optim::SGD optimizer(net.parameters(), sgd());
  for (std::size_t step = 0; step < sizes.size(); ++step) {
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < sizes[step]; ++rank)
      all.push_back(samples({static_cast<std::int64_t>(step), rank, sizes[step], 0}));
    optimizer.zero_grad();
    mean_loss(net.forward(at::cat(all))).backward();
    optimizer.step();
  }
  std::vector<at::Tensor> state = net.parameters();
  for (const at::Tensor& buffer : net.buffers()) state.push_back(buffer);
  return state;
}

// Three members lose one, and get a new one, which has made none of the calls before.
TEST(ElasticModulesTest, SyncBatchNormGoesOnWithTheRanksThatThereAre) {
  constexpr std::int64_t kSteps = 400;
  ElasticJob job({.min = 2, .max = 3, .first = 3});
  std::atomic<bool> lost{false};
  ChangingMembers members;
  const auto ends = members.run([&] {
    Elastic elastic(job.options());
    Synced net(SyncBatchNorm(torch::nn::BatchNormOptions(8), elastic.group()));
    DistributedDataParallel ddp(net, options_over(elastic));
    torch::optim::SGD optimizer(ddp.parameters(), sgd());
    elastic.add(ddp).add(optimizer);
    const ElasticEnd end = elastic.run(kSteps, [&](const ElasticStep& at) {
      if (at.step == 30 && at.size == 2) {
        members.start_another();
        job.decided(membership::change_key(at.epoch));  // the new member has steps left
      }
      optimizer.zero_grad();
      const at::Tensor loss = mean_loss(ddp(samples(at)));
      if (at.step == 20 && at.rank == 1 && !lost.exchange(true)) throw Killed();
      loss.backward();
      optimizer.step();
    });
    EXPECT_EQ(end, ElasticEnd::finished);
    std::vector<at::Tensor> state = net->parameters();
    for (const at::Tensor& buffer : net->buffers()) state.push_back(buffer);
    return state;
  });

  const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
  ChangingMembers::expect_change(sizes, 20);
  const std::vector<at::Tensor> expected = serial_state(sizes);
  ASSERT_EQ(ends.size(), 3U);
  for (const auto& state : ends) {
    ASSERT_EQ(state.size(), expected.size());
    for (std::size_t i = 0; i < state.size(); ++i) {
      EXPECT_TRUE(state[i].equal(ends.front()[i])) << "members differ in tensor " << i;
      EXPECT_TRUE(at::allclose(state[i].to(at::kDouble), expected[i].to(at::kDouble), 1e-3, 1e-4)) << "tensor " << i;
    }
  }
}

}  // namespace
}  // namespace gradwire::elastic_modules_test
