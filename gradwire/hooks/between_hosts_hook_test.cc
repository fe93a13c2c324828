// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Over a group of several hosts a hook that compresses does to the means of hosts what it does, over a flat group with
// a rank a host, to the gradients of ranks: bit for bit, on all ranks, with its memory. Hosts are parts of one group of
// threads here.
#include "gradwire/hooks/between_hosts_hook.h"

#include <torch/optim/sgd.h>

#include "gradwire/base/error.h"
#include "gradwire/ddp/first_rank_memory.h"
#include "gradwire/hooks/compressed_hook.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/optimizer_overlap_hooks.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"
#include "tests/support/on_hosts.h"

namespace gradwire::testing::between_hosts_hook_test {
namespace {

constexpr int kSteps = 4;
constexpr std::int64_t kCount = 3000;

at::Tensor gradient(int rank, int step) { return random_tensor({kCount}, 100 * step + rank); }

// What the hook makes of `values_of(rank, step)`, by rank and step.
using Results = std::vector<std::vector<at::Tensor>>;
template <class Group, class Values>
Results train(int world, const std::string& spec, int divisor, const Group& group_of, const Values& values_of) {
  Results results(static_cast<std::size_t>(world));
  run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& flat) {
    const auto group = group_of(flat);
    const auto hook = make_hook(spec);
    for (int step = 0; step < kSteps; ++step) {
      GradBucket bucket = bucket_of(values_of(rank, step), *group, static_cast<std::uint32_t>(step), divisor);
      const Future future = hook->run(bucket);
      future->waitAndThrow();
      results[static_cast<std::size_t>(rank)].push_back(tensor_of(*future).clone());
    }
    flat->barrier()->wait();
  });
  return results;
}

class BetweenHosts : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(BetweenHosts, TheMeansOfHostsAreWhatIsCompressed) {
  const std::string hosts = std::get<0>(GetParam());
  const std::string spec = std::get<1>(GetParam());
  const int world = static_cast<int>(hosts.size());
  const Results actual = train(
      world, spec, world, [&](const auto& flat) { return test_support::on_hosts(flat, hosts); }, gradient);
  const int host_count = *std::max_element(hosts.begin(), hosts.end()) - '0' + 1;
  const auto mean_of_host = [&](int host, int step) {
    at::Tensor sum;
    for (int rank = 0; rank < world; ++rank) {
      if (hosts[static_cast<std::size_t>(rank)] - '0' != host) continue;
      sum = sum.defined() ? sum + gradient(rank, step) : gradient(rank, step);
    }
    return world == host_count ? sum : sum / (static_cast<double>(world) / host_count);
  };
  const Results expected = train(
      host_count, spec, host_count, [](const auto& flat) { return flat; }, mean_of_host);
  for (int rank = 0; rank < world; ++rank) {
    for (std::size_t step = 0; step < kSteps; ++step) {
      EXPECT_TRUE(same_bits(actual[static_cast<std::size_t>(rank)][step], expected[0][step]))
          << "rank " << rank << ", step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hooks, BetweenHosts,
                         ::testing::Combine(::testing::Values("0011", "010", "012"),
                                            ::testing::Values("fp16_compress", "quantize_per_tensor",
                                                              "power_sgd:start=2", "int8", "int4:exchange=all_gather",
                                                              "top_k:ratio=0.1", "one_bit", "bf16_compress:wrap=fp16")),
                         [](const auto& info) {
                           std::string name =
                               concat("ranks_on_", std::get<0>(info.param), "_", std::get<1>(info.param));
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

// What PowerSGD makes of gradients and its memory is linear in them, so hosts change nothing but rounding; also where
// fewer ranks count than there are.
TEST(BetweenHostsHook, WhatIsRememberedIsOnTheScaleOfWhatComesOut) {
  for (const int divisor : {4, 3}) {
    const std::string spec = "batched_power_sgd_rank2:start=2";
    const Results hosts = train(
        4, spec, divisor, [](const auto& flat) { return test_support::on_hosts(flat, "0101"); }, gradient);
    const Results flat = train(
        4, spec, 4, [](const auto& group) { return group; }, gradient);
    for (std::size_t step = 0; step < kSteps; ++step) {
      const at::Tensor expected = flat[0][step] * (4.0 / divisor);
      EXPECT_TRUE(at::allclose(hosts[0][step], expected, 1e-3, 1e-4))
          << "step " << step << ": " << (hosts[0][step] - expected).abs().max().item<float>();
    }
  }
}

// The sums of hosts are beyond float16's range, the average is not.
TEST(BetweenHostsHook, AnAverageOfHalvesIsFiniteWhereTheSumOfAHostIsNot) {
  const auto large = [](int rank, int step) { return at::full({kCount}, 40000 + 1000 * rank + step, at::kHalf); };
  const auto on_two = [](const auto& flat) { return test_support::on_hosts(flat, "0011"); };
  for (const std::string spec : {"int8", "power_sgd:start=2", "fp16_compress"}) {
    const Results results = train(4, spec, 4, on_two, large);
    for (int step = 0; step < kSteps; ++step) {
      at::Tensor expected = at::zeros({kCount}, at::kDouble);
      for (int rank = 0; rank < 4; ++rank) expected += large(rank, step).to(at::kDouble) / 4;
      for (const auto& of_rank : results) {
        EXPECT_TRUE(at::allclose(of_rank[static_cast<std::size_t>(step)].to(at::kDouble), expected, 0.01))
            << spec << ", step " << step;
      }
    }
  }
}

// Ranks 0 and 1, and ranks 2 and 3, have a group of their own, which the hook is made with: over two hosts, or over
// one.
TEST(BetweenHostsHook, AGroupOfItsOwnIsAveragedOver) {
  for (const std::string hosts_of_part : {"01", "00"}) {
    for (const char* spec : {"int8", "fp16_compress", "power_sgd:start=2", "allreduce:wrap=bf16", "int8:warm_up=2",
                             "int8:min=1Mi", "auto", "allreduce"}) {
      run_ranks({"threads"}, 4, [&](int rank, const std::shared_ptr<ProcessGroup>& flat) {
        const auto whole = test_support::on_hosts(flat, "0101");
        const std::shared_ptr<ProcessGroup> part = test_support::on_hosts(flat->split(rank / 2), hosts_of_part);
        const auto train = [&](ProcessGroup& of_bucket, const std::shared_ptr<CommHook>& hook) {
          std::vector<at::Tensor> results;
          for (std::uint32_t step = 0; step < 4; ++step) {
            GradBucket bucket = bucket_of(gradient(rank, static_cast<int>(step)), of_bucket, step);
            const Future future = hook->run(bucket);
            future->waitAndThrow();
            results.push_back(tensor_of(*future).clone());
            hook->end_iteration();
          }
          return results;
        };
        const auto given = train(*whole, make_hook(spec, part));
        const auto expected = train(*part, make_hook(spec));
        for (std::size_t step = 0; step < given.size(); ++step)
          EXPECT_TRUE(given[step].allclose(expected[step], 1e-2, 1e-2)) << spec << ", step " << step;
        flat->barrier()->wait();
      });
    }
  }
}

TEST(BetweenHostsHook, UnderDdpAGroupOfItsOwnIsAveragedOver) {
  for (const int lanes : {0, 2}) {
    run_ranks({"threads"}, 4, [&](int rank, const std::shared_ptr<ProcessGroup>& flat) {
      const auto whole = test_support::on_hosts(flat, "0101");
      const std::shared_ptr<ProcessGroup> part = test_support::on_hosts(flat->split(rank / 2), "01");
      for (const char* spec : {"fp16_compress", "int8:warm_up=1", "bf16_compress:wrap=fp16"}) {
        Zoo zoo;
        DdpOptions options;
        options.process_group = whole;
        options.bucket_cap_mb = 1e-6;
        options.lanes = lanes;
        DistributedDataParallel ddp(zoo, options);
        ddp.register_comm_hook(make_hook(spec, part));
        ddp(rank, 0).backward();
        const auto actual = gradients_of(*zoo);
        const auto one = zoo->weights(rank, 0), other = zoo->weights(rank ^ 1, 0);
        for (std::size_t i = 0; i < actual.size(); ++i)
          EXPECT_TRUE(actual[i].to(at::kDouble).allclose((one[i] + other[i]) / 2, 0, 0.02)) << spec << ", " << i;
      }
    });
  }
}

TEST(BetweenHostsHook, UnderDdpAllRanksHoldTheSameBits) {
  run_ranks({"threads"}, 4, [](int rank, const std::shared_ptr<ProcessGroup>& flat) {
    const auto group = test_support::on_hosts(flat, "0101");
    for (const char* spec : {"int8", "power_sgd:start=2", "fp16_compress"}) {
      Zoo zoo;
      DdpOptions options;
      options.process_group = group;
      options.bucket_cap_mb = 1e-6;
      DistributedDataParallel ddp(zoo, options);
      ddp.register_comm_hook(make_hook(spec, group));
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        ddp(rank, step).backward();
      }
      EXPECT_EQ(ddp.core().logging_data().lanes, 2) << "buckets cross a network";
      std::vector<at::Tensor> rows;
      for (const at::Tensor& each : gradients_of(*zoo)) rows.push_back(each.to(at::kDouble).flatten());
      const at::Tensor mine = at::cat(rows);
      const at::Tensor first = mine.clone();
      flat->broadcast({first})->wait();
      EXPECT_TRUE(same_bits(mine, first)) << spec;
      // An average it is, too: within what compressing numbers of this size loses.
      const auto average = zoo->average(4, 2);
      double farthest = 0;
      const auto gradients = gradients_of(*zoo);
      for (std::size_t i = 0; i < average.size(); ++i) {
        if (average[i].numel() == 0) continue;
        farthest = std::max(farthest, (gradients[i].to(at::kDouble) - average[i]).abs().max().item<double>());
      }
      EXPECT_LT(farthest, std::string(spec) == "power_sgd:start=2" ? 1.0 : 0.02) << spec;
    }
  });
}

// Whatever step they wait in: the group of a host or that of the first ranks.
TEST(BetweenHostsHook, TheRanksThatAreLeftNameTheOneThatIsGoneInTheNumbersOfTheWhole) {
  for (int gone = 0; gone < 4; ++gone) {
    run_ranks({"threads"}, 4, [&](int rank, const std::shared_ptr<ProcessGroup>& flat) {
      auto group = test_support::on_hosts(flat, "0011");
      const auto hook = make_hook("int8");
      GradBucket bucket = bucket_of(gradient(rank, 0), *group, 0, 4);
      if (rank == gone) {
        group->abort("this rank gives up");
      } else {
        try {
          hook->run(bucket)->waitAndThrow();
          ADD_FAILURE() << "rank " << gone << " is missing";
        } catch (const PeerError& error) {
          EXPECT_EQ(error.peers(), std::vector<int>{gone}) << "rank " << rank << ": " << error.what();
          EXPECT_EQ(std::string(error.what()).find("[hybrid"), std::string::npos) << error.what();
        }
      }
      flat->barrier()->wait();
    });
  }
}

// A hook may call another group, whose ranks have other numbers.
TEST(HybridUnderDdp, ARankThatFailsInAnotherGroupIsNamedItself) {
  run_ranks({"threads"}, 4, [](int rank, const std::shared_ptr<ProcessGroup>& flat) {
    const auto group = test_support::on_hosts(flat, "0011");
    Zoo zoo;
    DdpOptions options;
    options.process_group = group;
    options.lanes = 2;
    options.bucket_cap_mb = 1e-6;
    DistributedDataParallel ddp(zoo, options);
    ddp.register_comm_hook(make_comm_hook([rank](GradBucket& bucket) {
      if (rank == 2) throw PeerError("rank 1 of a group of two has died", {1});
      bucket.group().all_reduce({bucket.buffer()})->wait();
      return bucket.buffer();
    }));
    try {
      ddp(rank, 0).backward();
      ADD_FAILURE() << "rank 2 fails";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.peers(), std::vector<int>{rank == 2 ? 1 : 2}) << "rank " << rank << ": " << error.what();
    }
    flat->barrier()->wait();
  });
}

TEST(BetweenHostsHook, TraitsAndMemoryAreTheInnerHooks) {
  const auto inner = make_comm_hook([](GradBucket& bucket) { return bucket.buffer(); });
  EXPECT_EQ(make_between_hosts_hook(inner)->traits().name, inner->traits().name);
  EXPECT_TRUE(make_between_hosts_hook(inner)->state_dict().empty());
  EXPECT_THROW((void)make_between_hosts_hook(nullptr), InvalidArgument);
}

// Elastic training asks this, and no name tells it: a hook of the registry has the identity of the hook that it wraps.
// The hosts that count are those of the group that the hook goes through.
TEST(FirstRankMemory, IsAskedOfTheHooksOwnGroup) {
  run_ranks({"threads"}, 4, [&](int rank, const std::shared_ptr<ProcessGroup>& flat) {
    const auto whole = test_support::on_hosts(flat, "0011");
    const std::shared_ptr<ProcessGroup> of_one_host = flat->split(rank / 2);
    const std::shared_ptr<ProcessGroup> over_hosts = test_support::on_hosts(flat->split(rank % 2), "01");
    EXPECT_EQ(has_memory(*make_hook("int8"), *whole), rank % 2 == 0);
    EXPECT_TRUE(has_memory(*make_hook("int8", of_one_host), *whole));
    EXPECT_TRUE(has_memory(*make_hook("int8", over_hosts), *flat)) << "each is the first of its host there";
    flat->barrier()->wait();
  });
}

TEST(FirstRankMemory, IsSaidOfEachHookThatMayRunBetweenHosts) {
  const auto sgd = [](const std::string&, const at::Tensor& parameter) {
    return std::make_unique<torch::optim::SGD>(std::vector{parameter}, torch::optim::SGDOptions(0.1));
  };
  const auto no_step = [](const std::string&, const at::Tensor&, const at::Tensor&) {};
  for (const char* spec :
       {"int8:memory=ef21", "power_sgd", "int4:warm_up=3", "top_k:min=64Ki", "allreduce:wrap=fp16"}) {
    EXPECT_TRUE(memory_lies_with_first_ranks(*make_hook(spec))) << spec;
    EXPECT_TRUE(memory_lies_with_first_ranks(*make_checking_hook(make_hook(spec)))) << spec;
    EXPECT_TRUE(memory_lies_with_first_ranks(*make_hook_then_optimizer(make_hook(spec), sgd))) << spec;
    EXPECT_TRUE(memory_lies_with_first_ranks(*make_hook_then_step(make_hook(spec), no_step))) << spec;
  }
  EXPECT_TRUE(memory_lies_with_first_ranks(*make_between_hosts_hook(make_compressed_hook("int8"))));
  for (const char* spec : {"allreduce", "noop", "allreduce:warm_up=3", "auto"}) {
    EXPECT_FALSE(memory_lies_with_first_ranks(*make_hook(spec))) << spec;
    EXPECT_FALSE(memory_lies_with_first_ranks(*make_hook_then_optimizer(make_hook(spec), sgd))) << spec;
  }
  EXPECT_FALSE(memory_lies_with_first_ranks(*make_compressed_hook("int8")));
}

}  // namespace
}  // namespace gradwire::testing::between_hosts_hook_test
