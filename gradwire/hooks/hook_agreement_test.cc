// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks whose hooks differ all fail in the first backward pass, also where the messages are of one size, which would
// otherwise give wrong gradients silently; the error names the ranks and both hooks.
#include <gtest/gtest.h>

#include "gradwire/base/error.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/mixed_precision_hooks.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing::hook_agreement_test {
namespace {

constexpr int kWorld = 3;

at::Tensor input(int rank, int step) { return random_tensor({4, 8}, 50 * step + rank); }

// What each rank's training throws; PeerErrors quote the reason of the first rank that failed.
using Train = std::function<void(int rank, DistributedDataParallel<Mlp>& ddp)>;
std::vector<std::string> errors_of(const gradwire::testing::Setup& setup, const Train& train) {
  std::vector<std::string> errors(kWorld);
  run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel<Mlp> ddp(net, options_for(setup, group));
    try {
      train(rank, ddp);
    } catch (const MismatchError& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    } catch (const PeerError& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return errors;
}

void expect_in_all(const std::vector<std::string>& errors, const std::vector<std::string>& words) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    for (const std::string& word : words)
      EXPECT_NE(errors[rank].find(word), std::string::npos) << "rank " << rank << " says: " << errors[rank];
  }
}

void run_step(int rank, DistributedDataParallel<Mlp>& ddp, int step) {
  ddp(input(rank, step)).pow(2).mean().backward();
}

class HooksThatDiffer : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, HooksThatDiffer, ::testing::ValuesIn(all_setups()), name_of_setup);

TEST_P(HooksThatDiffer, AreFoundOutWithMessagesOfOneSize) {
  const std::vector<std::pair<std::string, std::string>> pairs{
      {"fp16_compress", "bf16_compress"},
      {"quantize_per_tensor", "quantize_per_tensor:warm_up=3"},
      {"fp8_e4m3:exchange=all_gather", "fp8_e5m2:exchange=all_gather"},
      {"random_k:ratio=0.1,exchange=all_gather,seed=1", "random_k:ratio=0.1,exchange=all_gather,seed=2"},
      {"power_sgd:start=2", "power_sgd:start=3"},
      {"power_sgd:start=2,seed=1", "power_sgd:start=2"},
      {"fp16_compress:wrap=bf16", "fp16_compress:wrap=fp16"},
      {"allreduce", "noop"},
      {"allreduce", "allreduce:min=4Ki"}};
  for (const auto& [most, one] : pairs) {
    const auto errors = errors_of(GetParam(), [&, most = most, one = one](int rank, auto& ddp) {
      ddp.register_comm_hook(make_hook(rank == 1 ? one : most));
      run_step(rank, ddp, 0);
    });
    expect_in_all(errors, {"communication hooks", "ranks 0, 2 have '" + make_hook(most)->identity() + "'",
                           "rank 1 has '" + make_hook(one)->identity() + "'"});
  }
}

TEST_P(HooksThatDiffer, AreFoundOutAfterAReplacement) {
  for (const bool one_has_none : {false, true}) {
    const auto errors = errors_of(GetParam(), [&](int rank, auto& ddp) {
      ddp.register_comm_hook(make_hook("fp16_compress"));
      for (int step = 0; step < 3; ++step) run_step(rank, ddp, step);
      if (rank == 2 && one_has_none) ddp.replace_comm_hook(nullptr);
      if (rank != 2 || !one_has_none) ddp.replace_comm_hook(make_hook(rank == 2 ? "bf16_compress" : "fp16_compress"));
      run_step(rank, ddp, 3);
    });
    expect_in_all(errors, {"ranks 0, 1 have", "fp16_compress",
                           one_has_none ? std::string("rank 2 has no hook") : std::string("bf16_compress")});
  }
}

// A user's hook has a name alone.
TEST_P(HooksThatDiffer, UsersHooksAreComparedByName) {
  const auto errors = errors_of(GetParam(), [](int rank, auto& ddp) {
    HookTraits traits;
    if (rank == 0) traits.name = "mine";
    ddp.register_comm_hook([](GradBucket& bucket) { return bucket.buffer(); }, traits);
    run_step(rank, ddp, 0);
  });
  expect_in_all(errors, {"rank 0 has 'mine'", "ranks 1, 2 have 'user hook'"});
}

TEST_P(HooksThatDiffer, ALoggingHookMayBeOnOneRankAlone) {
  const auto errors = errors_of(GetParam(), [](int rank, auto& ddp) {
    auto hook = make_hook("quantize_per_tensor");
    ddp.register_comm_hook(rank == 0 ? make_logging_hook(hook, [](const BucketRecord&) {}) : hook);
    for (int step = 0; step < 3; ++step) run_step(rank, ddp, step);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Where a hook is on some ranks only, and where one of a common name sends other sizes, the group's own message is told
// with the hook.
TEST(HooksThatDifferInTheirCalls, AreNamed) {
  for (const int lanes : {0, 1, 3}) {
    const gradwire::testing::Setup setup{"threads", lanes, false};
    const auto missing = errors_of(setup, [](int rank, auto& ddp) {
      if (rank == 0) ddp.register_comm_hook(make_hook("int8"));
      run_step(rank, ddp, 0);
    });
    expect_in_all(missing, {"disagree"});
    EXPECT_NE((missing[0] + missing[1] + missing[2]).find("communication hook"), std::string::npos);
    const auto sizes = errors_of(setup, [](int rank, auto& ddp) {
      ddp.register_comm_hook([rank](GradBucket& bucket) {
        bucket.group().all_reduce({at::zeros({rank == 1 ? 3 : 4})})->wait();
        return bucket.buffer();
      });
      run_step(rank, ddp, 0);
    });
    expect_in_all(sizes, {"communication hook 'user hook'", "disagree"});
  }
}

TEST(HookIdentity, HasTheOptionsThatRanksMustShare) {
  EXPECT_NE(make_reduce_in_dtype_hook(at::kHalf)->identity(), make_reduce_in_dtype_hook(at::kDouble)->identity());
  EXPECT_NE(make_hook("int8:vectors=plain")->identity(), make_hook("int8")->identity());
  EXPECT_NE(make_hook("batched_power_sgd:start=2")->identity(), make_hook("power_sgd:start=2")->identity());
  EXPECT_EQ(make_hook("power_sgd:start=2,log_every=5")->identity(), make_hook("power_sgd:start=2")->identity());
  EXPECT_EQ(make_comm_hook([](GradBucket& bucket) { return bucket.buffer(); })->identity(), "user hook");
}

}  // namespace
}  // namespace gradwire::testing::hook_agreement_test
