// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// When buckets are arranged, and what a hook may choose of them.
#include "gradwire/ddp/bucket_arrangement_internal.h"

#include <ATen/Functions.h>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/ddp/shape_choice_internal.h"

namespace gradwire::internal::bucket_arrangement_test {
namespace {

// Four parameters of 8 bytes, with a cap of 16.
class BucketArrangementTest : public ::testing::Test {
 protected:
  BucketArrangement arrangement(bool finds_order) { return {store_, report_, kCaps, finds_order}; }
  // After an iteration in which the gradients became ready in this order.
  BucketArrangement ordered() {
    BucketArrangement made = arrangement(/*finds_order=*/true);
    made.learn(std::vector<std::size_t>{1, 3, 0, 2}, true);
    EXPECT_TRUE(made.follow_order(*group_, 1));
    return made;
  }
  void expect_plan(const BucketPlan& plan) {
    EXPECT_EQ(store_.plan(), plan);
    EXPECT_EQ(report_.plan(), plan);
  }

  const BucketCaps kCaps{16};
  std::shared_ptr<ProcessGroup> group_ =
      make_process_group("threads", std::make_shared<HashStore>(), 0, 1, std::chrono::seconds(60));
  BucketStore store_{{{"a", at::zeros({2})}, {"b", at::zeros({2})}, {"c", at::zeros({2})}, {"d", at::zeros({2})}},
                     std::nullopt};
  ReductionReport report_{
      {{"a", "Float", 8}, {"b", "Float", 8}, {"c", "Float", 8}, {"d", "Float", 8}}, {8, 8, 8, 8}, kCaps};
};

TEST_F(BucketArrangementTest, HasOneBucketUntilTheOrderIsFound) {
  BucketArrangement arrangement = this->arrangement(/*finds_order=*/true);
  expect_plan({{0, 1, 2, 3}});
  EXPECT_FALSE(arrangement.follow_order(*group_, 0));
  EXPECT_FALSE(arrangement.is_ordered());
  arrangement.learn(std::vector<std::size_t>{1, 3, 0, 2}, true);
  EXPECT_TRUE(arrangement.follow_order(*group_, 1));
  EXPECT_TRUE(arrangement.is_ordered());
  expect_plan({{1, 3}, {0, 2}});
  EXPECT_EQ(report_.bucket_order(), (std::vector<std::string>{"b", "d", "a", "c"}));
  EXPECT_FALSE(arrangement.follow_order(*group_, 2)) << "once";
}

TEST_F(BucketArrangementTest, KeepsTheCapsWhenTheOrderMayChange) {
  BucketArrangement arrangement = this->arrangement(/*finds_order=*/false);
  expect_plan({{2, 3}, {0, 1}});
  EXPECT_FALSE(arrangement.follow_order(*group_, 1));
  EXPECT_FALSE(arrangement.is_ordered());
}

TEST_F(BucketArrangementTest, UsesALoadedOrderFromTheStart) {
  BucketArrangement arrangement = this->arrangement(/*finds_order=*/true);
  EXPECT_THROW(arrangement.load({"a", "b", "c", "x"}, 0), InvalidArgument);
  arrangement.load({"d", "c", "b", "a"}, 0);
  EXPECT_TRUE(arrangement.follow_order(*group_, 0));
  expect_plan({{3, 2}, {1, 0}});
  arrangement.learn(std::vector<std::size_t>{0, 1, 2, 3}, true);
  EXPECT_FALSE(arrangement.follow_order(*group_, 1));
  expect_plan({{3, 2}, {1, 0}});
}

TEST_F(BucketArrangementTest, FollowsTheCap) {
  BucketArrangement arrangement = ordered();
  EXPECT_FALSE(arrangement.use_cap(0));
  EXPECT_TRUE(arrangement.use_cap(8));
  expect_plan({{1}, {3}, {0}, {2}});
  EXPECT_EQ(arrangement.planner()(8), store_.plan());
  EXPECT_FALSE(arrangement.use_cap(8));
  EXPECT_FALSE(arrangement.use_cap(4)) << "the same buckets";
  EXPECT_TRUE(arrangement.use_cap(0));
  expect_plan({{1, 3}, {0, 2}});
}

TEST_F(BucketArrangementTest, GradientsInTheBucketsKeepTheirValues) {
  BucketArrangement arrangement = this->arrangement(/*finds_order=*/true);
  store_.allocate(*group_);
  for (std::size_t i = 0; i < 4; ++i) {
    store_.lend(i);
    store_.parameter(i).mutable_grad().fill_(static_cast<double>(i));
  }
  arrangement.learn(std::vector<std::size_t>{1, 3, 0, 2}, true);
  EXPECT_TRUE(arrangement.follow_order(*group_, 1));
  for (std::size_t i = 0; i < 4; ++i) {
    const at::Tensor grad = store_.parameter(i).grad();
    EXPECT_FALSE(store_.owns(grad));
    EXPECT_TRUE(at::equal(grad, at::full({2}, static_cast<double>(i))));
  }
}

class ChoosingHook final : public CommHook, public ChoosesShape {
 public:
  explicit ChoosingHook(bool parallel_safe = true) : CommHook({.name = "choosing", .parallel_safe = parallel_safe}) {}
  Future run(GradBucket& bucket) override { return completed_future(bucket.buffer()); }
  ReductionShape next_shape(const ShapeFreedom& freedom) override {
    last = freedom;
    return {8, 3};
  }
  ShapeFreedom last;
};

class OrdinaryHook final : public CommHook {
 public:
  OrdinaryHook() : CommHook({.name = "ordinary"}) {}
  Future run(GradBucket& bucket) override { return completed_future(bucket.buffer()); }
};

const ShapeChoice::Options kAllFree{
    .any = true, .free_caps = true, .free_lanes = true, .own_lanes = 2, .same_bits = true};

TEST_F(BucketArrangementTest, AHookChoosesTheWholeShape) {
  const BucketArrangement arrangement = ordered();
  ChoosingHook hook;
  EXPECT_EQ(ShapeChoice(kAllFree).next(&hook, arrangement, true), (ReductionShape{8, 3}));
  EXPECT_TRUE(hook.last.buckets && hook.last.lanes && hook.last.same_bits);
  EXPECT_EQ(hook.last.own_lanes, 2);
  EXPECT_EQ(hook.last.plan_for(8), (BucketPlan{{1}, {3}, {0}, {2}}));
}

TEST_F(BucketArrangementTest, OtherHooksChooseNothing) {
  const BucketArrangement arrangement = ordered();
  OrdinaryHook hook;
  EXPECT_EQ(ShapeChoice(kAllFree).next(&hook, arrangement, true), ReductionShape{});
  EXPECT_EQ(ShapeChoice(kAllFree).next(nullptr, arrangement, true), ReductionShape{});
}

TEST_F(BucketArrangementTest, PartsThatTheUserGaveAreNotChosen) {
  const BucketArrangement arrangement = ordered();
  ChoosingHook hook;
  ShapeChoice::Options options = kAllFree;
  options.free_caps = false;
  EXPECT_EQ(ShapeChoice(options).next(&hook, arrangement, true), (ReductionShape{0, 3}));
  options = kAllFree;
  options.free_lanes = false;
  EXPECT_EQ(ShapeChoice(options).next(&hook, arrangement, true), (ReductionShape{8, 0}));
  EXPECT_EQ(ShapeChoice(kAllFree).next(&hook, arrangement, /*on_lanes=*/false), (ReductionShape{8, 0}));
  ChoosingHook serial(/*parallel_safe=*/false);
  EXPECT_EQ(ShapeChoice(kAllFree).next(&serial, arrangement, true), (ReductionShape{8, 0}));
}

TEST_F(BucketArrangementTest, NothingIsChosenBeforeTheOrderIsKnownOrWhereNothingCanChange) {
  ChoosingHook hook;
  const BucketArrangement first = arrangement(/*finds_order=*/true);
  EXPECT_EQ(ShapeChoice(kAllFree).next(&hook, first, true), ReductionShape{});
  EXPECT_EQ(hook.last.plan_for, nullptr);
  EXPECT_EQ(hook.last.own_lanes, 2);
  ShapeChoice::Options options = kAllFree;
  options.any = false;
  EXPECT_EQ(ShapeChoice(options).next(&hook, ordered(), true), ReductionShape{});
}

}  // namespace
}  // namespace gradwire::internal::bucket_arrangement_test
