// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks around hooks: half precision, another dtype, logging, checking.
#include <cmath>
#include <mutex>
#include <set>

#include "gradwire/base/error.h"
#include "gradwire/hooks/between_hosts_hook.h"
#include "gradwire/hooks/compress_wrappers.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/mixed_precision_hooks.h"
#include "gradwire/hooks/optimizer_overlap_hooks.h"
#include "gradwire/hooks/policy_hook.h"
#include "gradwire/hooks/post_local_sgd_hook.h"

namespace gradwire::testing::wrapper_hooks_test {
namespace {

class WrapperHooks : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Groups, WrapperHooks, ::testing::Values("local", "threads"),
                         [](const auto& info) { return info.param; });

std::vector<at::Tensor> some_values(int world, at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> values;
  for (int rank = 0; rank < world; ++rank) values.push_back(random_tensor({333}, rank).to(dtype));
  return values;
}

TEST_P(WrapperHooks, AroundAllreduceTheyAreTheCompressHooks) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf}) {
    const auto values = some_values(3, dtype);
    const auto fp16 = results_of(
        GetParam(), [](auto) { return make_fp16_compress_hook(); }, values);
    const auto bf16 = results_of(
        GetParam(), [](auto) { return make_bf16_compress_hook(); }, values);
    const auto around16 = results_of(
        GetParam(), [](auto) { return make_fp16_compress_wrapper(make_allreduce_hook()); }, values);
    const auto around_b16 = results_of(
        GetParam(), [](auto) { return make_bf16_compress_wrapper(make_allreduce_hook()); }, values);
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      EXPECT_TRUE(same_bits(fp16[rank], around16[rank]));
      EXPECT_TRUE(same_bits(bf16[rank], around_b16[rank]));
    }
  }
}

TEST_P(WrapperHooks, TheInnerHookSeesTheNarrowBucketAndTheCallersStaysAsItIs) {
  run_ranks({GetParam()}, 2, [](int rank, const auto& group) {
    GradBucket bucket = bucket_of(random_tensor({5}, rank), *group);
    const at::Tensor buffer = bucket.buffer();
    const auto hook = make_bf16_compress_wrapper(make_comm_hook([](GradBucket& inner) {
      EXPECT_EQ(inner.buffer().scalar_type(), at::kBFloat16);
      EXPECT_EQ(inner.gradients()[0].scalar_type(), at::kBFloat16);
      return at::Tensor(inner.buffer() * 2);
    }));
    const Future future = hook->run(bucket);
    EXPECT_TRUE(tensor_of(*future).is_same(buffer));
    EXPECT_TRUE(bucket.buffer().is_same(buffer));
    EXPECT_TRUE(buffer.equal((random_tensor({5}, rank).to(at::kBFloat16) * 2).to(at::kFloat)));
  });
}

TEST(WrapperTraits, AreTheInnerHooks) {
  const auto group = std::make_shared<LocalGroup>(std::make_shared<Meeting>(1), 0, 1);
  const auto inner = make_allreduce_hook(group);
  const auto traits = make_fp16_compress_wrapper(inner)->traits();
  EXPECT_EQ(traits.name, "fp16_compress_wrapper(allreduce)");
  EXPECT_TRUE(traits.parallel_safe);
  EXPECT_TRUE(traits.single_collective);
  ASSERT_EQ(traits.groups.size(), 1u);
  EXPECT_EQ(traits.groups[0], group);
  EXPECT_FALSE(make_checking_hook(inner)->traits().single_collective);
  EXPECT_FALSE(
      make_fp16_compress_wrapper(make_comm_hook([](GradBucket& b) { return b.buffer(); }))->traits().parallel_safe);
  EXPECT_THROW((void)make_fp16_compress_wrapper(nullptr), InvalidArgument);
  EXPECT_THROW((void)make_checking_hook(nullptr), InvalidArgument);
  EXPECT_THROW((void)make_logging_hook(inner, nullptr), InvalidArgument);
}

TEST(WrapperTraits, MemoryIsTheInnerHooks) {
  PostLocalSGDState local;
  local.start_iteration = 5;
  local.post_local_gradient_allreduce = false;
  const auto inner = make_post_local_sgd_hook(local);
  const auto outer = make_bf16_compress_wrapper(make_checking_hook(inner));
  outer->load_state_dict({{"iteration", 3}});
  EXPECT_EQ(inner->state_dict().at("iteration").toInt(), 3);
  EXPECT_EQ(outer->state_dict().at("iteration").toInt(), 3);
}

TEST(WrapperTraits, TheEndOfAnIterationReachesTheInnerHook) {
  class CountingHook final : public CommHook {
   public:
    Future run(GradBucket& bucket) override { return completed_future(bucket.buffer()); }
    void end_iteration() override { ++ended; }
    int ended = 0;
  };
  const auto inner = std::make_shared<CountingHook>();
  const std::vector<std::shared_ptr<CommHook>> wrappers{
      make_fp16_compress_wrapper(inner),
      make_bf16_compress_wrapper(inner),
      make_logging_hook(inner, [](const BucketRecord&) {}),
      make_checking_hook(inner),
      make_policy_hook(inner, {.warm_up = 1}),
      make_between_hosts_hook(inner),
      make_hook_then_step(inner, [](const std::string&, at::Tensor, at::Tensor) {}),
      make_hook_then_optimizer(inner, [](const std::string&, const at::Tensor&) { return nullptr; })};
  for (std::size_t i = 0; i < wrappers.size(); ++i) {
    wrappers[i]->end_iteration();
    EXPECT_EQ(inner->ended, static_cast<int>(i) + 1) << wrappers[i]->traits().name;
  }
}

// Half gradients whose sum does not fit into half: right when reduced in float32, infinite in half.
TEST_P(WrapperHooks, ReducingInAWiderTypeNeitherOverflowsNorRoundsEarly) {
  const std::vector<at::Tensor> values{at::full({7}, 60000.0).to(at::kHalf), at::full({7}, 50000.0).to(at::kHalf)};
  const auto wide = results_of(
      GetParam(), [](auto) { return make_reduce_in_dtype_hook(at::kFloat); }, values);
  EXPECT_TRUE(same_bits(wide[1], ((values[0].to(at::kFloat) + values[1].to(at::kFloat)) / 2).to(at::kHalf)));
  const auto same = results_of(
      GetParam(), [](auto) { return make_reduce_in_dtype_hook(at::kHalf); }, values);
  EXPECT_TRUE(same[0].isinf().all().item<bool>());
  const auto random = some_values(3, at::kHalf);
  const at::Tensor expected =
      ((random[0].to(at::kFloat) + random[1].to(at::kFloat) + random[2].to(at::kFloat)) / 3).to(at::kHalf);
  EXPECT_TRUE(same_bits(results_of(
                            GetParam(), [](auto) { return make_reduce_in_dtype_hook(at::kFloat); }, random)[2],
                        expected));
}

TEST(ReduceInDtype, RefusesTypesThatAreNotFloating) {
  EXPECT_THROW((void)make_reduce_in_dtype_hook(at::kInt), InvalidArgument);
  EXPECT_THROW((void)make_reduce_in_dtype_hook(at::kComplexFloat), InvalidArgument);
}

TEST_P(WrapperHooks, LoggingTellsEachBucketOnce) {
  std::mutex mutex;
  std::vector<std::vector<BucketRecord>> records(2);
  run_ranks({GetParam(), GetParam() == "local" ? -1 : 2}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const gradwire::testing::Setup setup{GetParam(), GetParam() == "local" ? -1 : 2};
    zoo_gradients(rank, group, setup, [&](auto) {
      return make_logging_hook(make_allreduce_hook(), [&, rank](const BucketRecord& record) {
        const std::lock_guard lock(mutex);
        records[static_cast<std::size_t>(rank)].push_back(record);
      });
    });
  });
  for (const auto& of_rank : records) {
    std::set<std::pair<std::uint32_t, std::size_t>> seen;
    double squares = 0;
    for (const BucketRecord& record : of_rank) {
      EXPECT_TRUE(seen.emplace(record.iteration, record.bucket).second);
      EXPECT_GE(record.seconds, 0);
      if (record.iteration == 3) squares += record.norm_after * record.norm_after;
    }
    EXPECT_EQ(seen.size(), of_rank.size());
    double expected = 0;
    for (const auto& average : Zoo()->average(2, 3)) expected += average.pow(2).sum().item<double>();
    EXPECT_NEAR(squares, expected, 1e-2 * expected);
  }
  EXPECT_EQ(records[0].size(), records[1].size());
}

TEST_P(WrapperHooks, CheckingFindsTheRankAndTheParameterThatDiffer) {
  const gradwire::testing::Setup setup{GetParam(), GetParam() == "local" ? -1 : 2};
  std::mutex mutex;
  std::vector<std::string> errors;
  const auto train = [&](bool drift) {
    run_ranks(setup, 3, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const std::string error = error_of([&] {
        zoo_gradients(rank, group, setup, [&](auto) {
          return make_checking_hook(make_comm_hook(
              [drift, rank](GradBucket& bucket) {
                Future future = allreduce_hook(nullptr, bucket);
                future->waitAndThrow();
                at::Tensor result = tensor_of(*future);
                // One unit in the last place of one element.
                for (std::size_t i = 0;
                     drift && rank == 2 && bucket.iteration() == 2 && i < bucket.parameter_names().size(); ++i) {
                  if (bucket.parameter_names()[i] != "p7") continue;
                  const std::int64_t place = bucket.layout().slots[i].offset;
                  result[place] = std::nextafter(result[place].item<float>(), 1e30f);
                }
                return result;
              },
              {.name = "drifting", .parallel_safe = true}));
        });
      });
      const std::lock_guard lock(mutex);
      errors.push_back(error);
    });
  };
  train(false);
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  errors.clear();
  train(true);
  ASSERT_EQ(errors.size(), 3u);
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 2 holds other bits than rank 0"), std::string::npos) << error;
    EXPECT_NE(error.find("'p7'"), std::string::npos) << error;
    EXPECT_NE(error.find("iteration 2"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace gradwire::testing::wrapper_hooks_test
