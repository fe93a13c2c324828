// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/compressed_hook.h"
#include "gradwire/hooks/hook_test_support.h"

#include <mutex>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/ddp/kept_hook_state.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/policy_hook.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing::compressed_hook_test {
namespace {

constexpr int kWorld = 3;

std::vector<Setup> setups() { return {{"threads", 0, false}, {"threads", 1, true}, {"threads", 2, false}}; }

class CompressedHooks : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, CompressedHooks, ::testing::ValuesIn(setups()), name_of_setup);

at::Tensor share(int rank, int step) {
  return random_tensor({6, 16}, 90 + step).chunk(kWorld)[static_cast<std::size_t>(rank)];
}

struct TrainingRun {
  std::vector<std::vector<at::Tensor>> parameters;  // by rank, after training
  std::vector<double> losses;                       // rank 0's
};

// Trains twelve buckets by plain SGD.
TrainingRun train(const Setup& setup, const std::string& spec, int steps, double rate = 0.1) {
  TrainingRun run;
  run.parameters.resize(kWorld);
  std::mutex mutex;
  run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(6, 16);
    auto options = options_for(setup, group);
    options.bucket_cap_mb = 0.0001;
    DistributedDataParallel ddp(net, options);
    ddp.register_comm_hook(make_hook(spec));
    for (int step = 0; step < steps; ++step) {
      ddp.zero_grad();
      const at::Tensor loss = (ddp(share(rank, step % 4)) - 0.25).pow(2).mean();
      loss.backward();
      if (rank == 0) run.losses.push_back(loss.item<double>());
      torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) parameter.sub_(parameter.grad(), rate);
    }
    const std::lock_guard lock(mutex);
    for (const auto& parameter : net->parameters())
      run.parameters[static_cast<std::size_t>(rank)].push_back(parameter.detach().clone());
  });
  return run;
}

void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << what << ", tensor " << i;
}

// Every compressor by its defaults, with several buckets: no error, all ranks and both runs hold the same bits, and the
// loss falls.
TEST_P(CompressedHooks, RanksAndRunsAgreeAndTrainingGoesOn) {
  for (const auto& info : compress::known_compressors()) {
    const std::string spec(info.name);
    const double rate = spec == "sign" || spec == "sign_sgd" ? 1e-3 : 0.1;
    const TrainingRun first = train(GetParam(), spec, 30, rate);
    const TrainingRun second = train(GetParam(), spec, 30, rate);
    for (int rank = 1; rank < kWorld; ++rank)
      expect_same_bits(first.parameters[0], first.parameters[static_cast<std::size_t>(rank)], spec);
    expect_same_bits(first.parameters[0], second.parameters[0], spec);
    EXPECT_LT(first.losses.back(), first.losses.front()) << spec;
  }
}

TEST(CompressedHook, OptionsOfTheRegistryReachTheirPlaces) {
  EXPECT_EQ(make_hook("int4:block=64,memory=ef21,exchange=all_gather")->traits().name.substr(0, 4), "int4");
  EXPECT_EQ(make_hook("top_k:min=64Ki,warm_up=3")->traits().name.substr(0, 6), "policy");
  EXPECT_NE(error_of([] { (void)make_hook("int8:memory=elephant"); }).find("error_feedback"), std::string::npos);
  EXPECT_NE(error_of([] { (void)make_hook("int8:vectors=some"); }).find("plain"), std::string::npos);
  EXPECT_THROW((void)make_compressed_hook(std::unique_ptr<compress::Compressor>()), InvalidArgument);
}

std::vector<at::Tensor> gradients(const Setup& setup, const std::function<std::shared_ptr<CommHook>()>& make,
                                  bool poisoned = false) {
  std::vector<at::Tensor> out;
  run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(3, 16);
    DistributedDataParallel ddp(net, options_for(setup, group));
    ddp.register_comm_hook(make());
    at::Tensor x = share(rank, 0).clone();
    if (poisoned && rank == 1) x[0][0] = std::numeric_limits<float>::infinity();
    ddp(x).pow(2).mean().backward();
    if (rank == 0) out = gradients_of(*net);
  });
  return out;
}

// With vectors=plain biases are averaged exactly, weights are not.
TEST_P(CompressedHooks, PlainVectorsAreExact) {
  const auto plain = gradients(GetParam(), [] { return make_allreduce_hook(); });
  const auto mixed = gradients(GetParam(), [] { return make_hook("int4:vectors=plain"); });
  bool weights_differ = false;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (plain[i].dim() == 1) {
      EXPECT_TRUE(at::allclose(mixed[i], plain[i], 1e-6, 1e-9)) << i;
    } else {
      weights_differ = weights_differ || !at::allclose(mixed[i], plain[i], 1e-6, 1e-9);
    }
  }
  EXPECT_TRUE(weights_differ);
}

TEST_P(CompressedHooks, PoliciesChooseThePlainPath) {
  const auto plain = gradients(GetParam(), [] { return make_allreduce_hook(); });
  expect_same_bits(gradients(GetParam(), [] { return make_hook("int4:warm_up=1"); }), plain, "warm_up");
  expect_same_bits(gradients(GetParam(), [] { return make_hook("int4:min=1Mi"); }), plain, "min");
  const auto compressed = gradients(GetParam(), [] { return make_hook("int4:min=8"); });
  EXPECT_FALSE(compressed[0].equal(plain[0]));
}

TEST_P(CompressedHooks, AnInfinityOnOneRankReachesAll) {
  for (const char* spec : {"int8", "one_bit", "top_k", "random_k", "sign_sgd", "fp8_e4m3", "threshold"}) {
    const auto got = gradients(
        GetParam(), [&] { return make_hook(spec); }, /*poisoned=*/true);
    bool finite = true;
    for (const auto& gradient : got) finite = finite && gradient.isfinite().all().item<bool>();
    EXPECT_FALSE(finite) << spec;
  }
}

// What a hook saved, another one goes on with. Not to the same bits: a new DDP begins with one bucket, so what shares a
// scale or a ranking differs.
TEST(CompressedHook, AResumedRunGoesOn) {
  const gradwire::testing::Setup setup{"threads", 1, false};
  for (const std::string spec : {"int4:exchange=all_gather,block=8", "top_k:ratio=0.1", "dgc:ramp=4"}) {
    std::vector<std::vector<at::Tensor>> ends(2);
    for (const int broken : {0, 1}) {
      run_ranks(setup, kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        Mlp net(2, 16);
        auto hook = make_hook(spec);
        auto ddp = std::make_unique<DistributedDataParallel<Mlp>>(net, options_for(setup, group));
        ddp->register_comm_hook(hook);
        for (int step = 0; step < 6; ++step) {
          if (broken == 1 && step == 3) {
            const HookState state = hook->state_dict();
            EXPECT_FALSE(state.empty());
            hook = make_hook(spec);
            hook->load_state_dict(state);
            ddp = std::make_unique<DistributedDataParallel<Mlp>>(net, options_for(setup, group));
            ddp->register_comm_hook(hook);
          }
          ddp->zero_grad();
          (*ddp)(share(rank, step)).pow(2).mean().backward();
          torch::NoGradGuard no_grad;
          for (auto& parameter : net->parameters()) parameter.sub_(parameter.grad(), 0.1);
        }
        if (rank == 0) {
          for (const auto& parameter : net->parameters())
            ends[static_cast<std::size_t>(broken)].push_back(parameter.detach().clone());
        }
      });
    }
    for (std::size_t i = 0; i < ends[0].size(); ++i)
      EXPECT_TRUE(at::allclose(ends[0][i], ends[1][i], 1e-2, 1e-2)) << spec << ", tensor " << i;
  }
}

// Whatever the iteration in which a hook first runs: a checkpoint from before that changes no bit after it.
TEST(CompressedHook, AStateFromBeforeItsFirstIterationChangesNothing) {
  for (const std::string spec : {"random_k:warm_up=3", "int4:rounding=stochastic,warm_up=3", "random_k"}) {
    std::vector<std::vector<at::Tensor>> results(2);
    for (const bool resumed : {false, true}) {
      run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        auto hook = make_hook(spec);
        std::uint32_t iteration = spec == "random_k" ? 5 : 0;  // registered late
        for (int step = 0; step < 6; ++step, ++iteration) {
          if (resumed && step == (spec == "random_k" ? 0 : 2)) {
            const HookState state = hook->state_dict();
            hook = make_hook(spec);
            hook->load_state_dict(state);
            iteration = 0;  // of another DDP object
          }
          GradBucket bucket = gradwire::testing::bucket_of(random_tensor({4000}, 10 * step + rank), *group, iteration);
          const Future future = hook->run(bucket);
          future->waitAndThrow();
          hook->end_iteration();
          if (rank == 0) results[resumed ? 1 : 0].push_back(tensor_of(*future).clone());
        }
      });
    }
    for (std::size_t step = 0; step < results[0].size(); ++step)
      EXPECT_TRUE(results[0][step].equal(results[1][step])) << spec << ", step " << step;
  }
}

// Zeros stand for a rank that has joined: it has no vote.
TEST(CompressedHook, ARankOfZerosDoesNotVote) {
  for (const char* spec : {"sign_sgd", "sign:exchange=all_reduce"}) {
    const at::Tensor values = random_tensor({900}, 3);
    const auto results = gradwire::testing::results_of("threads", [&](const auto&) { return make_hook(spec); },
                                                       {values, at::zeros({900}), at::zeros({900})});
    for (const at::Tensor& result : results) EXPECT_TRUE(result.equal(values.sign())) << spec;
  }
}

TEST(CompressedHook, RefusesTheStateOfAnotherHook) {
  const auto hook = make_hook("int8");
  EXPECT_THROW(hook->load_state_dict({{"local/residual/layer0.weight", at::zeros({4})}}), InvalidArgument);
  EXPECT_THROW(hook->load_state_dict({{"iteration", 3}, {"q/layer0.weight", at::zeros({4})}}), InvalidArgument);
}

// Buckets of other types than float32 are compressed through it.
TEST(CompressedHook, OtherTypesGoThroughFloat32) {
  run_ranks({"threads", 1, false}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    for (const auto type : {at::kDouble, at::kHalf, at::kBFloat16}) {
      Mlp net(1, 8);
      net->to(type);
      DistributedDataParallel ddp(net, options_for({"threads", 1, false}, group));
      ddp.register_comm_hook(make_hook("int8"));
      ddp(at::full({2, 8}, 0.5 + rank, type)).sum().backward();
      for (const auto& gradient : gradients_of(*net)) {
        EXPECT_EQ(gradient.scalar_type(), type);
        EXPECT_TRUE(gradient.isfinite().all().item<bool>());
      }
    }
  });
}

// One parameter of four dimensions in a memory format. The gradients do not depend on the format.
struct FilterImpl : torch::nn::Module {
  explicit FilterImpl(at::MemoryFormat format) {
    filter = register_parameter("filter", random_tensor({4, 3, 2, 5}, 7).contiguous(format));
  }
  at::Tensor forward(int rank, int step) { return (filter * random_tensor({4, 3, 2, 5}, 100 * rank + step)).sum(); }
  at::Tensor filter;
};
TORCH_MODULE(Filter);

// What rank 0 has after the steps [first, last); `start`: the states of all ranks before.
struct FilterRun {
  std::vector<HookState> states;
  at::Tensor gradient;  // of the last step
};
FilterRun train_filter(const std::string& spec, at::MemoryFormat format, int first, int last,
                       const std::vector<HookState>& start = {}, bool reverts = false) {
  FilterRun run;
  run.states.resize(2);
  const Setup setup{"threads", 1, false};
  run_ranks(setup, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Filter net(format);
    DistributedDataParallel ddp(net, options_for(setup, group));
    const auto hook = make_hook(spec);
    if (!start.empty()) hook->load_state_dict(start[static_cast<std::size_t>(rank)]);
    ddp.register_comm_hook(hook);
    KeptHookState kept;
    for (int step = first; step < last; ++step) {
      for (int again = reverts ? 2 : 1; again > 0; --again) {
        kept.keep(*hook);
        ddp.zero_grad();
        ddp(rank, step).backward();
        if (again > 1) kept.revert(*hook);
      }
    }
    run.states[static_cast<std::size_t>(rank)] = hook->state_dict();
    if (rank == 0) run.gradient = net->filter.grad().clone();
  });
  return run;
}

void expect_same_runs(const FilterRun& actual, const FilterRun& expected, const std::string& what) {
  EXPECT_TRUE(actual.gradient.equal(expected.gradient)) << what;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(actual.states[rank].size(), expected.states[rank].size()) << what;
    for (const auto& [key, value] : expected.states[rank]) {
      if (!value.isTensor()) continue;
      const at::Tensor& there = actual.states[rank].at(key).toTensor();
      EXPECT_EQ(there.sizes(), at::IntArrayRef({4, 3, 2, 5})) << what << ": " << key;
      EXPECT_TRUE(there.equal(value.toTensor())) << what << ": " << key << " of rank " << rank;
    }
  }
}

// The largest values are the same ones in any order, so a run in one format goes on in the other as if nothing had
// changed, element by element.
TEST(CompressedHookState, GoesToAModuleWithOtherStrides) {
  constexpr auto kRows = at::MemoryFormat::Contiguous;
  constexpr auto kChannels = at::MemoryFormat::ChannelsLast;
  for (const std::string spec : {"top_k:ratio=0.2", "top_k:ratio=0.2,memory=ef21", "top_k:ratio=0.2,memory=momentum"}) {
    const FilterRun expected = train_filter(spec, kRows, 0, 5);
    for (const auto& [from, to] :
         {std::pair(kRows, kRows), {kRows, kChannels}, {kChannels, kRows}, {kChannels, kChannels}}) {
      const FilterRun before = train_filter(spec, from, 0, 2);
      for (const bool reverts : {false, true}) {
        const std::string what = concat(spec, " from ", from, " to ", to, reverts ? ", with reverts" : "");
        expect_same_runs(train_filter(spec, to, 2, 5, before.states, reverts), expected, what);
      }
    }
  }
}

// States of earlier versions are 1-D, and lie as the parameter does.
TEST(CompressedHookState, OfAnEarlierVersionIsInTheOrderOfTheParameter) {
  const std::string spec = "top_k:ratio=0.2";
  const FilterRun expected = train_filter(spec, at::MemoryFormat::Contiguous, 0, 5);
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    std::vector<HookState> old = train_filter(spec, format, 0, 2).states;
    for (HookState& state : old) {
      for (auto& [key, value] : state) {
        if (!value.isTensor()) continue;
        const at::Tensor as_parameter = value.toTensor().contiguous(format);
        value = as_parameter.as_strided({as_parameter.numel()}, {1}).clone();
      }
    }
    expect_same_runs(train_filter(spec, format, 2, 5, old), expected, concat("format ", format));
  }
}

}  // namespace
}  // namespace gradwire::testing::compressed_hook_test
