// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/post_local_sgd_hook.h"

#include "gradwire/base/error.h"
#include "gradwire/hooks/hook_test_support.h"

namespace gradwire::testing::post_local_sgd_hook_test {
namespace {

constexpr int kWorld = 4;

// What two steps' worth of DDP gives in the steps of a Zoo: expected average over `ranks`.
at::Tensor average_of(const std::vector<int>& ranks, int step, std::size_t parameter) {
  at::Tensor sum;
  for (const int rank : ranks) {
    const at::Tensor one = Zoo()->weights(rank, step)[parameter];
    sum = sum.defined() ? sum + one : one;
  }
  return sum / static_cast<std::int64_t>(ranks.size());
}

// Trains `steps` steps with small buckets and hands each step's gradients of parameter `parameter` to `check`.
void train(int rank, const std::shared_ptr<ProcessGroup>& group, int lanes, const std::shared_ptr<CommHook>& hook,
           int steps, const std::function<void(int step, const std::vector<at::Tensor>&)>& check) {
  Zoo zoo;
  auto options = options_for({"threads", lanes, lanes == 1}, group);
  options.bucket_cap_mb = 1e-6;
  DistributedDataParallel ddp(zoo, options);
  ddp.register_comm_hook(hook);
  for (int step = 0; step < steps; ++step) {
    ddp.zero_grad();
    ddp(rank, step).backward();
    check(step, gradients_of(*zoo));
  }
}

TEST(PostLocalSgd, AveragesGloballyUntilTheStartThenInTheSubgroup) {
  for (const int lanes : {0, 1, 2}) {
    run_ranks({"threads"}, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const auto subgroup = group->split(rank % 2);
      const auto hook = make_post_local_sgd_hook({.subgroup = subgroup, .start_iteration = 2});
      train(rank, group, lanes, hook, 5, [&](int step, const std::vector<at::Tensor>& gradients) {
        const std::vector<int> ranks =
            step < 2 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{rank % 2, rank % 2 + 2};
        for (const std::size_t i : {0, 2, 7}) {
          EXPECT_TRUE(at::allclose(gradients[i].to(at::kDouble), average_of(ranks, step, i), 0, 1e-6))
              << "step " << step << ", parameter " << i << ", " << lanes << " lanes";
        }
      });
      EXPECT_EQ(hook->state_dict().at("iteration").toInt(), 5);
    });
  }
}

// DDP counts its iterations anew in another group, and the hook goes on.
TEST(PostLocalSgd, TheCountGoesOnInAnotherGroup) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Zoo zoo;
    DistributedDataParallel ddp(zoo, options_for({"threads"}, group));
    const auto hook = make_post_local_sgd_hook({.start_iteration = 5, .post_local_gradient_allreduce = false});
    ddp.register_comm_hook(hook);
    for (int step = 0; step < 9; ++step) {
      if (step == 3 || step == 7) {
        ddp.core().leave_group();
        ddp.core().enter_group();
      }
      ddp.zero_grad();
      ddp(rank, step).backward();
      EXPECT_EQ(hook->state_dict().at("iteration").toInt(), step + 1);
    }
  });
}

TEST(PostLocalSgd, WithoutLocalAllreduceEachRankKeepsItsOwn) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto hook = make_post_local_sgd_hook(
        {.process_group = group, .start_iteration = 1, .post_local_gradient_allreduce = false});
    train(rank, group, 2, hook, 3, [&](int step, const std::vector<at::Tensor>& gradients) {
      const std::vector<int> ranks = step < 1 ? std::vector<int>{0, 1} : std::vector<int>{rank};
      EXPECT_TRUE(at::allclose(gradients[7].to(at::kDouble), average_of(ranks, step, 7), 0, 1e-6)) << step;
    });
  });
}

// A resumed run goes on in the phase that it was in, also where DDP has made steps before the state was loaded.
TEST(PostLocalSgd, ResumesWhereItWas) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto hook = make_post_local_sgd_hook({.start_iteration = 4, .post_local_gradient_allreduce = false});
    hook->load_state_dict({{"iteration", 3}});
    EXPECT_EQ(hook->state_dict().at("iteration").toInt(), 3);
    train(rank, group, 2, hook, 4, [&](int step, const std::vector<at::Tensor>& gradients) {
      // Iterations 3, 4, then, after loading, 0 and 1.
      const std::vector<int> ranks = step != 1 ? std::vector<int>{0, 1} : std::vector<int>{rank};
      EXPECT_TRUE(at::allclose(gradients[7].to(at::kDouble), average_of(ranks, step, 7), 0, 1e-6)) << step;
      if (step == 1) hook->load_state_dict({{"iteration", 0}});
    });
    EXPECT_EQ(hook->state_dict().at("iteration").toInt(), 2);
  });
}

TEST(PostLocalSgd, RefusesWhatCannotWork) {
  EXPECT_THROW((void)make_post_local_sgd_hook({.start_iteration = 3}), InvalidArgument);
  EXPECT_THROW((void)make_post_local_sgd_hook({.start_iteration = -1, .post_local_gradient_allreduce = false}),
               InvalidArgument);
  const auto hook = make_post_local_sgd_hook({.post_local_gradient_allreduce = false});
  EXPECT_THROW(hook->load_state_dict({{"error/p", at::zeros({2})}}), InvalidArgument);
  EXPECT_THROW(hook->load_state_dict({{"iteration", -1}}), InvalidArgument);
  EXPECT_THROW(hook->load_state_dict({}), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::testing::post_local_sgd_hook_test
