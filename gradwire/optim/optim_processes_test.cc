// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The optimizers over shared memory, each rank a process. The test's own process stays clear of autograd, which does
// not survive a fork.
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/optim/fused_zero_hook.h"
#include "gradwire/optim/model_averaging.h"
#include "gradwire/optim/optim_test_support.h"
#include "gradwire/optim/optimizer_in_backward.h"
#include "gradwire/optim/zero_hook.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"
#include "tests/support/ranks.h"

namespace gradwire::testing::optim_processes_test {
namespace {

void in_processes(int world, const std::function<void(int, std::shared_ptr<ProcessGroup>)>& body) {
  test_support::run_ranks("shm", world, [&](int rank, const std::shared_ptr<Store>& store) {
    at::set_num_threads(1);
    body(rank, make_process_group("shm", store, rank, world, std::chrono::seconds(60)));
  });
}

TEST(OptimProcesses, ZeroStepsLikeTheOptimizerItselfAndSavesItsState) {
  for (const int world : {1, 2, 3}) {
    in_processes(world, [world](int rank, const std::shared_ptr<ProcessGroup>& group) {
      for (const OptimizerKind& kind : optimizer_kinds()) {
        for (const bool view : {false, true}) {
          const auto parameters = many_parameters();
          ZeroRedundancyOptimizer zero(parameters, kind.factory,
                                       {.process_group = group, .parameters_as_bucket_view = view});
          const auto expected = many_parameters();
          auto plain = plain_optimizer(kind.factory, expected);
          for (int step = 0; step < 50; ++step) {
            if (step == 25) {
              zero.consolidate_state(world - 1);
              if (rank == world - 1) {
                plain = plain_optimizer(kind.factory, expected);
                load_bytes(*plain, bytes_of(zero));
              }
            }
            set_gradients(parameters, world, step);
            set_gradients(expected, world, step);
            zero.step();
            plain->step();
            expect_same_bits(parameters, expected, concat(kind.name, ", world ", world, ", step ", step));
          }
        }
      }
    });
  }
}

TEST(OptimProcesses, OptimizersInTheBackwardPass) {
  in_processes(3, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    for (const int lanes : {0, 1, 2}) {
      std::vector<std::vector<at::Tensor>> results;
      for (const std::string kind : {"plain", "zero", "zero at the end", "in backward"}) {
        const int first = kind == "in backward" ? 2 : 0;  // the others make no update in two iterations
        Mlp net(6, 16);
        DdpOptions options = options_for({"shm", lanes, lanes != 0}, group);
        options.bucket_cap_mb = 0.002;
        DistributedDataParallel ddp(net, options);
        std::unique_ptr<torch::optim::Optimizer> plain;
        std::shared_ptr<OptimizersInBackward> in_backward;
        if (kind == "plain") {
          plain = plain_optimizer(adam_factory(), ddp.parameters());
          ddp.register_comm_hook(make_allreduce_hook());  // divides where the others do
        } else if (kind == "in backward") {
          in_backward = apply_optimizer_in_backward(ddp.core(), ddp.parameters(), adam_factory());
        } else {
          const auto zero = std::make_shared<ZeroRedundancyOptimizer>(
              ddp.parameters(), adam_factory(),
              ZeroOptions{.process_group = group, .parameters_as_bucket_view = lanes == 1, .overlap_with_ddp = true});
          const bool interleaved = kind == "zero";
          ddp.register_comm_hook(make_zero_hook(make_allreduce_hook(), zero, ddp.core(), {interleaved, lanes != 2}));
        }
        for (int step = first; step < 8; ++step) {
          ddp.zero_grad();
          ddp(random_tensor({4, 16}, 100 * step + rank)).pow(2).mean().backward();
          if (plain != nullptr && step >= 2) plain->step();
        }
        expect_replicas(*group, ddp.parameters(), kind);
        results.push_back(ddp.parameters());
      }
      expect_same_bits(results[1], results[0], "zero");
      expect_same_bits(results[2], results[0], "zero at the end");
      expect_close(results[3], results[0], 1e-4);  // it divides after the sum
    }
  });
}

TEST(OptimProcesses, FusedStepsHaveTheBitsOfTheAverageAndThePlainOptimizer) {
  for (const int world : {2, 3}) {
    in_processes(world, [world](int rank, const std::shared_ptr<ProcessGroup>& group) {
      for (const OptimizerKind& kind : optimizer_kinds()) {
        std::vector<std::vector<at::Tensor>> results;
        for (const bool fused : {false, true}) {
          Mlp net(4, 57);
          DdpOptions options = options_for({"shm", world - 1, world == 2}, group);
          options.bucket_cap_mb = 0.02;
          DistributedDataParallel ddp(net, options);
          std::unique_ptr<torch::optim::Optimizer> plain;
          if (fused) {
            const auto zero = std::make_shared<ZeroRedundancyOptimizer>(
                ddp.parameters(), kind.factory, ZeroOptions{.process_group = group, .overlap_with_ddp = true});
            ddp.register_comm_hook(make_fused_zero_hook(zero, ddp.core(), {.chunk_numel = 999}));
          } else {
            plain = plain_optimizer(kind.factory, ddp.parameters());
          }
          for (int step = 0; step < 8; ++step) {
            ddp.zero_grad();
            ddp(random_tensor({4, 57}, 100 * step + rank)).pow(2).mean().backward();
            if (plain != nullptr && step >= 2) plain->step();
          }
          expect_replicas(*group, ddp.parameters(), kind.name);
          results.push_back(ddp.parameters());
        }
        expect_same_bits(results[1], results[0], kind.name);
      }
    });
  }
}

TEST(OptimProcesses, AveragersSplitTheRanks) {
  in_processes(4, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    HierarchicalModelAverager averager({{1, 2}, {2, 4}}, 0, group);
    for (int step = 0; step < 6; ++step) {
      at::Tensor parameter = at::full({1000}, rank, at::kFloat).requires_grad_();
      parameter.mutable_grad() = at::zeros({1000});
      averager.average_parameters({parameter});
      const double expected = step % 2 == 0 ? 1.5 : rank / 2 * 2 + 0.5;
      EXPECT_TRUE(parameter.eq(expected).all().item<bool>()) << "step " << step;
    }
  });
}

}  // namespace
}  // namespace gradwire::testing::optim_processes_test
