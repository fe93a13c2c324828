// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Optimizers that step within the backward pass, in a job that loses a member and gets a new one: the members end with
// the bits of a serial program, whatever had stepped when the member was lost.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <tuple>

#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/optimizer_overlap_hooks.h"
#include "gradwire/optim/optimizer_in_backward.h"

namespace gradwire::elastic_backward_step_test {
namespace {

using namespace gradwire::testing;

constexpr std::int64_t kSteps = 120;
constexpr std::int64_t kLoseAt = 21;
constexpr std::int64_t kAnotherAt = 31;  // there a new member begins
constexpr std::int64_t kMeetAt = 90;     // and is there at the latest, where it has followed

enum class Kind {
  hook_then_optimizer,    // the state of the optimizers is the hook's
  optimizer_in_backward,  // an optimizer for each parameter, each added to the job
};

// Where rank 1 is lost in a step.
enum class Moment {
  before_backward,
  within_backward,  // the other ranks may have stepped the parameters of the later layers
  after_backward,   // they have stepped all parameters, and need one collective more
};

// Adam over averages, for which one rank after the other computes its gradients. The hook of `kind` divides before the
// sum or after it.
std::vector<at::Tensor> serial(const std::vector<int>& sizes, Kind kind) {
  const bool divides_first = kind == Kind::hook_then_optimizer;
  Mlp net;
  torch::optim::Adam optimizer(net->parameters(), adam_options());
  for (std::size_t step = 0; step < sizes.size(); ++step) {
    const int size = sizes[step];
    std::vector<at::Tensor> sums;
    for (int rank = 0; rank < size; ++rank) {
      net->zero_grad();
      loss_of(net->forward(samples({static_cast<std::int64_t>(step), rank, size, 0}))).backward();
      std::vector<at::Tensor> parts;
      for (const at::Tensor& gradient : gradients_of(*net))
        parts.push_back(divides_first ? gradient.div(size) : gradient);
      add_to(sums, parts);
    }
    std::size_t i = 0;
    for (auto& parameter : net->parameters()) {
      parameter.mutable_grad() = divides_first ? sums[i] : sums[i].div(size);
      ++i;
    }
    optimizer.step();
  }
  return net->parameters();
}

class ElasticBackwardStepTest : public ::testing::TestWithParam<std::tuple<Kind, Moment, bool>> {
 protected:
  static Kind kind() { return std::get<0>(GetParam()); }
  static Moment moment() { return std::get<1>(GetParam()); }
  static bool follows() { return std::get<2>(GetParam()); }
  // Called by each member at the moments of its steps.
  using AtMoment = std::function<void(Moment moment, const ElasticStep& at)>;

  // One member; returns its parameters when it has finished.
  std::vector<at::Tensor> train(const AtMoment& at_moment) {
    ElasticOptions options = job_.options();
    options.copy_before_step = true;
    options.follow = follows();
    Elastic elastic(options);
    Mlp net;
    DdpOptions over = options_over(elastic);
    over.bucket_cap_mb = 1e-5;  // a bucket for each parameter
    DistributedDataParallel ddp(net, over);
    elastic.add(ddp);
    std::shared_ptr<OptimizersInBackward> in_backward;
    if (kind() == Kind::optimizer_in_backward) {
      in_backward = apply_optimizer_in_backward(ddp.core(), net->parameters(),
                                                optimizer_factory<torch::optim::Adam>(adam_options()));
      for (const auto& optimizer : in_backward->optimizers()) elastic.add(*optimizer);
    } else {
      ddp.register_comm_hook(
          make_hook_then_optimizer(make_allreduce_hook(), [](const std::string&, const at::Tensor& parameter) {
            return std::make_unique<torch::optim::Adam>(std::vector<at::Tensor>{parameter}, adam_options());
          }));
    }
    ElasticStep now;
    net->parameters().front().register_hook([&](const at::Tensor&) { at_moment(Moment::within_backward, now); });
    const ElasticEnd end = elastic.run(kSteps, [&](const ElasticStep& at) {
      now = at;
      ddp.zero_grad();
      at_moment(Moment::before_backward, at);
      loss_of(ddp(samples(at))).backward();
      at_moment(Moment::after_backward, at);
      elastic.group()->barrier()->wait();
    });
    return end == ElasticEnd::finished ? net->parameters() : std::vector<at::Tensor>();
  }

  ElasticJob job_{{.min = 2, .max = 3, .first = 3}};
};
INSTANTIATE_TEST_SUITE_P(Kinds, ElasticBackwardStepTest,
                         ::testing::Combine(::testing::Values(Kind::hook_then_optimizer, Kind::optimizer_in_backward),
                                            ::testing::Values(Moment::before_backward, Moment::within_backward,
                                                              Moment::after_backward),
                                            ::testing::Bool()));

TEST_P(ElasticBackwardStepTest, AStepThatBreaksIsDoneAgainAndCountsOnce) {
  std::atomic<bool> lost{false};
  std::atomic<bool> has_followed{false};
  ChangingMembers members;
  const AtMoment at_moment = [&](Moment now, const ElasticStep& at) {
    if (at.step == kLoseAt && at.size == 3 && at.rank == 1 && now == moment() && !lost.exchange(true)) throw Killed();
    if (at.follows) has_followed = true;
    if (at.size == 3 || at.follows || now != Moment::before_backward) return;
    if (at.step == kAnotherAt) {
      members.start_another();
      job_.decided(follows() ? membership::follower_key(at.epoch, 0) : membership::change_key(at.epoch));
    }
    if (at.step == kMeetAt) job_.decided(membership::change_key(at.epoch));
  };
  const auto ends = members.run([&] { return train(at_moment); });

  EXPECT_TRUE(lost);
  EXPECT_EQ(has_followed, follows());
  const std::vector<int> sizes = sizes_of(job_.journal(), kSteps);
  ChangingMembers::expect_change(sizes, kLoseAt);
  ASSERT_EQ(ends.size(), 3U);
  const std::vector<at::Tensor> expected = serial(sizes, kind());
  for (const auto& end : ends) expect_equal_bits(end, expected, "a member");
}

}  // namespace
}  // namespace gradwire::elastic_backward_step_test
