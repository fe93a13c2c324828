// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A part of a model that communicates by itself, in an elastic job: SyncBatchNorm goes on.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <atomic>
#include <list>
#include <mutex>

#include "gradwire/base/error.h"
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
  std::mutex mutex;
  std::vector<std::vector<at::Tensor>> ends;
  std::atomic<bool> lost{false};
  std::atomic<bool> start_another{false};
  const auto member = [&] {
    Elastic elastic(job.options());
    Synced net(SyncBatchNorm(torch::nn::BatchNormOptions(8), elastic.group()));
    DdpOptions options;
    options.process_group = elastic.group();
    DistributedDataParallel ddp(net, options);
    torch::optim::SGD optimizer(ddp.parameters(), sgd());
    elastic.add(ddp).add(optimizer);
    const ElasticEnd end = elastic.run(kSteps, [&](const ElasticStep& at) {
      if (at.step == 30 && at.size == 2) {
        start_another = true;
        job.decided(membership::change_key(at.epoch));  // the new member has steps left
      }
      optimizer.zero_grad();
      const at::Tensor loss = mean_loss(ddp(samples(at)));
      if (at.step == 20 && at.rank == 1 && !lost.exchange(true)) throw std::runtime_error("lost on purpose");
      loss.backward();
      optimizer.step();
    });
    EXPECT_EQ(end, ElasticEnd::finished);
    std::vector<at::Tensor> state = net->parameters();
    for (const at::Tensor& buffer : net->buffers()) state.push_back(buffer);
    const std::lock_guard lock(mutex);
    ends.push_back(std::move(state));
  };
  const auto guarded = [&] {
    const std::string error = error_of(member);
    if (error.find("on purpose") != std::string::npos) return;
    EXPECT_EQ(error, "");
    start_another = true;  // also when it failed before
  };
  std::list<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(guarded);
  while (!start_another) std::this_thread::yield();
  threads.emplace_back(guarded);
  for (auto& thread : threads) thread.join();

  const std::vector<int> sizes = sizes_of(job.journal(), kSteps);
  EXPECT_EQ(sizes.front(), 3);
  EXPECT_EQ(sizes[25], 2);
  EXPECT_EQ(sizes.back(), 3) << "the new member came too late";
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
