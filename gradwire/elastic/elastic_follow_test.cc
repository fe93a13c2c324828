// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Newcomers that follow the members while these train. The members are threads; they wait at a step until the newcomers
// are as far as they are.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::elastic_follow_test {
namespace {

using namespace gradwire::testing;

struct Killed : std::runtime_error {
  Killed() : std::runtime_error("this member is lost on purpose") {}
};

constexpr std::int64_t kSteps = 300;
constexpr std::int64_t kMeet = 200;  // the step at which the members wait for the newcomers

// What a member did.
struct Course {
  ElasticEnd end = ElasticEnd::too_late;
  bool killed = false;
  std::string error;
  std::vector<at::Tensor> parameters;
  std::vector<std::int64_t> followed;  // the steps that it did as a follower, in order
  std::vector<std::int64_t> counted;   // and as a member
  int saves = 0;                       // how often it gave away a part of the state
  std::string history;                 // a part of the state: one letter for each step
};

struct Setting {
  std::string hook = {};
  // In each step: before the forward pass, and after the backward pass.
  std::function<void(Elastic& elastic, const ElasticStep& at)> before = nullptr;
  std::function<void(Elastic& elastic, const ElasticStep& at)> after = nullptr;
};

// A small net with a buffer that each forward pass changes.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    net = register_module("net", Mlp(3, 8, 1));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
  }
  at::Tensor forward(const at::Tensor& x) { return net->forward(norm(x)); }
  Mlp net{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

template <class AnyNet>
Course run_member(const ElasticOptions& options, const Setting& setting, AnyNet net) {
  Course course;
  try {
    Elastic elastic(options);
    DdpOptions ddp_options;
    ddp_options.process_group = elastic.group();
    DistributedDataParallel ddp(net, ddp_options);
    if (!setting.hook.empty()) ddp.register_comm_hook(make_hook(setting.hook));
    torch::optim::SGD optimizer(ddp.parameters(), sgd());
    elastic.add(ddp).add(optimizer).add_state(
        "history",
        [&] {
          ++course.saves;
          return course.history;
        },
        [&](const std::string& bytes) { course.history = bytes; });
    try {
      course.end = elastic.run(kSteps, [&](const ElasticStep& at) {
        (at.follows ? course.followed : course.counted).push_back(at.step);
        if (setting.before) setting.before(elastic, at);
        optimizer.zero_grad();
        loss_of(ddp(samples(at))).backward();
        if (setting.after) setting.after(elastic, at);
        optimizer.step();
        course.history += 'x';
      });
    } catch (const Killed&) {
      course.killed = true;
    }
    for (const at::Tensor& parameter : net->parameters()) course.parameters.push_back(parameter.detach().clone());
  } catch (const std::exception& error) {
    course.error = error.what();
  }
  return course;
}

class FollowTest : public ::testing::Test {
 protected:
  // Two members begin; `newcomers` join when these are in the middle of their epoch.
  void run(const std::vector<Setting>& members, const std::vector<Setting>& newcomers, bool with_buffers = false) {
    ElasticOptions options = job_.options();
    options.follow = true;
    courses_.resize(members.size() + newcomers.size());
    std::atomic<bool> start_others{false};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < courses_.size(); ++i) {
      if (i == members.size()) {
        while (!start_others) std::this_thread::yield();
      }
      Setting setting = i < members.size() ? members[i] : newcomers[i - members.size()];
      setting.before = [&, before = setting.before](Elastic& elastic, const ElasticStep& at) {
        if (at.step == 20) start_others = true;
        if (before) before(elastic, at);
        if (at.step == kMeet && at.epoch == 1 && !at.follows && waits_) job_.decided(membership::change_key(1));
      };
      threads.emplace_back([this, i, options, setting, with_buffers, &start_others] {
        courses_[i] = with_buffers ? run_member(options, setting, Net()) : run_member(options, setting, Mlp(3, 8, 1));
        start_others = true;
      });
    }
    for (auto& thread : threads) thread.join();
  }
  std::vector<int> sizes() const { return sizes_of(job_.journal(), kSteps); }
  void expect_same_ends(const std::vector<std::size_t>& who) const {
    for (const std::size_t i : who) {
      EXPECT_EQ(courses_[i].error, "");
      EXPECT_EQ(courses_[i].end, ElasticEnd::finished) << i;
      EXPECT_EQ(courses_[i].history, std::string(kSteps, 'x')) << i;
      expect_equal_bits(courses_[i].parameters, courses_[who.front()].parameters, concat("member ", i));
    }
  }
  // One of the members that begin gives the state to the other. Then each gives it once to each newcomer that follows,
  // and again when a newcomer lacks it in a new epoch.
  int saves() const {
    int all = 0;
    for (const Course& course : courses_) all += course.saves;
    return all;
  }
  // It followed without a gap and went on as a member with the next step.
  static void expect_followed(const Course& course) {
    ASSERT_FALSE(course.followed.empty());
    ASSERT_FALSE(course.counted.empty());
    const auto begin = std::upper_bound(course.followed.begin(), course.followed.end(), course.followed.front());
    for (auto step = begin; step != course.followed.end(); ++step) EXPECT_EQ(*step, *(step - 1) + 1);
    EXPECT_GT(course.followed.back(), course.followed.front());
    EXPECT_EQ(course.counted.front(), course.followed.back() + 1);
  }

  ElasticJob job_{{.min = 1, .max = 4, .first = 2}};
  bool waits_ = true;
  std::vector<Course> courses_;
};

class FollowHookTest : public FollowTest, public ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Hooks, FollowHookTest,
                         ::testing::Values("", "fp16", "int8:memory=error_feedback", "int8:memory=ef21",
                                           "power_sgd:start=2,min_rate=1", "one_bit", "top_k"),
                         [](const auto& info) {
                           std::string name = info.param.empty() ? "average" : info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

// The members stop once, and the newcomer lacks nothing when they meet it.
TEST_P(FollowHookTest, ANewcomerIsAsFarAsTheMembersWhenTheyMeet) {
  const Setting setting{.hook = GetParam()};
  run({setting, setting}, {setting});
  expect_same_ends({0, 1, 2});
  expect_followed(courses_[2]);
  EXPECT_EQ(saves(), 3);
  const std::vector<int> each = sizes();
  EXPECT_EQ(each.back(), 3);
  EXPECT_EQ(membership::read_membership_log(job_.journal()).size(), 2U);
  if (GetParam().empty()) expect_equal_bits(courses_[0].parameters, serial_parameters(each), "the serial program");
}

TEST_F(FollowTest, BuffersAndTheCallsOfTheStepItselfAreOnTheTape) {
  const Setting setting{.after = [](Elastic& elastic, const ElasticStep& at) {
    ProcessGroup& group = *elastic.group();
    at::Tensor mean = at::full({3}, static_cast<float>(at.rank));
    group.all_reduce({mean}, {{}, ReduceOp::avg()})->wait();
    std::vector<Tensors> all(1);
    for (int rank = 0; rank < at.size; ++rank) all[0].push_back(at::zeros({2}, at::kLong));
    group.all_gather(all, {at::full({2}, at.rank, at::kLong)})->wait();
    for (int rank = 0; rank < at.size; ++rank) {
      if (!all[0][static_cast<std::size_t>(rank)].equal(at::full({2}, rank, at::kLong)) && at.step > 30)
        throw InternalError(concat("rank ", rank, " of the all_gather is wrong in step ", at.step));
    }
  }};
  run({setting, setting}, {setting}, /*with_buffers=*/true);
  expect_same_ends({0, 1, 2});
  expect_followed(courses_[2]);
  EXPECT_EQ(saves(), 3);
}

TEST_F(FollowTest, TwoNewcomersMakeTheMembersStopOnce) {
  run({{}, {}}, {{}, {}});
  expect_same_ends({0, 1, 2, 3});
  expect_followed(courses_[2]);
  expect_followed(courses_[3]);
  const auto epochs = membership::read_membership_log(job_.journal());
  ASSERT_EQ(epochs.size(), 2U);
  EXPECT_EQ(epochs[1].members.size(), 4U);
  expect_equal_bits(courses_[0].parameters, serial_parameters(sizes()), "the serial program");
}

TEST_F(FollowTest, ANewcomerThatDiesWhileItFollowsStopsNobody) {
  waits_ = false;
  std::atomic<bool> dead{false};
  int calls = 0;
  const Setting dies{.before = [&](Elastic&, const ElasticStep& at) {
    if (!at.follows || ++calls != 4) return;
    dead = true;
    throw Killed();
  }};
  const Setting waits{.before = [&](Elastic&, const ElasticStep& at) {
    while (at.step == kMeet && !dead) std::this_thread::yield();
  }};
  run({waits, waits}, {dies});
  expect_same_ends({0, 1});
  EXPECT_TRUE(courses_[2].killed);
  EXPECT_EQ(membership::read_membership_log(job_.journal()).size(), 1U);
  expect_equal_bits(courses_[0].parameters, serial_parameters(sizes()), "the serial program");
}

// A member dies while a newcomer follows: rank 1 is the one whose steps are on the tape.
class FollowDeathTest : public FollowTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FollowDeathTest, ::testing::Values(0, 1));

TEST_P(FollowDeathTest, TheSurvivorAndTheNewcomerGoOn) {
  std::atomic<bool> has_state{false};
  std::atomic<bool> one_is_dead{false};
  const Setting member{.before = [&](Elastic&, const ElasticStep& at) {
    if (at.epoch != 1 || at.step != 100) return;
    while (!has_state) std::this_thread::yield();
    if (at.rank != GetParam()) return;
    one_is_dead = true;
    throw Killed();
  }};
  int calls = 0;
  const Setting newcomer{.before = [&](Elastic&, const ElasticStep& at) {
    if (!at.follows || ++calls != 4) return;
    has_state = true;
    while (!one_is_dead) std::this_thread::yield();
  }};
  waits_ = false;
  run({member, member}, {newcomer});
  const std::size_t dead = courses_[0].killed ? 0 : 1;
  EXPECT_TRUE(courses_[dead].killed);
  expect_same_ends({1 - dead, 2});
  expect_equal_bits(courses_[2].parameters, serial_parameters(sizes()), "the serial program");
}

// Steps that a newcomer cannot repeat: the members wait while the state is on its way, as without `follow`.
TEST_F(FollowTest, AStepWithMessagesIsNotFollowed) {
  const Setting setting{.after = [](Elastic& elastic, const ElasticStep& at) {
    if (at.epoch != 1 || at.follows) return;
    const at::Tensor token = at::full({1}, static_cast<float>(at.step));
    at::Tensor got = at::zeros({1});
    const auto send = elastic.group()->send({token}, 1 - at.rank);
    elastic.group()->recv({got}, 1 - at.rank)->wait();
    send->wait();
  }};
  run({setting, setting}, {setting});
  expect_same_ends({0, 1, 2});
  EXPECT_EQ(sizes().back(), 3);
  expect_equal_bits(courses_[2].parameters, serial_parameters(sizes()), "the serial program");
}

TEST_F(FollowTest, ANewcomerThatMakesOtherCallsTakesTheStateInstead) {
  const Setting member{};
  const Setting newcomer{.after = [](Elastic& elastic, const ElasticStep& at) {
    at::Tensor more = at::ones({5});
    if (at.follows) elastic.group()->all_reduce({more})->wait();
  }};
  run({member, member}, {newcomer});
  expect_same_ends({0, 1, 2});
  EXPECT_EQ(courses_[2].followed.size(), 4U) << "three steps before it has the state, and one that fails";
  EXPECT_EQ(sizes().back(), 3);
  expect_equal_bits(courses_[2].parameters, serial_parameters(sizes()), "the serial program");
}

// One member alone averages nothing that a newcomer could take over.
TEST_F(FollowTest, AMemberAloneIsNotFollowed) {
  const Setting leaves{.before = [](Elastic& elastic, const ElasticStep& at) {
    if (at.step == 5) elastic.leave();
  }};
  const Setting stays{.before = [this](Elastic&, const ElasticStep& at) {
    if (at.step == kMeet && at.epoch == 2) job_.decided(membership::change_key(2));
  }};
  waits_ = false;
  run({leaves, stays}, {{}});
  expect_same_ends({1, 2});
  EXPECT_EQ(courses_[0].end, ElasticEnd::left);
  EXPECT_TRUE(courses_[2].followed.empty());
  expect_equal_bits(courses_[2].parameters, serial_parameters(sizes()), "the serial program");
}

}  // namespace
}  // namespace gradwire::elastic_follow_test
