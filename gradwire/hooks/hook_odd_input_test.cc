// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What every hook makes of odd buckets: empty, one element, zeros, constants, denormals, the largest numbers, Inf and
// NaN. Parameters of odd types and layouts are all_hooks_test's.
#include <array>
#include <limits>

#include "gradwire/hooks/hook_cases_test_support.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::testing::hook_odd_input_test {
namespace {

// What comes out where all ranks have the same values.
enum class Kind {
  kClose,      // those values, within 1%
  kHalf,       // the same, but infinity for what is beyond half's range
  kPicks,      // those values at some places, zero elsewhere
  kMagnitude,  // their mean magnitude, with their signs
  kSigns,      // 1 or -1; 1 for zero, and zeros for a bucket of zeros
};

struct OddCase {
  std::string name;
  MakeHook make;
  Kind kind;
};

Kind kind_of(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("fp16") || has("half")) return Kind::kHalf;
  if (has("top_k") || has("dgc") || has("random_k")) return has("ratio=1") ? Kind::kClose : Kind::kPicks;
  if (has("one_bit")) return Kind::kMagnitude;
  return has("sign") ? Kind::kSigns : Kind::kClose;
}

std::vector<OddCase> odd_cases() {
  std::vector<OddCase> cases;
  for (const HookCase& one : hook_cases()) cases.push_back({one.name, one.make, kind_of(one.name)});
  for (const std::string& name : hook_names()) {
    if (name == "noop") continue;
    const std::string spec = name.find("power_sgd") == std::string::npos ? name : name + ":start=2";
    cases.push_back({"hook_" + name, [spec](const auto&) { return make_hook(spec); }, kind_of(name)});
  }
  return cases;
}

class OddInput : public ::testing::TestWithParam<OddCase> {};
INSTANTIATE_TEST_SUITE_P(Hook, OddInput, ::testing::ValuesIn(odd_cases()),
                         [](const auto& info) { return info.param.name; });

constexpr std::array kWorlds{2, 3};
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using OfRank = std::function<at::Tensor(int rank)>;
struct Call {
  std::uint32_t iteration;
  OfRank values;
};

// What one hook makes of the calls one after the other, on rank 0; checks that all ranks hold the same.
std::vector<at::Tensor> results_of_calls(const MakeHook& make, int world, const std::vector<Call>& calls,
                                         int divisor = -1) {
  std::vector<std::vector<at::Tensor>> results(static_cast<std::size_t>(world));
  run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto hook = make(group);
    for (const Call& call : calls) {
      GradBucket bucket = bucket_of(call.values(rank), *group, call.iteration, divisor);
      const Future future = hook->run(bucket);
      future->waitAndThrow();
      results[static_cast<std::size_t>(rank)].push_back(tensor_of(*future).clone());
    }
  });
  for (const auto& rank : results) {
    for (std::size_t i = 0; i < calls.size(); ++i)
      EXPECT_TRUE(at::allclose(rank[i], results[0][i], 0, 0, /*equal_nan=*/true)) << "ranks differ after call " << i;
  }
  return results[0];
}

// After two calls with harmless values, so that PowerSGD has started and memories are not empty where they can be.
at::Tensor result_of(const MakeHook& make, int world, const OfRank& values, int divisor = -1) {
  const auto zeros = [&](int rank) { return at::zeros_like(values(rank)); };
  return results_of_calls(make, world, {{0, zeros}, {1, zeros}, {2, values}}, divisor)[2];
}

void expect_values(const at::Tensor& result, const at::Tensor& values, Kind kind) {
  const at::Tensor close = (result - values).abs() <= 0.01 * values.abs();
  switch (kind) {
    case Kind::kClose:
    case Kind::kHalf:
      EXPECT_TRUE(close.all().item<bool>()) << result;
      break;
    case Kind::kPicks:
      EXPECT_TRUE((close | (result == 0)).all().item<bool>()) << result;
      break;
    case Kind::kMagnitude:
      EXPECT_TRUE(at::allclose(result, values.sign() * values.abs().mean(), 0.01, 0)) << result;
      break;
    case Kind::kSigns:
      EXPECT_TRUE(result.equal(values.ne(0).any() * at::where(values < 0, -1.0, 1.0).to(at::kFloat))) << result;
      break;
  }
}

TEST_P(OddInput, EmptyBucketsStayEmpty) {
  for (const int world : kWorlds)
    EXPECT_EQ(result_of(GetParam().make, world, [](int) { return at::zeros({0}); }).numel(), 0);
}

TEST_P(OddInput, OneElementComesBack) {
  for (const int world : kWorlds) {
    for (const double value : {7.0, -7.0}) {
      const at::Tensor values = at::full({1}, value);
      const at::Tensor result = result_of(GetParam().make, world, [&](int) { return values; });
      expect_values(result, values, GetParam().kind);
      EXPECT_NE(result.item<float>(), 0);
    }
  }
}

TEST_P(OddInput, ZerosAndConstantsStayWhatTheyAre) {
  for (const int world : kWorlds) {
    for (const double value : {0.0, 7.0, -7.0}) {
      // 24 rows of 25: of rank 1 also in the batched PowerSGD's square.
      const at::Tensor values = at::full({600}, value);
      const at::Tensor result = result_of(GetParam().make, world, [&](int) { return values; });
      expect_values(result, values, GetParam().kind);
      EXPECT_TRUE(value == 0 || result.ne(0).any().item<bool>());
    }
  }
}

// They may vanish, but nothing appears in their place.
TEST_P(OddInput, DenormalsStayTinyAndFinite) {
  for (const int world : kWorlds) {
    for (const double value : {1e-40, -1e-40, 1.5e-45}) {
      const at::Tensor values = at::full({600}, value);
      const at::Tensor result = result_of(GetParam().make, world, [&](int) { return values; });
      if (GetParam().kind == Kind::kSigns) {
        expect_values(result, values, Kind::kSigns);
      } else {
        EXPECT_TRUE((result.abs() <= 1e-38).all().item<bool>()) << result;
      }
    }
  }
}

// Where no sum overflows, nor a product of PowerSGD's: it has 4 * 25 of them here.
TEST_P(OddInput, LargeNumbersComeBack) {
  for (const int world : kWorlds) {
    at::Tensor values = at::full({600}, 1.0);
    values[0] = kMax / 128;
    values[1] = -kMax / 128;
    const at::Tensor result = result_of(GetParam().make, world, [&](int) { return values; }).narrow(0, 0, 2);
    const float first = result[0].item<float>();
    const float second = result[1].item<float>();
    switch (GetParam().kind) {
      case Kind::kHalf:
        EXPECT_EQ(first, kInfinity);
        EXPECT_EQ(second, -kInfinity);
        break;
      case Kind::kMagnitude:
        EXPECT_TRUE(first > 0 && first < kInfinity) << first;
        EXPECT_TRUE(second < 0 && second > -kInfinity) << second;
        break;
      default:
        expect_values(result, values.narrow(0, 0, 2), GetParam().kind);
    }
  }
}

// The largest there are: right, or not finite; never a number that is wrong. And the hook is none the worse for it.
TEST_P(OddInput, TheLargestNumbersAreRightOrNotFinite) {
  for (const int world : kWorlds) {
    const at::Tensor largest = at::full({600}, kMax);
    const auto harmless = [](int rank) { return random_tensor({600}, 40 + rank); };
    const auto results = results_of_calls(
        GetParam().make, world, {{0, harmless}, {1, harmless}, {2, [&](int) { return largest; }}, {3, harmless}});
    EXPECT_TRUE(results[3].isfinite().all().item<bool>());
    if (GetParam().kind == Kind::kSigns) {
      expect_values(results[2], largest, Kind::kSigns);
    } else if (results[2].isfinite().all().item<bool>()) {
      EXPECT_TRUE(((results[2] >= 0.98 * kMax) | (results[2].abs() <= 1)).all().item<bool>()) << results[2];
    }
  }
}

// On one rank; all see it, and what comes after is as if the call had not been.
TEST_P(OddInput, InfinityAndNanReachAllRanksAndAreForgotten) {
  for (const int world : kWorlds) {
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      const auto harmless = [](int seed) {
        return [seed](int rank) { return random_tensor({600}, 10 * seed + rank); };
      };
      const auto broken = [&](int rank) {
        at::Tensor values = random_tensor({600}, 90 + rank);
        if (rank == 1) values[300] = bad;
        return values;
      };
      std::vector<Call> calls;
      for (std::uint32_t i = 0; i < 4; ++i) calls.push_back({i, harmless(static_cast<int>(i))});
      calls.push_back({5, harmless(5)});
      const auto undisturbed = results_of_calls(GetParam().make, world, calls);
      calls.insert(calls.begin() + 4, {4, broken});
      const auto results = results_of_calls(GetParam().make, world, calls);
      EXPECT_FALSE(results[4].isfinite().all().item<bool>());
      EXPECT_TRUE(results[5].isfinite().all().item<bool>());
      EXPECT_TRUE(results[5].equal(undisturbed[4])) << "the memory is not what it was";
    }
  }
}

// With fewer ranks taking part than the group has, sums are divided by those. PyTorch's hooks divide by all ranks.
TEST_P(OddInput, DividesByTheBucketsDivisor) {
  if (GetParam().name == "post_local_sgd_whole_subgroup") return;  // by the ranks of its subgroup
  const auto values = [](int rank) { return at::full({600}, rank == 0 ? 6.0 : 0.0); };
  for (const int divisor : {1, 2}) {
    const at::Tensor result = result_of(GetParam().make, 2, values, divisor);
    expect_values(result, at::full({600}, 6.0 / divisor), GetParam().kind);
  }
}

}  // namespace
}  // namespace gradwire::testing::hook_odd_input_test
