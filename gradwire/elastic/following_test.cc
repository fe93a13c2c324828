// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The state reaches a newcomer that follows whatever its own thread does, and takes the place of its own when it asks.
#include "gradwire/elastic/following_internal.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "gradwire/base/deadline.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/elastic/elastic_group.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::following_test {
namespace {

using namespace gradwire::testing;
using internal::Follower;
using internal::Guide;
using internal::StateSnapshot;
using internal::TapeReader;
using internal::TrafficWatch;
using internal::TrainingState;

// A model all of whose parameters have the same value.
struct Holder {
  explicit Holder(float value) : net(300, 300) {
    DdpOptions options;
    options.process_group = std::make_shared<ElasticGroup>();
    ddp = std::make_unique<DistributedDataParallel<torch::nn::Linear>>(net, options);
    state.add(ddp->core());
    set(value);
  }
  void set(float value) {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.fill_(value);
  }
  torch::nn::Linear net;
  std::unique_ptr<DistributedDataParallel<torch::nn::Linear>> ddp;
  TrainingState state;
};

// Whether `holds()` comes true; a rank that has failed elsewhere is not waited for without end.
template <class Condition>
bool comes_true(const Condition& holds) {
  const Deadline guard = Deadline::after(std::chrono::minutes(1));
  while (!holds() && !guard.expired()) std::this_thread::yield();
  return holds();
}

TEST(FollowingTest, TheStateComesWhileTheNewcomerDoesItsFirstSteps) {
  std::atomic<bool> has_state{false};
  run_ranks({"threads"}, 3, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    Holder holder(rank == 2 ? 1.0F : 7.0F);
    if (rank == 2) {
      Follower follower(group, holder.state);
      EXPECT_EQ(follower.begin().step, 40);
      holder.set(2);  // a step of its own
      EXPECT_TRUE(comes_true([&] { return follower.has_state(); }));
      for (const at::Tensor& parameter : holder.net->parameters()) EXPECT_TRUE(parameter.eq(2).all().item<bool>());
      has_state = true;
      follower.take_state(holder.state);
      for (const at::Tensor& parameter : holder.net->parameters()) EXPECT_TRUE(parameter.eq(7).all().item<bool>());
      EXPECT_FALSE(follower.player()->wait_for_step(40, [] { return false; })) << "the tape has ended";
      return;
    }
    const auto snapshot = std::make_shared<const StateSnapshot>(internal::snapshot_of(holder.state, 40, {}, nullptr));
    const auto tape = rank == 1 ? std::make_shared<TapeReader>(std::size_t{1} << 20) : nullptr;
    Guide guide([&](const std::shared_ptr<Store>&) { return group; }, std::make_shared<HashStore>(), snapshot, tape,
                std::make_shared<TrafficWatch>());
    EXPECT_TRUE(comes_true([&] { return has_state.load(); }));
    guide.end(40);
    EXPECT_TRUE(comes_true([&] { return guide.has_ended(); }));
    EXPECT_FALSE(guide.gave_up());
  });
}

}  // namespace
}  // namespace gradwire::following_test
