// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Newcomers that follow the members while these train. The members are threads; they wait at a step until the newcomers
// are as far as they are.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "gradwire/ddp/join.h"
#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/process_group/call_group.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/user_backends.h"
#include "gradwire/process_group/wait_clock_internal.h"

namespace gradwire::elastic_follow_test {
namespace {

using namespace gradwire::testing;

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
  int loads = 0;                       // and how often it got one
  std::string history;                 // a part of the state: one letter for each step
};

struct Setting {
  std::string hook = {};
  // In each step: before the forward pass, and after the backward pass.
  std::function<void(Elastic& elastic, const ElasticStep& at)> before = nullptr;
  std::function<void(Elastic& elastic, const ElasticStep& at)> after = nullptr;
  std::function<void()> on_save = nullptr;  // as it gives away its state
  bool spoils_what_it_follows = false;      // changes a parameter in the steps that it follows
  bool joins = false;                       // each step is a Join over one or two batches
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

// Two layers with parameters of the same sizes, whose order depends on the rank: so the gradients come in another order
// on each rank.
thread_local int rank_of_thread = 0;
struct TurnedNetImpl : torch::nn::Module {
  TurnedNetImpl() {
    begin = register_module("begin", torch::nn::Linear(8, 8));
    one = register_module("one", torch::nn::Linear(8, 8));
    other = register_module("other", torch::nn::Linear(8, 8));
    end = register_module("end", torch::nn::Linear(8, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor between = begin->forward(x).tanh();
    const bool turned = rank_of_thread % 2 == 1;
    return end->forward(turned ? one->forward(other->forward(between)) : other->forward(one->forward(between)));
  }
  torch::nn::Linear begin{nullptr}, one{nullptr}, other{nullptr}, end{nullptr};
};
TORCH_MODULE(TurnedNet);

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
          if (setting.on_save) setting.on_save();
          return course.history;
        },
        [&](const std::string& bytes) {
          ++course.loads;
          course.history = bytes;
        });
    try {
      course.end = elastic.run(kSteps, [&](const ElasticStep& at) {
        (at.follows ? course.followed : course.counted).push_back(at.step);
        rank_of_thread = at.rank;
        if (setting.before) setting.before(elastic, at);
        optimizer.zero_grad();
        if (setting.joins) {
          Join join({ddp});
          for (std::int64_t i = 0; i <= (at.step + at.rank) % 2; ++i) loss_of(ddp(samples(at))).backward();
          join.finish();
        } else {
          loss_of(ddp(samples(at))).backward();
        }
        if (setting.after) setting.after(elastic, at);
        optimizer.step();
        course.history += 'x';
        if (setting.spoils_what_it_follows && at.follows) {
          const c10::NoGradGuard no_grad;
          at::Tensor parameter = net->parameters()[0];
          parameter.add_(1);
        }
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

// The two members of the first epoch send each other a message in each step, which a newcomer cannot repeat.
void pass_a_token(Elastic& elastic, const ElasticStep& at) {
  if (at.epoch != 1 || at.follows) return;
  const at::Tensor token = at::full({1}, static_cast<float>(at.step));
  at::Tensor got = at::zeros({1});
  const auto send = elastic.group()->send({token}, 1 - at.rank);
  elastic.group()->recv({got}, 1 - at.rank)->wait();
  send->wait();
}

// How long the steps of a thread take: what a test says, and not what a machine makes of it.
thread_local std::int64_t nanoseconds_of_steps = 0;
std::int64_t read_nanoseconds_of_steps() noexcept { return nanoseconds_of_steps; }

class FollowTest : public ::testing::Test {
 protected:
  void SetUp() override { internal::read_wait_clocks_with(&read_nanoseconds_of_steps); }
  void TearDown() override { internal::read_wait_clocks_with(nullptr); }
  // Two members begin; `newcomers` join when these are in the middle of their epoch.
  template <class AnyNet = Mlp>
  void run(const std::vector<Setting>& members, const std::vector<Setting>& newcomers) {
    ElasticOptions options = job_.options(backend_);
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
        if (at.epoch == 1 && !at.follows) {
          // Newcomers are seen at boundaries, so the members must not be through before. The state is small, so these
          // are ready for the newcomers at the next boundary (SnapshotMemory), and give the state at the one after
          // that.
          if (at.step == 21 && !newcomers.empty()) job_.decided(membership::follower_key(1, newcomers.size() - 1));
          if (at.step == kMeet && waits_) job_.decided(membership::change_key(1));
        }
      };
      threads.emplace_back([this, i, options, setting, &start_others] {
        if constexpr (std::is_same_v<AnyNet, Mlp>) {
          courses_[i] = run_member(options, setting, Mlp(3, 8, 1));
        } else {
          courses_[i] = run_member(options, setting, AnyNet());
        }
        start_others = true;
      });
    }
    for (auto& thread : threads) thread.join();
  }
  // Where a newcomer was not as far as the members when their epoch ended, a member alone waits for it at kMeet.
  void wait_for_newcomer(const ElasticStep& at) const {
    if (at.step == kMeet && at.size == 1) job_.decided(membership::change_key(at.epoch));
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
  bool waits_ = true;  // the members, for those that follow, at kMeet
  std::string backend_ = "threads";
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
  // In its first three steps a newcomer has mirrors for ranks.
  const auto mirrors = [](const ElasticStep& at) {
    thread_local int steps = 0;
    return at.follows && ++steps <= 3;
  };
  const Setting setting{.after = [mirrors](Elastic& elastic, const ElasticStep& at) {
    ProcessGroup& group = *elastic.group();
    const bool has_mirrors = mirrors(at);
    at::Tensor mean = at::full({3}, static_cast<float>(at.rank));
    group.all_reduce({mean}, {{}, ReduceOp::avg()})->wait();
    std::vector<Tensors> all(1);
    for (int rank = 0; rank < at.size; ++rank) all[0].push_back(at::zeros({2}, at::kLong));
    group.all_gather(all, {at::full({2}, at.rank, at::kLong)})->wait();
    for (int rank = 0; rank < at.size; ++rank) {
      if (!all[0][static_cast<std::size_t>(rank)].equal(at::full({2}, rank, at::kLong)) && !has_mirrors)
        throw InternalError(concat("rank ", rank, " of the all_gather is wrong in step ", at.step));
    }
  }};
  run<Net>({setting, setting}, {setting});
  expect_same_ends({0, 1, 2});
  expect_followed(courses_[2]);
  EXPECT_EQ(saves(), 3);
}

// Each Join makes a duplicate of the group, on the members long before the tape begins.
TEST_F(FollowTest, TheCallsOfAJoinAreOnTheTape) {
  const Setting setting{.joins = true};
  run({setting, setting}, {setting});
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
    wait_for_newcomer(at);
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
  const Setting setting{.after = pass_a_token};
  run({setting, setting}, {setting});
  expect_same_ends({0, 1, 2});
  EXPECT_LE(courses_[2].followed.size(), 4U) << "those before it has the state, and one that it cannot end";
  EXPECT_EQ(sizes().back(), 3);
  expect_equal_bits(courses_[2].parameters, serial_parameters(sizes()), "the serial program");
}

// In the first epoch the members have found the order of their buckets in the epoch itself.
TEST_F(FollowTest, ANewcomerHasTheMembersOrderOfBuckets) {
  run<TurnedNet>({{}, {}}, {{}});
  expect_same_ends({0, 1, 2});
  expect_followed(courses_[2]);
  EXPECT_EQ(saves(), 3) << "the newcomer gets the state once";
}

// A newcomer that comes to other bits than the members does not end the job.
TEST_F(FollowTest, ANewcomerWithOtherBitsTakesTheStateAnew) {
  run({{}, {}}, {{.spoils_what_it_follows = true}});
  expect_same_ends({0, 1, 2});
  expect_followed(courses_[2]);
  EXPECT_EQ(saves(), 5) << "once when the job begins, and on two members each time that the newcomer gets it";
  EXPECT_EQ(sizes().back(), 3);
  expect_equal_bits(courses_[2].parameters, serial_parameters(sizes()), "the serial program");
}

// The members stop for another reason, and do not wait for a newcomer that is far behind.
TEST_F(FollowTest, MembersThatStopDoNotWaitForANewcomerThatIsFarBehind) {
  std::atomic<bool> has_state{false};
  const auto member = [&](bool leaves) {
    return Setting{.before = [&, leaves](Elastic& elastic, const ElasticStep& at) {
      wait_for_newcomer(at);
      if (at.epoch != 1 || at.follows) return;
      while (at.step == 40 && !has_state) std::this_thread::yield();
      if (at.step == 140 && leaves) elastic.leave();
      if (at.step == 145) job_.decided(membership::change_key(1));  // the wish has arrived
    }};
  };
  int calls = 0;
  const Setting newcomer{.before = [&](Elastic&, const ElasticStep& at) {
    if (!at.follows || ++calls < 4) return;
    has_state = true;
    job_.decided(membership::epoch_key(2));
    nanoseconds_of_steps += 50'000'000;  // such steps would take the newcomer seconds
  }};
  waits_ = false;
  run({member(true), member(false)}, {newcomer});
  const std::size_t left = courses_[0].end == ElasticEnd::left ? 0 : 1;
  EXPECT_EQ(courses_[left].end, ElasticEnd::left);
  expect_same_ends({1 - left, 2});
  EXPECT_GE(courses_[2].followed.size(), 4U) << "three before it has the state, and the one in which the members stop";
  EXPECT_LT(courses_[2].followed.size(), 50U) << "of a hundred";
  expect_equal_bits(courses_[2].parameters, serial_parameters(sizes()), "the serial program");
}

// A group that calls `before` before each call.
class HeldGroup final : public CallGroup {
 public:
  HeldGroup(std::shared_ptr<ProcessGroup> held, std::function<void(const GroupCall& call)> before)
      : CallGroup(held->rank(), held->size()), held_(std::move(held)), before_(std::move(before)) {}
  bool multiplies_as_it_sums() const override { return held_->multiplies_as_it_sums(); }
  void abort(const std::string& reason) override { held_->abort(reason); }
  void shutdown() override { held_->shutdown(); }

 protected:
  std::string get_backend_name() const override { return held_->name(); }
  std::shared_ptr<Work> do_call(GroupCall& call) override {
    before_(call);
    return call_on(*held_, call, timeout());
  }

 private:
  const std::shared_ptr<ProcessGroup> held_;
  const std::function<void(const GroupCall& call)> before_;
};

// The same while the newcomer has not got the state yet.
TEST_F(FollowTest, MembersThatStopDoNotWaitForANewcomerWithoutState) {
  std::atomic<bool> knows_the_step{false};
  std::atomic<bool> is_held{false};
  backend_ = "holds_the_state";
  register_backend(
      backend_,
      [&](std::shared_ptr<Store> store, int rank, int size, Milliseconds timeout) -> std::shared_ptr<ProcessGroup> {
        auto group = make_process_group("threads", store, rank, size, timeout);
        // Only the newcomer's group beside the members has three ranks. Which step comes next is broadcast there, and
        // the calls after that are for the state.
        if (size != 3 || rank != 2) return group;
        return std::make_shared<HeldGroup>(group, [&](const GroupCall& call) {
          const bool is_broadcast = std::holds_alternative<BroadcastCall>(call);
          if (is_broadcast) knows_the_step = true;
          if (!is_broadcast && knows_the_step && !is_held.exchange(true)) job_.decided(membership::epoch_key(2));
        });
      });
  const Setting leaves{.before = [&](Elastic& elastic, const ElasticStep& at) {
    if (at.epoch != 1 || at.follows) return;
    while (at.step == 60 && !is_held) std::this_thread::yield();
    if (at.step == 60) elastic.leave();
    if (at.step == 65) job_.decided(membership::change_key(1));  // the wish has arrived
  }};
  const Setting stays{.before = [&](Elastic&, const ElasticStep& at) { wait_for_newcomer(at); }};
  waits_ = false;
  run({leaves, stays}, {{}});
  EXPECT_TRUE(is_held);
  EXPECT_EQ(courses_[0].end, ElasticEnd::left);
  expect_same_ends({1, 2});
  EXPECT_EQ(courses_[2].followed.size(), 3U) << "those before it has the state";
  EXPECT_EQ(courses_[2].loads, 1) << "when it meets the members";
  expect_equal_bits(courses_[2].parameters, serial_parameters(sizes()), "the serial program");
}

// A newcomer that is stuck and cannot follow keeps nobody out, and nobody waits for it. When it is back, it takes part.
TEST_F(FollowTest, NobodyWaitsForANewcomerThatIsStuckAndCannotFollow) {
  const auto waits = [&](Elastic&, const ElasticStep& at) {
    if (at.epoch == 2 && at.step == 250) job_.decided(membership::change_key(2));
  };
  std::atomic<bool> was_stuck{false};
  const Setting setting{.before = waits, .after = pass_a_token};
  const Setting other{.before =
                          [&](Elastic& elastic, const ElasticStep& at) {
                            while (at.follows && !was_stuck) std::this_thread::yield();
                            waits(elastic, at);
                          },
                      .after = pass_a_token};
  membership::Epoch without;
  const Setting stuck{.before = [&](Elastic&, const ElasticStep& at) {
    if (!at.follows || was_stuck.exchange(true)) return;
    EXPECT_NO_THROW(without = membership::epoch_of(job_.decided(membership::epoch_key(2))));
  }};
  run({setting, setting}, {stuck, other});
  expect_same_ends({0, 1, 2, 3});
  EXPECT_EQ(without.members.size(), 3U) << "the members and the newcomer that was not stuck";
  EXPECT_EQ(sizes().back(), 4);
}

// When all members die, nobody holds the state of the job: the newcomer may lack steps that they have counted.
TEST_F(FollowTest, ANewcomerAloneDoesNotGoOnFromAnEarlierStep) {
  std::atomic<bool> has_state{false};
  std::atomic<int> dead{0};
  const Setting member{.before = [&](Elastic&, const ElasticStep& at) {
    if (at.epoch != 1 || at.follows) return;
    while (at.step == 40 && !has_state) std::this_thread::yield();
    if (at.step != 140) return;
    ++dead;
    throw Killed();
  }};
  int calls = 0;
  const Setting newcomer{.before = [&](Elastic&, const ElasticStep& at) {
    if (!at.follows || ++calls != 4) return;
    has_state = true;
    while (dead < 2) std::this_thread::yield();
  }};
  waits_ = false;
  run({member, member}, {newcomer});
  EXPECT_TRUE(courses_[0].killed && courses_[1].killed);
  EXPECT_NE(courses_[2].error.find("no member holds the state of the job any more"), std::string::npos)
      << courses_[2].error;
  EXPECT_TRUE(courses_[2].counted.empty());
}

// Once the members have confirmed what it has by following, it is a member as they are: they die in the new epoch, as
// another newcomer gets the state.
TEST_F(FollowTest, ANewcomerThatTheMembersHaveConfirmedGoesOnWithoutThem) {
  const Setting member{.on_save = [this] {
    const std::string second = membership::epoch_key(2);
    if (job_.store()->check(std::span(&second, 1))) throw Killed();
  }};
  const Setting other_calls{.after = [](Elastic& elastic, const ElasticStep& at) {
    at::Tensor more = at::ones({5});
    if (at.follows) elastic.group()->all_reduce({more})->wait();
  }};
  run({member, member}, {{}, other_calls});
  EXPECT_TRUE(courses_[0].killed && courses_[1].killed);
  expect_same_ends({2, 3});
  expect_followed(courses_[2]);
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
  const Setting leaves{.before = [this](Elastic& elastic, const ElasticStep& at) {
    if (at.step == 5) elastic.leave();
    if (at.step == 10) job_.decided(membership::change_key(1));  // the wish has arrived
  }};
  const Setting stays{.before = [this](Elastic&, const ElasticStep& at) { wait_for_newcomer(at); }};
  waits_ = false;
  run({leaves, stays}, {{}});
  expect_same_ends({1, 2});
  EXPECT_EQ(courses_[0].end, ElasticEnd::left);
  EXPECT_TRUE(courses_[2].followed.empty());
  expect_equal_bits(courses_[2].parameters, serial_parameters(sizes()), "the serial program");
}

}  // namespace
}  // namespace gradwire::elastic_follow_test
