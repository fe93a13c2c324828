// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DDP over shared memory and over Gloo, each rank a process. The test's own process stays clear of autograd, which does
// not survive a fork.
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/hooks/registry.h"
#include "tests/support/named_group.h"
#include "tests/support/ranks.h"

namespace gradwire::testing {
namespace {

constexpr int kWorld = 2;

class DdpProcesses : public ::testing::TestWithParam<std::string> {
 protected:
  static void in_processes(const std::function<void(int, std::shared_ptr<ProcessGroup>)>& body) {
    test_support::run_ranks(GetParam(), kWorld, [&](int rank, const std::shared_ptr<Store>& store) {
      at::set_num_threads(1);
      body(rank, make_process_group(GetParam(), store, rank, kWorld, std::chrono::seconds(60)));
    });
  }
};

std::vector<at::Tensor> train(int rank, const Setup& setup, std::shared_ptr<ProcessGroup> group,
                              const std::string& hook) {
  Mlp net(6, 16);
  auto options = options_for(setup, std::move(group));
  options.bucket_cap_mb = 0.002;
  DistributedDataParallel ddp(net, options);
  if (!hook.empty()) ddp.register_comm_hook(make_hook(hook));
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad(step % 2 == 0);
    const at::Tensor batch = random_tensor({8, 16}, step).chunk(kWorld)[static_cast<std::size_t>(rank)];
    ddp(batch).pow(2).mean().backward();
    optimizer.step();
  }
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : net->parameters()) parameters.push_back(parameter.detach().clone());
  return parameters;
}

TEST_P(DdpProcesses, TrainLikeOneRankOnTheWholeBatch) {
  in_processes([](int rank, std::shared_ptr<ProcessGroup> group) {
    Mlp alone(6, 16);
    torch::optim::SGD optimizer(alone->parameters(), 0.1);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      alone->forward(random_tensor({8, 16}, step)).pow(2).mean().backward();
      optimizer.step();
    }
    for (const bool view : {false, true}) {
      for (const int lanes : {0, 1, 2})
        expect_close(train(rank, {GetParam(), lanes, view}, group, ""), alone->parameters());
    }
  });
}

// The multiplication by 1/N is made in the copy in one case and in the reduction in the other; the bits are the same,
// and the same on all ranks.
TEST_P(DdpProcesses, BucketViewsAndCopiesGiveTheSameBitsOnAllRanks) {
  in_processes([](int rank, std::shared_ptr<ProcessGroup> group) {
    const auto copied = train(rank, {GetParam(), 1, false}, group, "");
    const auto viewed = train(rank, {GetParam(), 2, true}, group, "");
    for (std::size_t i = 0; i < copied.size(); ++i) {
      EXPECT_TRUE(copied[i].equal(viewed[i])) << "parameter " << i;
      at::Tensor zero = copied[i].clone();
      group->broadcast({zero})->wait();
      EXPECT_TRUE(zero.equal(copied[i])) << "parameter " << i;
    }
  });
}

TEST_P(DdpProcesses, HooksCompress) {
  in_processes([](int rank, std::shared_ptr<ProcessGroup> group) {
    const auto plain = train(rank, {GetParam(), 1, true}, group, "");
    expect_close(train(rank, {GetParam(), 1, true}, group, "allreduce"), plain);
    expect_close(train(rank, {GetParam(), 2, true}, group, "fp16_compress"), plain, 1e-3);
    expect_close(train(rank, {GetParam(), 2, false}, group, "bf16_compress"), plain, 1e-2);
  });
}

TEST_P(DdpProcesses, AFailureReachesTheOtherProcessWithItsCause) {
  in_processes([](int rank, std::shared_ptr<ProcessGroup> group) {
    DistributedDataParallel ddp(Mlp(), options_for({GetParam(), 1, true}, group));
    ddp.register_comm_hook([&](GradBucket& bucket) -> at::Tensor {
      if (rank == 1) throw std::runtime_error("the disk is full");
      bucket.group().all_reduce({bucket.buffer()})->wait();
      return bucket.buffer();
    });
    const std::string error = error_of([&] { ddp(random_tensor({2, 8}, rank)).sum().backward(); });
    EXPECT_NE(error.find("the disk is full"), std::string::npos) << error;
    group->barrier()->wait();  // the user's own group is not at its end
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, DdpProcesses, ::testing::ValuesIn(test_support::process_backends()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace gradwire::testing
