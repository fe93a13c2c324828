// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Every hook with twelve buckets, over worlds of 2, 3 and 4, rank threads and rank processes, 0, 1 and 2 lanes: no
// error, the same bits on all ranks (but for noop and post-local SGD, whose ranks differ on purpose) in every step, and
// the same bits in a second run. Pairs of these four in `Pairs`, all of them with 300 steps in `Full`, which is slow.
// Ranks are threads or processes of child processes: autograd does not survive a fork, so the test's own process stays
// clear of it.
#include <array>
#include <iostream>
#include <set>
#include <tuple>

#include "gradwire/compress/compressor.h"
#include "gradwire/hooks/hook_cases_test_support.h"
#include "gradwire/hooks/registry.h"
#include "tests/support/ranks.h"

namespace gradwire::testing::hook_cover_test {
namespace {

struct CoverCase {
  std::string name;
  MakeHook make;
  bool ranks_agree = true;
};

CoverCase named(const std::string& spec) {
  return {spec, [spec](const auto&) { return make_hook(spec); }, spec != "noop"};
}

// Within these steps every hook leaves its warm-up.
std::string started(const std::string& name) {
  if (name.find("power_sgd") != std::string::npos) return name + ":start=2";
  // What auto chooses depends on times, and two runs are compared here.
  if (name == "auto") return "auto:accuracy=exact";
  return name == "dgc" ? name + ":ramp=3" : name;
}

// Every codec with every memory; both exchanges with each codec and with each memory.
std::vector<CoverCase> combinations() {
  constexpr std::array kMemories{"none", "error_feedback", "ef21", "momentum"};
  constexpr std::array kExchanges{"all_gather", "all_reduce"};
  std::vector<CoverCase> cases;
  std::size_t turn = 0;
  for (const auto& info : compress::known_compressors()) {
    if (info.name == "sign_sgd") continue;
    const bool bare_signs = info.name == "sign";
    for (std::size_t i = 0; i < (bare_signs ? 2 : kMemories.size()); ++i) {
      const std::string start = started(std::string(info.name));
      cases.push_back(named(concat(start, start.find(':') == std::string::npos ? ':' : ',', "memory=",
                                   bare_signs ? "none" : kMemories[i], ",exchange=", kExchanges[(turn + i) % 2])));
    }
    ++turn;
  }
  return cases;
}

std::vector<CoverCase> cover_cases() {
  std::vector<CoverCase> cases;
  for (const std::string& name : hook_names()) cases.push_back(named(started(name)));
  for (const HookCase& one : hook_cases()) cases.push_back({concat("make ", one.name), one.make});
  for (const char* spec :
       {"power_sgd:rank=2,start=2,warm_start=0", "power_sgd:rank=2,start=0,warm_start=0,error_feedback=0",
        "power_sgd:rank=4,start=2,same_shape=1,min_rate=1", "batched_power_sgd:rank=3,start=2,warm_start=0",
        "power_sgd:start=2,wrap=fp16", "int8:wrap=bf16", "int4:vectors=plain,warm_up=2", "top_k:min=256,ratio=0.1",
        "random_k:unbiased=1,ratio=0.2,exchange=all_gather", "int2:rounding=stochastic,block=8"})
    cases.push_back(named(spec));
  for (const CoverCase& one : combinations()) cases.push_back(one);
  cases.push_back({"checking power_sgd", [](auto) { return make_checking_hook(make_hook("power_sgd:start=2")); }});
  cases.push_back({"checking int4", [](auto) { return make_checking_hook(make_hook("int4")); }});
  cases.push_back({"post_local_sgd",
                   [](const auto& group) {
                     return make_post_local_sgd_hook(
                         {.subgroup = group->split(group->rank() % 2), .start_iteration = 2});
                   },
                   false});
  return cases;
}

struct Configuration {
  std::size_t hook;
  int world;
  std::string backend;
  int lanes;
};

constexpr std::array kWorlds{2, 3, 4};
const std::array<std::string, 2> kBackends{"threads", "shm"};
constexpr std::array kLanes{0, 1, 2};

// Three configurations a hook, so that each two values of hook, world, backend and lanes meet in one of them.
std::vector<Configuration> pairs_of_all() {
  std::vector<Configuration> rows;
  for (std::size_t hook = 0; hook < cover_cases().size(); ++hook) {
    for (std::size_t row = 0; row < 3; ++row)
      rows.push_back({hook, kWorlds[row], kBackends[(hook + row) % 2], kLanes[(hook + row) % 3]});
  }
  return rows;
}

void add_bits(std::uint64_t& digest, const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  const auto* bytes = static_cast<const unsigned char*>(values.const_data_ptr());
  for (std::size_t i = 0; i < values.nbytes(); ++i) digest = (digest ^ bytes[i]) * 0x100000001b3ULL;
}

// A digest of the gradients of all steps, and of the parameters at the end.
std::uint64_t train(const CoverCase& hook, int rank, const std::shared_ptr<ProcessGroup>& group, int lanes, int steps) {
  Mlp net(6, 16);
  auto options = options_for({group->name(), lanes, lanes == 1}, group);
  options.bucket_cap_mb = 1e-6;  // a bucket a parameter, from the second step on
  DistributedDataParallel ddp(net, options);
  ddp.register_comm_hook(hook.make(group));
  std::uint64_t digest = 0xcbf29ce484222325ULL;
  for (int step = 0; step < steps; ++step) {
    ddp.zero_grad();
    (ddp(random_tensor({2, 16}, 8 * step + rank)) - 0.1).pow(2).sum().backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      add_bits(digest, parameter.grad());
      parameter.sub_(parameter.grad(), 0.01);
    }
  }
  EXPECT_EQ(ddp.core().bucket_plan().size(), 12U);
  for (const auto& parameter : net->parameters()) {
    add_bits(digest, parameter);
    EXPECT_TRUE(parameter.isfinite().all().item<bool>());
  }
  return digest;
}

void check(const Configuration& at, const CoverCase& hook, int rank, const std::shared_ptr<ProcessGroup>& group,
           int steps) {
  SCOPED_TRACE(concat(hook.name, ", rank ", rank, " of ", at.world, " over ", at.backend, ", ", at.lanes, " lanes"));
  const std::uint64_t first = train(hook, rank, group, at.lanes, steps);
  EXPECT_EQ(train(hook, rank, group, at.lanes, steps), first) << "second run";
  const at::Tensor mine = at::full({1}, static_cast<std::int64_t>(first), at::kLong);
  const at::Tensor all = at::empty({at.world}, at::kLong);
  group->all_gather_into_tensor(all, mine)->wait();
  EXPECT_TRUE(!hook.ranks_agree || all.eq(all[0]).all().item<bool>()) << "ranks differ: " << all;
}

// Runs those of `rows` that have this backend and this world; returns how many.
std::size_t run(const std::vector<Configuration>& rows, const std::string& backend, int world, int steps,
                std::chrono::seconds guard) {
  const auto cases = cover_cases();
  std::size_t count = 0;
  const auto mine = [&](const Configuration& row) { return row.backend == backend && row.world == world; };
  for (const Configuration& row : rows) count += mine(row) ? 1 : 0;
  const auto body = [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    for (const Configuration& row : rows) {
      if (mine(row)) check(row, cases[row.hook], rank, group, steps);
    }
  };
  if (backend == "threads") {
    test_support::run_ranks(
        "one child", 1,
        [&](int, const std::shared_ptr<Store>&) {
          at::set_num_threads(1);
          run_ranks({"threads"}, world, body);
        },
        guard);
  } else {
    test_support::run_ranks(
        backend, world,
        [&](int rank, const std::shared_ptr<Store>& store) {
          at::set_num_threads(1);
          body(rank, make_process_group(backend, store, rank, world, std::chrono::seconds(120)));
        },
        guard);
  }
  return count;
}

std::string name_of_place(const std::string& backend, int world) { return concat(backend, "_world", world); }

class Pairs : public ::testing::TestWithParam<std::tuple<std::string, int>> {};
INSTANTIATE_TEST_SUITE_P(HookCover, Pairs,
                         ::testing::Combine(::testing::ValuesIn(kBackends), ::testing::ValuesIn(kWorlds)),
                         [](const auto& info) {
                           return name_of_place(std::get<0>(info.param), std::get<1>(info.param));
                         });

TEST_P(Pairs, NoErrorAndTheSameBitsOnAllRanksAndInBothRuns) {
  const auto& [backend, world] = GetParam();
  EXPECT_GT(run(pairs_of_all(), backend, world, 8, test_support::kRankGuard), 0U);
}

TEST(HookCoverPairs, HaveEveryTwoValuesTogether) {
  std::set<std::tuple<std::size_t, int>> hook_world;
  std::set<std::tuple<std::size_t, std::string>> hook_backend;
  std::set<std::tuple<std::size_t, int>> hook_lanes;
  std::set<std::tuple<int, std::string>> world_backend;
  std::set<std::tuple<int, int>> world_lanes;
  std::set<std::tuple<std::string, int>> backend_lanes;
  for (const Configuration& row : pairs_of_all()) {
    hook_world.emplace(row.hook, row.world);
    hook_backend.emplace(row.hook, row.backend);
    hook_lanes.emplace(row.hook, row.lanes);
    world_backend.emplace(row.world, row.backend);
    world_lanes.emplace(row.world, row.lanes);
    backend_lanes.emplace(row.backend, row.lanes);
  }
  const std::size_t hooks = cover_cases().size();
  EXPECT_GE(hooks, 90U);
  EXPECT_EQ(hook_world.size(), 3 * hooks);
  EXPECT_EQ(hook_backend.size(), 2 * hooks);
  EXPECT_EQ(hook_lanes.size(), 3 * hooks);
  EXPECT_EQ(world_backend.size(), 6U);
  EXPECT_EQ(world_lanes.size(), 9U);
  EXPECT_EQ(backend_lanes.size(), 6U);
}

class Full : public ::testing::TestWithParam<std::tuple<std::string, int, int>> {};
INSTANTIATE_TEST_SUITE_P(HookCover, Full,
                         ::testing::Combine(::testing::ValuesIn(kBackends), ::testing::ValuesIn(kWorlds),
                                            ::testing::ValuesIn(kLanes)),
                         [](const auto& info) {
                           return concat(name_of_place(std::get<0>(info.param), std::get<1>(info.param)), "_lanes",
                                         std::get<2>(info.param));
                         });

TEST_P(Full, NoErrorAndTheSameBitsOnAllRanksAndInBothRuns) {
  constexpr int kSteps = 300;
  const auto& [backend, world, lanes] = GetParam();
  std::vector<Configuration> rows;
  for (std::size_t hook = 0; hook < cover_cases().size(); ++hook) rows.push_back({hook, world, backend, lanes});
  const std::size_t count = run(rows, backend, world, kSteps, std::chrono::minutes(30));
  EXPECT_EQ(count, cover_cases().size());
  std::cout << "cover: " << count << " hooks, 12 buckets, " << backend << ", " << world << " ranks, " << lanes
            << " lanes: 2 runs of " << kSteps << " steps each, " << 2 * kSteps * count << " steps, "
            << (HasFailure() ? "FAILED" : "all ranks and both runs the same bits") << '\n';
}

}  // namespace
}  // namespace gradwire::testing::hook_cover_test
