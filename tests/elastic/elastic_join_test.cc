// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Steps whose ranks have different numbers of batches (Join), in a job that loses a member and gets a new one: the
// members end with the bits of a serial program.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/ddp/join.h"
#include "gradwire/ddp/joinable_step.h"
#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/optim/diloco.h"
#include "gradwire/optim/post_local_sgd_optimizer.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"

namespace gradwire::elastic_join_test {
namespace {

using namespace gradwire::testing;

constexpr std::int64_t kSteps = 60;
constexpr std::int64_t kLoseAt = 21;  // there rank 0 has one batch, rank 1 two and rank 2 three

// How many batches a rank has in a step.
int batches(std::int64_t step, int rank) { return 1 + static_cast<int>((step + rank) % 3); }

ElasticStep batch_of(const ElasticStep& at, int number) {
  ElasticStep batch = at;
  batch.step += kSteps * number;
  return batch;
}

// How a step trains.
enum class Kind {
  many_steps,  // an optimizer steps after each batch; ElasticOptions::copy_before_step
  sharded,     // the same with a ZeroRedundancyOptimizer, without copies of the whole state
  one_step,    // the gradients of the batches add up, and the optimizer steps once after the Join
};

// Where rank 1 is lost, or rank 2.
enum class Moment {
  first_batch,   // before the first backward pass
  second_batch,  // after the optimizer's first step
  as_joined,     // as it does the other ranks' third batch with them
  joined,        // after the Join, when the others may have counted the step
  last_joiner,   // rank 2 after the Join: it has sent its parameters to the others, who need a call more
};

// One process does each batch for one rank after the other; ranks that have none left give zeros.
std::vector<at::Tensor> serial(const std::vector<int>& sizes, Kind kind) {
  Mlp net;
  torch::optim::Adam optimizer(net->parameters(), adam_options());
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    const auto step = static_cast<std::int64_t>(s);
    const int size = sizes[s];
    int most = 0;
    for (int rank = 0; rank < size; ++rank) most = std::max(most, batches(step, rank));
    std::vector<at::Tensor> averages;  // of this step
    for (int k = 0; k < most; ++k) {
      if (kind != Kind::one_step) averages.clear();
      std::vector<at::Tensor> sums;
      for (int rank = 0; rank < size; ++rank) {
        if (batches(step, rank) <= k) continue;
        for (std::size_t i = 0; i < net->parameters().size(); ++i)
          net->parameters()[i].mutable_grad() = averages.empty() ? at::Tensor() : averages[i].clone();
        loss_of(net->forward(samples(batch_of({step, rank, size, 0}, k)))).backward();
        std::vector<at::Tensor> parts;
        for (const at::Tensor& gradient : gradients_of(*net))
          parts.push_back(gradient.mul(static_cast<float>(1.0 / size)));
        add_to(sums, parts);
      }
      averages = sums;
      if (kind == Kind::one_step && k + 1 < most) continue;
      for (std::size_t i = 0; i < averages.size(); ++i) net->parameters()[i].mutable_grad() = averages[i].clone();
      optimizer.step();
    }
  }
  return net->parameters();
}

class ElasticJoinTest : public ::testing::TestWithParam<std::tuple<Kind, Moment>> {
 protected:
  // Called by each member at the moments of its steps.
  using AtMoment = std::function<void(Moment moment, const ElasticStep& at)>;

  // One member; returns its parameters when it has finished.
  std::vector<at::Tensor> train(Kind kind, const AtMoment& at_moment) {
    ElasticOptions options = job_.options();
    options.copy_before_step = kind == Kind::many_steps;
    Elastic elastic(options);
    Mlp net;
    DistributedDataParallel ddp(net, options_over(elastic));
    torch::optim::Adam plain(ddp.parameters(), adam_options());
    std::optional<ZeroRedundancyOptimizer> sharded;
    if (kind == Kind::sharded) {
      sharded.emplace(ddp.parameters(), optimizer_factory<torch::optim::Adam>(adam_options()),
                      ZeroOptions{.process_group = elastic.group()});
    }
    torch::optim::Optimizer& optimizer = sharded ? static_cast<torch::optim::Optimizer&>(*sharded) : plain;
    std::string history;  // a letter for each counted step
    elastic.add(ddp).add(optimizer).add_state(
        "history", [&] { return history; }, [&](const std::string& bytes) { history = bytes; });
    const ElasticEnd end = elastic.run(kSteps, [&](const ElasticStep& at) {
      if (kind == Kind::many_steps) history += 'x';
      optimizer.zero_grad();
      JoinableStep as_joined(ddp, [&] {
        at_moment(Moment::as_joined, at);
        if (kind == Kind::many_steps) optimizer.step();
      });
      Join join = sharded ? Join({ddp, *sharded, as_joined}) : Join({ddp, as_joined});
      for (int k = 0; k < batches(at.step, at.rank); ++k) {
        if (kind != Kind::one_step) optimizer.zero_grad();
        at_moment(k == 0 ? Moment::first_batch : Moment::second_batch, at);
        loss_of(ddp(samples(batch_of(at, k)))).backward();
        if (kind != Kind::one_step) optimizer.step();
      }
      join.finish();
      at_moment(Moment::joined, at);
      if (std::get<Moment>(GetParam()) == Moment::last_joiner) {
        at_moment(Moment::last_joiner, at);
        elastic.group()->barrier()->wait();
      }
      if (kind == Kind::one_step) optimizer.step();
      if (kind != Kind::many_steps) history += 'x';
    });
    if (end != ElasticEnd::finished) return {};
    EXPECT_EQ(history.size(), static_cast<std::size_t>(kSteps));
    return net->parameters();
  }

  ElasticJob job_{{.min = 2, .max = 3, .first = 3}};
};
INSTANTIATE_TEST_SUITE_P(Kinds, ElasticJoinTest,
                         ::testing::Combine(::testing::Values(Kind::many_steps, Kind::sharded, Kind::one_step),
                                            ::testing::Values(Moment::first_batch, Moment::second_batch,
                                                              Moment::as_joined, Moment::joined, Moment::last_joiner)));

TEST_P(ElasticJoinTest, AStepThatBreaksWithinAJoinIsDoneAgainAndCountsOnce) {
  const auto [kind, moment] = GetParam();
  std::atomic<bool> lost{false};
  ChangingMembers members;
  const AtMoment at_moment = [&, moment = moment](Moment now, const ElasticStep& at) {
    const int victim = moment == Moment::last_joiner ? 2 : 1;
    if (at.step == kLoseAt && at.size == 3 && at.rank == victim && now == moment && !lost.exchange(true))
      throw Killed();
    if (at.step == kLoseAt + 10 && at.size == 2 && now == Moment::first_batch) {
      members.start_another();
      job_.decided(membership::change_key(at.epoch));  // the new member has steps left
    }
  };
  const auto ends = members.run([&, kind = kind] { return train(kind, at_moment); });

  EXPECT_TRUE(lost);
  const std::vector<int> sizes = sizes_of(job_.journal(), kSteps);
  ChangingMembers::expect_change(sizes, kLoseAt);
  ASSERT_EQ(ends.size(), 3U);
  const std::vector<at::Tensor> expected = serial(sizes, kind);
  for (const auto& end : ends) expect_equal_bits(end, expected, "a member");
}

// Two members, who both break a step after both have stepped their optimizers. Returns what run() throws on both.
std::string error_of_a_broken_step(bool copy_before_step) {
  ElasticJob job({.min = 1, .max = 2, .first = 2});
  std::atomic<int> broken{0};
  std::vector<std::string> errors(2);
  const auto member = [&](std::string& said) {
    said = error_of([&] {
      ElasticOptions options = job.options();
      options.copy_before_step = copy_before_step;
      Elastic elastic(options);
      SmallTraining training(elastic);
      elastic.run(10, [&](const ElasticStep& at) {
        loss_of(training.ddp(samples(at))).backward();
        training.optimizer.step();
        elastic.group()->barrier()->wait();  // both have stepped
        if (at.step == 5 && broken++ < 2) elastic.group()->abort("on purpose");
        elastic.group()->barrier()->wait();
      });
    });
  };
  std::thread other([&] { member(errors[1]); });
  member(errors[0]);
  other.join();
  EXPECT_GE(broken, 2);
  EXPECT_EQ(errors[0], errors[1]);
  return errors[0];
}

TEST(CopyBeforeStepTest, WithoutItAStepThatHasChangedAllMembersEndsTheJob) {
  const std::string error = error_of_a_broken_step(false);
  EXPECT_NE(error.find("no member holds the state of the job any more"), std::string::npos) << error;
  EXPECT_EQ(error_of_a_broken_step(true), "");
}

TEST(CopyBeforeStepTest, WorkersThatTrainSeparatelyAreRefused) {
  ElasticJob job({.min = 1, .max = 1, .first = 1});
  ElasticOptions options = job.options();
  options.copy_before_step = true;
  Elastic elastic(options);
  Mlp net;
  const auto averager = std::make_shared<DilocoAverager>(
      net->parameters(), DilocoOptions{.process_group = elastic.group(), .inner_steps = 2});
  PostLocalSGDOptimizer optimizer(std::make_unique<torch::optim::SGD>(net->parameters(), sgd()), averager);
  elastic.add(optimizer);
  const std::string error = error_of([&] { elastic.run(1, [](const ElasticStep&) {}); });
  EXPECT_NE(error.find("copy_before_step is for members that train together"), std::string::npos) << error;
}

// A Join that is kept from one epoch to the next is over ranks that there are no more.
TEST(JoinOverAnElasticGroupTest, AJoinThatOutlivesItsRanksSaysSo) {
  ElasticJob job({.min = 1, .max = 1, .first = 1});
  Elastic elastic(job.options());
  SmallTraining training(elastic);
  JoinableStep joinable(training.ddp, [] {});
  Join before_run({joinable});
  const std::string error = error_of([&] { elastic.run(1, [&](const ElasticStep&) { before_run.finish(); }); });
  EXPECT_NE(error.find("begin and end it within one call of the step function"), std::string::npos) << error;
}

}  // namespace
}  // namespace gradwire::elastic_join_test
