// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The intake of gradients: what is taken when, and what is refused.
#include "gradwire/ddp/gradient_intake_internal.h"

#include <ATen/Functions.h>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::internal::gradient_intake_test {
namespace {

using testing::error_of;
using Numbers = std::vector<std::size_t>;

constexpr auto kNotCopied = std::nullopt;

std::shared_ptr<ProcessGroup> alone() {
  return make_process_group("threads", std::make_shared<HashStore>(), 0, 1, std::chrono::seconds(60));
}

// Three parameters of two values in two buckets, in an iteration of rank 3.
class GradientIntakeTest : public ::testing::Test {
 protected:
  GradientIntakeTest() { store_.arrange({{2, 1}, {0}}, /*is_final=*/true); }

  GradientIntake intake(GraphKind graph) { return {store_, iteration_, graph, {.rank = 3}}; }
  void begin(GradientIntake& intake) {
    iteration_.reset(store_.plan());
    iteration_.expect();
    intake.begin();
  }
  at::Tensor& grad(std::size_t parameter) { return store_.parameter(parameter).mutable_grad(); }
  // A gradient of so many ones comes.
  bool arrive(GradientIntake& intake, std::size_t parameter, GradientIntake::Factor factor = kNotCopied) {
    grad(parameter) = at::ones({2});
    return intake.take_arrived(parameter, intake.touch(parameter), factor);
  }

  BucketStore store_{{{"a", at::zeros({2})}, {"b", at::zeros({2})}, {"c", at::zeros({2})}}, std::nullopt};
  Iteration iteration_;
};

TEST_F(GradientIntakeTest, TakesEachGradientOnceAndMarksItReady) {
  auto intake = this->intake(GraphKind::every_parameter);
  begin(intake);
  EXPECT_FALSE(intake.learns());
  EXPECT_TRUE(arrive(intake, 1));
  EXPECT_FALSE(iteration_.next_complete_bucket().has_value());
  EXPECT_TRUE(arrive(intake, 2));
  EXPECT_EQ(iteration_.next_complete_bucket(), 0U);
  const std::string error = error_of([&] { arrive(intake, 2); });
  EXPECT_NE(error.find("'c' got a second gradient on rank 3"), std::string::npos) << error;
  EXPECT_TRUE(arrive(intake, 0));
  EXPECT_EQ(iteration_.order(), (Numbers{1, 2, 0}));
  EXPECT_TRUE(intake.end_iteration().empty());
}

TEST_F(GradientIntakeTest, CopiesTimesTheFactorAndWritesAveragesBack) {
  const auto group = alone();
  store_.allocate(*group);
  auto intake = this->intake(GraphKind::every_parameter);
  begin(intake);
  arrive(intake, 0, 0.25);
  EXPECT_TRUE(at::equal(store_.bucket(1).buffer.narrow(0, 0, 2), at::full({2}, 0.25)));
  EXPECT_FALSE(intake.filling(1).sparse.defined());
  intake.write_back(1, at::full(store_.bucket(1).buffer.sizes(), 7.0));
  EXPECT_TRUE(at::equal(grad(0), at::full({2}, 7.0)));
}

TEST_F(GradientIntakeTest, NamesTheMissingParameters) {
  auto intake = this->intake(GraphKind::every_parameter);
  begin(intake);
  EXPECT_NO_THROW(intake.require_finished(5)) << "no gradient has come";
  arrive(intake, 1);
  const std::string error = error_of([&] { intake.require_finished(5); });
  EXPECT_NE(error.find("rank 3 of 5: 2 of 3 parameters got no gradient: 'a', 'c'."), std::string::npos) << error;
  iteration_.reset(store_.plan());
  EXPECT_NO_THROW(intake.require_finished(5));
}

TEST_F(GradientIntakeTest, TakesWhatThePassDoesNotReachAtItsBeginning) {
  auto intake = this->intake(GraphKind::searched);
  begin(intake);
  EXPECT_FALSE(intake.learns());
  intake.take_absent([](std::size_t parameter) { return parameter == 1; }, kNotCopied);
  EXPECT_EQ(iteration_.order(), (Numbers{0, 2}));
  EXPECT_TRUE(arrive(intake, 1));
  EXPECT_TRUE(iteration_.missing().empty());
  EXPECT_EQ(intake.end_iteration(), (Numbers{0, 2}));
}

TEST_F(GradientIntakeTest, GivesTheGradientBackThatNoRankUsed) {
  const auto group = alone();
  auto intake = this->intake(GraphKind::searched);
  begin(intake);
  grad(0) = at::full({2}, 5.0);
  arrive(intake, 1);
  arrive(intake, 2);
  intake.take_absent([](std::size_t parameter) { return parameter != 0; }, kNotCopied);
  intake.share_use(*group);
  for (const std::size_t parameter : {0, 1}) grad(parameter) = at::full({2}, 0.5);
  intake.restore_unused();
  EXPECT_TRUE(at::equal(grad(0), at::full({2}, 5.0)));
  EXPECT_TRUE(at::equal(grad(1), at::full({2}, 0.5)));
}

TEST_F(GradientIntakeTest, LearnsAFixedGraphInTheFirstPass) {
  auto intake = this->intake(GraphKind::fixed);
  begin(intake);
  EXPECT_TRUE(intake.learns());
  for (const std::size_t parameter : {1, 2, 1}) EXPECT_FALSE(arrive(intake, parameter));
  EXPECT_TRUE(iteration_.order().empty());
  intake.take_learnt(kNotCopied);
  EXPECT_EQ(iteration_.order(), (Numbers{2, 1, 0}));
  EXPECT_EQ(intake.end_iteration(), (Numbers{0}));
  iteration_.end();

  begin(intake);
  EXPECT_FALSE(intake.learns());
  intake.take_absent(
      [](std::size_t) {
        ADD_FAILURE() << "a fixed graph is not searched";
        return true;
      },
      kNotCopied);
  EXPECT_EQ(iteration_.order(), (Numbers{0}));
  EXPECT_FALSE(arrive(intake, 1));
  EXPECT_TRUE(arrive(intake, 2));
  EXPECT_TRUE(arrive(intake, 1));
  const std::string error = error_of([&] { arrive(intake, 1); });
  EXPECT_NE(error.find("'b' got more gradients on rank 3"), std::string::npos) << error;
}

TEST_F(GradientIntakeTest, TakesPartWithZerosAndKeepsTheGradients) {
  const auto group = alone();
  store_.allocate(*group);
  auto intake = this->intake(GraphKind::searched);
  begin(intake);
  iteration_.expect_as_joined();
  store_.bucket(0).buffer.fill_(9);
  grad(1) = at::full({2}, 5.0);
  intake.take_zeros(/*copies=*/true);
  EXPECT_EQ(iteration_.order(), (Numbers{2, 1, 0}));
  for (const at::Tensor& view : store_.bucket(0).views) EXPECT_TRUE(at::equal(view, at::zeros({2})));
  intake.share_use(*group);
  intake.restore_unused();
  EXPECT_TRUE(at::equal(grad(1), at::full({2}, 5.0)));
}

}  // namespace
}  // namespace gradwire::internal::gradient_intake_test
