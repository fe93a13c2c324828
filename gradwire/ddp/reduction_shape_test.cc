// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A hook that chooses the size of the buckets and the number of lanes: DDP follows the choice before each iteration,
// and gradients keep their bits whatever the shape; what the user has given does not change.
#include "gradwire/ddp/reduction_shape.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::testing::reduction_shape_test {
namespace {

constexpr int kWorld = 3;
constexpr std::size_t kLayers = 6;  // each with a weight of 256 bytes and a bias of 32

// Averages, and goes through a list of shapes, one for each iteration from the third on.
class ShapedHook final : public CommHook, public ChoosesShape {
 public:
  explicit ShapedHook(std::vector<ReductionShape> shapes, bool parallel_safe = true)
      : CommHook({.name = "shaped", .parallel_safe = parallel_safe}), shapes_(std::move(shapes)) {}
  Future run(GradBucket& bucket) override {
    // As plain averaging does it over such groups: each rank multiplies, then the products are summed.
    bucket.group().all_reduce({bucket.buffer().mul_(1.0 / bucket.divisor())})->wait();
    const std::scoped_lock lock(mutex_);
    buckets.push_back(bucket.index());
    threads.insert(std::this_thread::get_id());
    return completed_future(bucket.buffer());
  }
  ReductionShape next_shape(const ShapeFreedom& freedom) override {
    last = freedom;
    last.plan_for = nullptr;
    buckets.clear();
    threads.clear();
    const std::size_t at = asked++;
    if (at < 2) return {};
    const ReductionShape shape = shapes_[(at - 2) % shapes_.size()];
    if (freedom.buckets) planned = freedom.plan_for(shape.cap_bytes);
    return shape;
  }

  // Of the last iteration.
  ShapeFreedom last;
  std::vector<std::size_t> buckets;
  std::set<std::thread::id> threads;
  std::size_t asked = 0;
  BucketPlan planned;  // as DDP said it

 private:
  const std::vector<ReductionShape> shapes_;
  std::mutex mutex_;
};

const std::vector<ReductionShape> kShapes{{1, 0}, {1, 3}, {600, 2}, {0, 0}, {1u << 20, 4}, {1, 1}, {0, 5}, {300, 8}};

void run_step(Mlp& net, DistributedDataParallel<Mlp>& ddp, int rank, int step, bool zero = true) {
  if (zero) net->zero_grad();
  ddp(random_tensor({4, 8}, 50 * step + rank)).pow(2).mean().backward();
}

DdpOptions options_of(const Setup& setup, std::shared_ptr<ProcessGroup> group) {
  DdpOptions options = options_for(setup, std::move(group));
  options.lanes = -1;
  return options;
}

class Shape : public ::testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, Shape, ::testing::Values(Setup{"threads", -1, false}, Setup{"threads", -1, true}),
                         name_of_setup);

// Gradients accumulate over some of the changes: what lies in the buckets moves with its values.
TEST_P(Shape, GradientsKeepTheBitsOfOneShape) {
  run_ranks(GetParam(), kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp plain_net(kLayers), net(kLayers);
    DistributedDataParallel<Mlp> plain(plain_net, options_of(GetParam(), group)),
        ddp(net, options_of(GetParam(), group));
    const auto hook = std::make_shared<ShapedHook>(kShapes);
    ddp.register_comm_hook(hook);
    for (int step = 0; step < 26; ++step) {
      const bool zero = step % 3 != 2;
      run_step(plain_net, plain, rank, step, zero);
      run_step(net, ddp, rank, step, zero);
      const auto expected = gradients_of(*plain_net), actual = gradients_of(*net);
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_TRUE(at::equal(actual[i], expected[i])) << "step " << step;
      if (step < 2) continue;
      const ReductionShape shape = kShapes[static_cast<std::size_t>(step - 2) % kShapes.size()];
      const std::size_t buckets = hook->planned.size();
      if (shape.cap_bytes == 1) {
        EXPECT_EQ(buckets, 2 * kLayers);
      }
      if (shape.cap_bytes == 300) {
        EXPECT_GT(buckets, 2U);
      }
      if (shape.cap_bytes == 0 || shape.cap_bytes == 1u << 20) {
        EXPECT_EQ(buckets, 1U);
      }
      EXPECT_EQ(hook->buckets.size(), buckets) << "step " << step;
      EXPECT_EQ(ddp.core().bucket_plan(), hook->planned) << "step " << step;
      const int lanes = std::max(shape.lanes, 1);
      EXPECT_EQ(ddp.logging_data().lanes, lanes);
      EXPECT_EQ(hook->threads.size(), std::min(buckets, static_cast<std::size_t>(lanes)));
    }
  });
}

TEST_P(Shape, GoesOnInAJoinAndWithAFixedGraph) {
  for (const bool fixed : {false, true}) {
    run_ranks(GetParam(), kWorld, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Mlp net(kLayers);
      DdpOptions options = options_of(GetParam(), group);
      options.static_graph = fixed;
      DistributedDataParallel<Mlp> ddp(net, options);
      const auto hook = std::make_shared<ShapedHook>(kShapes);
      ddp.register_comm_hook(hook);
      Join join = ddp.join();
      for (int step = 0; step < 4 + 6 * rank; ++step) run_step(net, ddp, rank, step);
      join.finish();
      EXPECT_EQ(hook->asked, 4U + 6U * (kWorld - 1)) << "a rank that has joined is asked too";
    });
  }
}

TEST_P(Shape, ChangesOnlyWhatIsFree) {
  run_ranks(GetParam(), 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto freedom_of = [&](const DdpOptions& options, bool parallel_safe, std::size_t buckets, int lanes) {
      Mlp net(kLayers);
      DistributedDataParallel<Mlp> ddp(net, options);
      const auto hook = std::make_shared<ShapedHook>(std::vector<ReductionShape>{{1, 3}}, parallel_safe);
      ddp.register_comm_hook(hook);
      for (int step = 0; step < 4; ++step) run_step(net, ddp, rank, step);
      EXPECT_EQ(ddp.core().bucket_plan().size(), buckets);
      EXPECT_EQ(ddp.logging_data().lanes, lanes);
      EXPECT_TRUE(hook->last.same_bits);
      return std::pair(hook->last.buckets, hook->last.lanes);
    };
    const DdpOptions free = options_of(GetParam(), group);
    EXPECT_EQ(freedom_of(free, true, 2 * kLayers, 3), std::pair(true, true));
    EXPECT_EQ(freedom_of(free, false, 2 * kLayers, 1), std::pair(true, false)) << "not parallel_safe";
    DdpOptions caps = free, lanes = free, searched = free;
    caps.bucket_cap_mb = 25;
    EXPECT_EQ(freedom_of(caps, true, 1, 3), std::pair(false, true));
    lanes.lanes = 2;
    EXPECT_EQ(freedom_of(lanes, true, 2 * kLayers, 2), std::pair(true, false));
    lanes.lanes = 0;
    EXPECT_EQ(freedom_of(lanes, true, 2 * kLayers, 0), std::pair(true, false));
    searched.find_unused_parameters = true;
    EXPECT_EQ(freedom_of(searched, true, 1, 1), std::pair(false, false)) << "the order is never found";
  });
}

TEST(ShapeOfOtherGroups, OverAGroupWithoutDuplicatesOnlyBucketsChange) {
  run_ranks({"local"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(kLayers);
    DistributedDataParallel<Mlp> ddp(net, options_of({"local"}, group));
    const auto hook = std::make_shared<ShapedHook>(std::vector<ReductionShape>{{1, 3}});
    ddp.register_comm_hook(hook);
    for (int step = 0; step < 4; ++step) run_step(net, ddp, rank, step);
    EXPECT_EQ(ddp.core().bucket_plan().size(), 2 * kLayers);
    EXPECT_TRUE(hook->last.buckets);
    EXPECT_FALSE(hook->last.lanes);
    EXPECT_FALSE(hook->last.same_bits) << "the order of a user's group is not known";
  });
}

TEST(ShapeOfDDP, AfterTheHookDDPHasItsOwnShapeAgain) {
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Mlp net(kLayers);
    DistributedDataParallel<Mlp> ddp(net, options_of({"threads"}, group));
    ddp.register_comm_hook(std::make_shared<ShapedHook>(std::vector<ReductionShape>{{1, 3}}));
    for (int step = 0; step < 4; ++step) run_step(net, ddp, rank, step);
    EXPECT_EQ(ddp.core().bucket_plan().size(), 2 * kLayers);
    ddp.replace_comm_hook(nullptr);
    run_step(net, ddp, rank, 4);
    EXPECT_EQ(ddp.core().bucket_plan().size(), 1U);
    EXPECT_EQ(ddp.logging_data().lanes, 1);
  });
}

TEST(ShapeOfDDP, RefusesANumberOfLanesOutOfRange) {
  for (const int lanes : {-1, 9}) {
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Mlp net(kLayers);
      DistributedDataParallel<Mlp> ddp(net, options_of({"threads"}, group));
      ddp.register_comm_hook(std::make_shared<ShapedHook>(std::vector<ReductionShape>{{0, lanes}}));
      for (int step = 0; step < 2; ++step) run_step(net, ddp, rank, step);
      EXPECT_NE(error_of([&] { run_step(net, ddp, rank, 2); }).find(concat("chose ", lanes, " lanes")),
                std::string::npos);
    });
  }
}

}  // namespace
}  // namespace gradwire::testing::reduction_shape_test
