// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a tape has of the calls of a step comes out of the tape with the same bits, and nothing else does.
#include "gradwire/elastic/tape_internal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/elastic/elastic_group.h"
#include "gradwire/elastic/lag_internal.h"
#include "gradwire/elastic/mirror_group_internal.h"
#include "gradwire/hooks/hook_test_support.h"
#include "gradwire/hooks/registry.h"
#include "tests/support/on_hosts.h"

namespace gradwire::tape_test {
namespace {

using internal::MirrorGroup;
using internal::TapeEntry;
using internal::TapeMemory;
using internal::TapePlayer;
using internal::TapeReader;
using internal::TapeRecorder;
using namespace gradwire::testing;

const Setup kThreads{"threads"};
constexpr int kSize = 3;
constexpr int kGuide = 2;
constexpr std::size_t kNoLimit = std::size_t{1} << 30;

at::Tensor own(int rank, std::int64_t numel = 6) { return at::arange(numel, at::kFloat).add_(rank * 10 + 1); }

Tensors empty_for_all(int size, std::int64_t numel = 6) {
  Tensors all;
  for (int rank = 0; rank < size; ++rank) all.push_back(at::full({numel}, -1.0F));
  return all;
}

const auto kGoesOn = [] { return false; };

// Calls of one rank: returns what they brought.
using Calls = std::function<Tensors(ProcessGroup& group)>;

struct Case {
  std::string name;
  Calls calls;
};

std::vector<Case> cases() {
  return {
      {"broadcast",
       [](ProcessGroup& group) {
         at::Tensor tensor = own(group.rank());
         group.broadcast({tensor}, {{}, 1})->wait();
         return Tensors{tensor};
       }},
      {"all_reduce_of_two_tensors_without_gaps_or_with",
       [](ProcessGroup& group) {
         at::Tensor tensor = own(group.rank());
         at::Tensor wide = own(group.rank(), 12).view({3, 4}).t();
         group.all_reduce({tensor, wide})->wait();
         return Tensors{tensor, wide.contiguous()};
       }},
      {"reduce_to_the_guide",
       [](ProcessGroup& group) {
         at::Tensor tensor = own(group.rank());
         group.reduce({tensor}, {{}, ReduceOp::sum(), kGuide})->wait();
         return Tensors{tensor};
       }},
      {"all_gather",
       [](ProcessGroup& group) {
         std::vector<Tensors> all{empty_for_all(group.size())};
         group.all_gather(all, {own(group.rank())})->wait();
         return all[0];
       }},
      {"all_gather_into_tensor",
       [](ProcessGroup& group) {
         at::Tensor all = at::zeros({6 * group.size()});
         group.all_gather_into_tensor(all, own(group.rank()))->wait();
         return Tensors{all};
       }},
      {"gather_to_the_guide",
       [](ProcessGroup& group) {
         std::vector<Tensors> all;
         if (group.rank() == kGuide) all.push_back(empty_for_all(group.size()));
         group.gather(all, {own(group.rank())}, {{}, kGuide})->wait();
         return all.empty() ? Tensors{} : all[0];
       }},
      {"scatter",
       [](ProcessGroup& group) {
         at::Tensor part = at::zeros({2});
         std::vector<Tensors> parts;
         if (group.rank() == 0) parts.push_back({own(0, 2), own(1, 2), own(2, 2)});
         group.scatter({part}, parts)->wait();
         return Tensors{part};
       }},
      {"reduce_scatter",
       [](ProcessGroup& group) {
         at::Tensor part = at::zeros({2});
         group.reduce_scatter({part}, {{own(group.rank(), 2), own(5, 2), own(7, 2)}})->wait();
         return Tensors{part};
       }},
      {"reduce_scatter_tensor",
       [](ProcessGroup& group) {
         at::Tensor part = at::zeros({2});
         group.reduce_scatter_tensor(part, own(group.rank()))->wait();
         return Tensors{part};
       }},
      {"all_to_all",
       [](ProcessGroup& group) {
         Tensors outputs = empty_for_all(group.size(), 2);
         group.all_to_all(outputs, {own(group.rank(), 2), own(group.rank() + 3, 2), own(9, 2)})->wait();
         return outputs;
       }},
      {"all_to_all_single",
       [](ProcessGroup& group) {
         at::Tensor output = at::zeros({6});
         group.all_to_all_single(output, own(group.rank()))->wait();
         return Tensors{output};
       }},
      {"half_precision_at_odd_places",
       [](ProcessGroup& group) {
         at::Tensor byte = at::full({3}, group.rank(), at::kByte);
         at::Tensor half = own(group.rank(), 5).to(at::kHalf);
         at::Tensor number = at::full({2}, group.rank() + 0.5, at::kDouble);
         std::vector<std::vector<Tensors>> all(3, {{}});
         for (int rank = 0; rank < group.size(); ++rank) {
           all[0][0].push_back(at::zeros({3}, at::kByte));
           all[1][0].push_back(at::zeros({5}, at::kHalf));
           all[2][0].push_back(at::zeros({2}, at::kDouble));
         }
         group.all_gather(all[0], {byte})->wait();
         group.all_gather(all[1], {half})->wait();
         group.all_gather(all[2], {number})->wait();
         Tensors flat;
         for (const auto& each : all) flat.insert(flat.end(), each[0].begin(), each[0].end());
         return flat;
       }},
      {"a_call_that_returns_when_it_has_ended",
       [](ProcessGroup& group) {
         at::Tensor tensor = own(group.rank());
         AllReduceOptions options;
         options.async = false;
         group.all_reduce({tensor}, options);
         return Tensors{tensor};
       }},
      {"futures_that_change_the_result",
       [](ProcessGroup& group) {
         at::Tensor tensor = own(group.rank());
         auto work = group.all_reduce({tensor});
         const Future later = work->future()->then(
             [tensor](Future::element_type&) {
               at::Tensor(tensor).mul_(2);
               return c10::IValue();
             },
             c10::NoneType::get());
         work.reset();
         later->waitAndThrow();
         return Tensors{tensor};
       }},
      {"a_barrier_and_a_call_on_a_duplicate",
       [](ProcessGroup& group) {
         group.barrier()->wait();
         const auto duplicate = group.dup();
         at::Tensor tensor = own(group.rank());
         at::Tensor other = own(group.rank() + 1);
         duplicate->all_reduce({tensor})->wait();
         group.all_reduce({other}, {{}, ReduceOp::max()})->wait();
         return Tensors{tensor, other};
       }},
  };
}

// Makes `calls` on every rank of a group, as step 7, and records them on the guide. Returns the guide's results.
Tensors record(const Calls& calls, const std::shared_ptr<TapeReader>& reader) {
  Tensors results;
  run_ranks(kThreads, kSize, [&](int, const std::shared_ptr<ProcessGroup>& group) {
    const auto elastic = std::make_shared<ElasticGroup>();
    elastic->move_to(group);
    const auto recorder = std::make_shared<TapeRecorder>();
    if (group->rank() == kGuide) {
      recorder->add(reader);
      elastic->set_tap(recorder);
    }
    at::Tensor before = own(1);
    elastic->all_reduce({before})->wait();  // not in a step
    recorder->begin_step(7);
    Tensors own_results = calls(*elastic);
    recorder->end_step();
    elastic->all_reduce({before})->wait();  // nor this one
    if (group->rank() == kGuide) results = own_results;
  });
  reader->end(8);
  return results;
}

// The entries of a tape, up to its end.
void pass(TapeReader& reader, TapePlayer& player) {
  for (;;) {
    TapeEntry entry = reader.next();
    const bool last = entry.kind == TapeEntry::Kind::end || entry.kind == TapeEntry::Kind::gave_up;
    player.add(std::move(entry));
    if (last) return;
  }
}

// A rank alone that plays.
std::shared_ptr<ElasticGroup> playing(const std::shared_ptr<TapePlayer>& player, bool has_hosts = false) {
  auto elastic = std::make_shared<ElasticGroup>();
  elastic->move_to(std::make_shared<MirrorGroup>(kGuide, kSize, MirrorGroup::Traits{.has_hosts = has_hosts}));
  elastic->set_tap(player);
  return elastic;
}

class TapeCallsTest : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Calls, TapeCallsTest, ::testing::Range(std::size_t{0}, cases().size()),
                         [](const auto& info) { return cases()[info.param].name; });

TEST_P(TapeCallsTest, TheResultsOfAStepComeOutAsTheyWentIn) {
  const Case one = cases()[GetParam()];
  const auto reader = std::make_shared<TapeReader>(kNoLimit);
  const Tensors expected = record(one.calls, reader);
  const auto player = std::make_shared<TapePlayer>();
  pass(*reader, *player);
  const auto group = playing(player);
  ASSERT_TRUE(player->wait_for_step(7, kGoesOn));
  const Tensors played = one.calls(*group);
  ASSERT_EQ(played.size(), expected.size());
  for (std::size_t i = 0; i < played.size(); ++i) EXPECT_TRUE(played[i].equal(expected[i])) << "tensor " << i;
  EXPECT_FALSE(player->wait_for_step(8, kGoesOn)) << "the tape ends before step 8";
}

TEST(TapeTest, AnotherCallThanOnTheTapeIsRefused) {
  const auto all_reduce = [](std::int64_t numel) -> Calls {
    return [numel](ProcessGroup& group) {
      at::Tensor tensor = own(group.rank(), numel);
      group.all_reduce({tensor})->wait();
      return Tensors{tensor};
    };
  };
  const auto attempt = [&](const Calls& played) {
    const auto reader = std::make_shared<TapeReader>(kNoLimit);
    record(all_reduce(6), reader);
    const auto player = std::make_shared<TapePlayer>();
    pass(*reader, *player);
    const auto group = playing(player);
    player->wait_for_step(7, kGoesOn);
    return error_of([&] {
      played(*group);
      player->wait_for_step(7, kGoesOn);
    });
  };
  EXPECT_EQ(attempt(all_reduce(6)), "");
  EXPECT_NE(attempt(all_reduce(5))
                .find("all_reduce() on group 0 in step 7 with 20 bytes, and the member that it follows "
                      "made another call there (24 bytes)"),
            std::string::npos);
  EXPECT_NE(attempt([](ProcessGroup& group) {
              at::Tensor tensor = own(0);
              group.broadcast({tensor})->wait();
              return Tensors{};
            }).find("broadcast()"),
            std::string::npos);
}

// The calls within and between hosts are on no tape; what they bring is.
TEST(TapeTest, AHookThatRunsBetweenHostsIsFollowed) {
  const auto run_hook = [](ProcessGroup& group, CommHook& hook, std::uint32_t step) {
    const at::Tensor values = own(group.rank(), 600) + static_cast<double>(step);
    GradBucket bucket = bucket_of(values, group, step, kSize);
    return tensor_of(*hook.run(bucket)).clone();
  };
  const auto reader = std::make_shared<TapeReader>(kNoLimit);
  Tensors expected;
  run_ranks({"threads"}, kSize, [&](int rank, const std::shared_ptr<ProcessGroup>& flat) {
    const auto elastic = std::make_shared<ElasticGroup>();
    const auto hook = make_hook("int4:memory=error_feedback");
    elastic->move_to(test_support::on_hosts(flat, std::string(kSize - 1, '0') + "1"));
    const auto recorder = std::make_shared<TapeRecorder>();
    if (rank == kGuide) {
      recorder->add(reader);
      elastic->set_tap(recorder);
    }
    for (const std::uint32_t step : {0U, 1U}) {
      recorder->begin_step(step);
      const at::Tensor result = run_hook(*elastic, *hook, step);
      recorder->end_step();
      if (rank == kGuide) expected.push_back(result);
    }
    flat->barrier()->wait();
  });
  reader->end(2);
  const auto player = std::make_shared<TapePlayer>();
  pass(*reader, *player);
  const auto group = playing(player, /*has_hosts=*/true);
  const auto hook = make_hook("int4:memory=error_feedback");
  for (const std::uint32_t step : {0U, 1U}) {
    ASSERT_TRUE(player->wait_for_step(step, kGoesOn));
    EXPECT_TRUE(run_hook(*group, *hook, step).equal(expected[step])) << "step " << step;
  }
  EXPECT_FALSE(player->wait_for_step(2, kGoesOn));
}

TEST(TapeTest, MoreAndFewerCallsThanOnTheTapeAreRefused) {
  const auto player = std::make_shared<TapePlayer>();
  player->add({.kind = TapeEntry::Kind::step, .step = 1});
  player->add({.kind = TapeEntry::Kind::call, .step = 1, .group = 4});
  player->add({.kind = TapeEntry::Kind::step, .step = 2});
  const auto group = playing(player);
  ASSERT_TRUE(player->wait_for_step(1, kGoesOn));
  EXPECT_NE(error_of([&] { group->barrier()->wait(); }).find("barrier() on group 0 in step 1"), std::string::npos);
  EXPECT_NE(error_of([&] { player->wait_for_step(2, kGoesOn); }).find("fewer calls on group 4 in step 1"),
            std::string::npos);
}

// Why the recorder gave up, as whoever plays the tape learns it; empty when the tape has an end.
std::string reason_to_give_up(TapeReader& reader) {
  TapePlayer player;
  for (;;) {
    TapeEntry entry = reader.next();
    if (entry.kind == TapeEntry::Kind::call) continue;
    const bool gave_up = entry.kind == TapeEntry::Kind::gave_up;
    const bool has_end = entry.kind == TapeEntry::Kind::end;
    const std::int64_t step = entry.step;
    player.add(std::move(entry));
    if (has_end) return "";
    if (gave_up) return error_of([&] { player.wait_for_step(1000, kGoesOn); });
    EXPECT_TRUE(player.wait_for_step(step, kGoesOn));
  }
}

// The steps of one rank alone.
class Recording {
 public:
  explicit Recording(const std::shared_ptr<TapeReader>& reader) {
    group_->move_to(std::make_shared<MirrorGroup>(kGuide, kSize, MirrorGroup::Traits{}));
    recorder_->add(reader);
    group_->set_tap(recorder_);
  }
  // One step with `calls` calls of 24 bytes. Returns the Work of the last.
  std::shared_ptr<Work> step(int calls = 1) {
    begin_step();
    std::shared_ptr<Work> work;
    for (int i = 0; i < calls; ++i) {
      if (work != nullptr) work->wait();
      work = group_->all_reduce({own(0)});
    }
    recorder_->end_step();
    return work;
  }
  void begin_step() { recorder_->begin_step(next_++); }

 private:
  const std::shared_ptr<ElasticGroup> group_ = std::make_shared<ElasticGroup>();
  const std::shared_ptr<TapeRecorder> recorder_ = std::make_shared<TapeRecorder>();
  std::int64_t next_ = 0;
};

// So the first step of a newcomer's tape finds memory that was written to.
TEST(TapeTest, MemoryIsReadyForTheFirstStepOnTheTape) {
  const auto memory = std::make_shared<TapeMemory>();
  TapeRecorder recorder(memory);
  const at::Tensor large = at::ones({2 << 20});
  Tensors tensors{large, large};
  GroupCall call = AllReduceCall{tensors, {}};
  recorder.begin_step(0);
  recorder.call(0, call, [&] { return completed_work(tensors); })->wait();
  recorder.end_step();
  recorder.begin_step(1);
  while (memory->ready_bytes() != 2 * large.nbytes()) std::this_thread::yield();
  recorder.end_step();
  const auto reader = std::make_shared<TapeReader>(kNoLimit);
  recorder.add(reader);
  recorder.begin_step(2);
  recorder.call(0, call, [&] { return completed_work(tensors); })->wait();
  EXPECT_EQ(memory->ready_bytes(), 0U);
  EXPECT_EQ(reader->next().kind, TapeEntry::Kind::step);
  EXPECT_TRUE(reader->next().bytes.view(at::kFloat).eq(1).all().item<bool>());
}

// The limit leaves room for five steps, besides.
TEST(TapeTest, AReaderThatIsTooFarBehindGivesUp) {
  for (const std::size_t limit : {std::size_t{72}, std::size_t{71}}) {
    const auto reader = std::make_shared<TapeReader>(limit);
    Recording recording(reader);
    for (int i = 0; i < 8; ++i) recording.step()->wait();
    EXPECT_EQ(reader->gave_up(), limit == 71);
    reader->end(8);
    const std::string reason = reason_to_give_up(*reader);
    EXPECT_EQ(reason.empty(), limit == 72) << reason;
    EXPECT_EQ(reason.find("too slow, or the link to it: 192 bytes wait") != std::string::npos, limit == 71) << reason;
  }
}

TEST(TapeTest, AReaderThatHasStoppedReadingGivesUp) {
  const auto reader = std::make_shared<TapeReader>(kNoLimit, std::chrono::hours(1), Milliseconds(0));
  Recording recording(reader);
  recording.step()->wait();
  recording.step()->wait();
  EXPECT_FALSE(reader->gave_up()) << "whoever reads the tape gets the state first";
  for (int i = 0; i < 4; ++i) reader->next();
  std::thread waits([&] { reader->next(); });  // nor when there is nothing to read
  while (!reader->is_waited_for()) std::this_thread::yield();
  recording.begin_step();
  waits.join();
  EXPECT_FALSE(reader->gave_up());
  recording.step()->wait();
  EXPECT_TRUE(reader->gave_up());
  EXPECT_NE(reason_to_give_up(*reader).find("has taken nothing for"), std::string::npos);
}

// It may hold some entries while it does steps of its own before the first one on the tape.
TEST(TapeTest, AReaderThatMayHoldWhatItHasReadKeepsThePatienceOfTheBeginning) {
  const auto reader =
      std::make_shared<TapeReader>(kNoLimit, std::chrono::hours(1), Milliseconds(0), std::size_t{1} << 20);
  Recording recording(reader);
  for (int i = 0; i < 2; ++i) recording.step()->wait();
  for (int i = 0; i < 4; ++i) reader->next();
  recording.step()->wait();
  EXPECT_FALSE(reader->gave_up());
}

// A newcomer that hangs before it has the state never reads.
TEST(TapeTest, AReaderThatNeverReadsGivesUp) {
  const auto reader = std::make_shared<TapeReader>(kNoLimit, Milliseconds(0), std::chrono::hours(1));
  Recording recording(reader);
  recording.step()->wait();
  EXPECT_TRUE(reader->gave_up());
  EXPECT_NE(reason_to_give_up(*reader).find("has taken nothing for 0 s"), std::string::npos);
}

// The members leave the group in which the call was made, so nobody has to wait for it any more.
TEST(TapeTest, ACallThatIsUnderWayAtTheEndIsNotWaitedFor) {
  const auto reader = std::make_shared<TapeReader>(kNoLimit);
  TapeRecorder recorder;
  recorder.add(reader);
  recorder.begin_step(0);
  Tensors tensors{own(0)};
  GroupCall call = AllReduceCall{tensors, {}};
  const auto work = recorder.call(
      0, call, [] { return work_from_future(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors())); });
  recorder.end_step();
  reader->end(1);
  const std::string reason = reason_to_give_up(*reader);
  EXPECT_NE(reason.find("stopped before step 1 while a call of an earlier step was under way"), std::string::npos)
      << reason;
}

// The results are larger than an address space.
TEST(TapeTest, WithoutMemoryForACopyTheReaderGivesUpAndTheCallIsWell) {
  const auto reader = std::make_shared<TapeReader>(std::size_t{1} << 60);
  TapeRecorder recorder;
  recorder.add(reader);
  recorder.begin_step(0);
  std::uint8_t byte = 0;
  Tensors tensors{at::from_blob(&byte, {std::int64_t{1} << 50}, at::kByte)};
  GroupCall call = AllReduceCall{tensors, {}};
  const auto done = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
  done->markCompleted(c10::List<at::Tensor>());
  EXPECT_TRUE(recorder.call(0, call, [&] { return work_from_future(done); })->wait());
  recorder.end_step();
  EXPECT_NE(reason_to_give_up(*reader).find("a member has no room for the tape: "), std::string::npos);
}

TEST(TapeTest, MessagesToSingleRanksAreNotOnTheTape) {
  const auto reader = std::make_shared<TapeReader>(kNoLimit);
  record(
      [](ProcessGroup& group) {
        at::Tensor got = at::zeros({1});
        if (group.rank() == kGuide) group.send({own(0, 1)}, 0)->wait();
        if (group.rank() == 0) group.recv({got}, kGuide)->wait();
        return Tensors{};
      },
      reader);
  EXPECT_NE(reason_to_give_up(*reader).find("step 7 calls send()"), std::string::npos);
}

TEST(TapeTest, WhoeverPlaysTheTapeTakesNoMoreThanItHasRoomFor) {
  const auto player = std::make_shared<TapePlayer>();
  const auto entry = [](std::int64_t group) {
    return TapeEntry{.kind = TapeEntry::Kind::call, .step = 0, .group = group, .bytes = at::zeros({8}, at::kByte)};
  };
  player->add({.kind = TapeEntry::Kind::step, .step = 0});
  ASSERT_TRUE(player->wait_for_step(0, kGoesOn));
  player->add(entry(0));
  EXPECT_TRUE(player->wait_for_room(8));
  player->add(entry(0));
  std::atomic<bool> has_room{false};
  std::thread receives([&] {
    EXPECT_TRUE(player->wait_for_room(8));
    has_room = true;
    player->add(entry(1));
  });
  std::this_thread::sleep_for(Milliseconds(20));
  EXPECT_FALSE(has_room);
  // A call on a duplicate, whose entry comes behind those that fill the room. The entry is that of another call.
  const auto duplicate = playing(player)->dup();
  EXPECT_NE(error_of([&] { duplicate->barrier()->wait(); }).find("made another call there (8 bytes)"),
            std::string::npos);
  EXPECT_TRUE(has_room);
  receives.join();
  player->close();
  EXPECT_FALSE(player->wait_for_room(15));
}

// What fills the room may be calls that nobody makes, and then the next step does not come.
TEST(TapeTest, CallsThatAreLeftOutAreNoticedBeforeTheNextStepIsThere) {
  TapePlayer player;
  player.add({.kind = TapeEntry::Kind::step, .step = 0});
  ASSERT_TRUE(player.wait_for_step(0, kGoesOn));
  player.add({.kind = TapeEntry::Kind::call, .step = 0, .group = 0, .bytes = at::zeros({8}, at::kByte)});
  EXPECT_NE(error_of([&] { player.wait_for_step(1, kGoesOn); }).find("fewer calls on group 0 in step 0"),
            std::string::npos);
}

// The last step of a tape too.
TEST(TapeTest, FewerCallsThanOnTheTapeAreRefusedAtItsEnd) {
  TapePlayer player;
  player.add({.kind = TapeEntry::Kind::step, .step = 1});
  player.add({.kind = TapeEntry::Kind::call, .step = 1, .group = 0});
  player.add({.kind = TapeEntry::Kind::end, .step = 2});
  ASSERT_TRUE(player.wait_for_step(1, kGoesOn));
  EXPECT_NE(error_of([&] { player.wait_for_step(2, kGoesOn); }).find("fewer calls on group 0 in step 1"),
            std::string::npos);
}

TEST(LagTest, MembersWaitForAFewStepsOrForASecond) {
  using std::chrono::microseconds;
  EXPECT_FALSE(internal::is_far_behind(internal::kFewSteps, std::chrono::hours(1)));
  EXPECT_FALSE(internal::is_far_behind(100'000, microseconds(10)));
  EXPECT_TRUE(internal::is_far_behind(100'001, microseconds(10)));
  EXPECT_FALSE(internal::is_far_behind(-1, microseconds(10)));
}

TEST(LagTest, ANewcomerThatComesNearerIsNotWaitedFor) {
  internal::Lag lag;
  for (std::int64_t steps = 1000; steps > 0; --steps) EXPECT_FALSE(lag.has_gone(steps));
  EXPECT_TRUE(lag.has_gone(0));
  EXPECT_TRUE(internal::Lag().has_gone(-1));
}

TEST(LagTest, ANewcomerThatComesNoNearerIsWaitedForWhenItIsNearEnough) {
  for (const std::int64_t steps : {internal::kFewSteps, internal::kFewSteps + 1}) {
    internal::Lag lag(Milliseconds(0));
    internal::Lag slow_lag(std::chrono::hours(1));
    EXPECT_FALSE(lag.has_gone(steps) || slow_lag.has_gone(steps));
    for (int i = 1; i < internal::Lag::kPatience; ++i) EXPECT_FALSE(lag.has_gone(steps + i % 2));
    for (int i = 0; i < 2 * internal::Lag::kPatience; ++i) EXPECT_FALSE(slow_lag.has_gone(steps));
    if (steps == internal::kFewSteps) {
      EXPECT_TRUE(lag.has_gone(steps));
    } else {
      EXPECT_NE(error_of([&] { lag.has_gone(steps); }).find("11 steps behind the members"), std::string::npos);
    }
  }
}

// The guide's call fails after it wrote some of its result: no other rank takes the result for that of the step.
TEST(TapeTest, ACallThatFailsIsNotOnTheTape) {
  const auto reader = std::make_shared<TapeReader>(kNoLimit);
  run_ranks(kThreads, 2, [&](int, const std::shared_ptr<ProcessGroup>& group) {
    const auto elastic = std::make_shared<ElasticGroup>();
    elastic->move_to(group);
    if (group->rank() == 1) {
      group->abort("on purpose");
      return;
    }
    const auto recorder = std::make_shared<TapeRecorder>();
    recorder->add(reader);
    elastic->set_tap(recorder);
    recorder->begin_step(0);
    for (const bool async : {true, false}) {
      AllReduceOptions options;
      options.async = async;
      EXPECT_NE(error_of([&] { elastic->all_reduce({own(0)}, options)->wait(); }), "");
    }
  });
  EXPECT_EQ(reader->next().kind, TapeEntry::Kind::gave_up);
}

TEST(TapeTest, AnErrorReachesWhoeverWaitsForTheTape) {
  TapePlayer player;
  player.fail(std::make_exception_ptr(PeerError("the guide has died", {1})));
  EXPECT_THROW(player.wait_for_step(0, kGoesOn), PeerError);
}

TEST(TapeTest, WhoeverWaitsForTheTapeMayGiveUp) {
  TapePlayer player;
  int looks = 0;
  EXPECT_FALSE(player.wait_for_step(0, [&] { return ++looks == 3; }));
  EXPECT_EQ(looks, 3);
}

TEST(MirrorGroupTest, EveryRankHoldsWhatThisOneHolds) {
  MirrorGroup group(1, 3, {.multiplies = true});
  EXPECT_TRUE(group.multiplies_as_it_sums());
  const auto reduced = [&](ReduceOp op) {
    at::Tensor tensor = own(0);
    group.all_reduce({tensor}, {{}, op})->wait();
    return tensor;
  };
  EXPECT_TRUE(reduced(ReduceOp::sum()).equal(own(0) * 3));
  EXPECT_TRUE(reduced(ReduceOp::avg()).equal(own(0)));
  EXPECT_TRUE(reduced(ReduceOp::max()).equal(own(0)));
  EXPECT_TRUE(reduced(ReduceOp::product()).equal(own(0).pow(3)));
  EXPECT_TRUE(reduced(ReduceOp::premul_sum(0.5)).equal(own(0) * 1.5));
  std::vector<Tensors> all{empty_for_all(3)};
  group.all_gather(all, {own(4)})->wait();
  for (const at::Tensor& each : all[0]) EXPECT_TRUE(each.equal(own(4)));
  at::Tensor part = at::zeros({2});
  group.reduce_scatter_tensor(part, own(0))->wait();
  EXPECT_TRUE(part.equal(own(0).narrow(0, 2, 2) * 3));
  EXPECT_THROW(group.send({part}, 0), UnsupportedError);
}

}  // namespace
}  // namespace gradwire::tape_test
