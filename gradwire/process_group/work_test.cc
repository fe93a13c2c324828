// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a Work promises, whoever made it.
#include "gradwire/process_group/work.h"

#include <ATen/Functions.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/work_internal.h"
#include "tests/support/ranks.h"

namespace gradwire::work_test {
namespace {

Future new_future() { return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors()); }

c10::IValue list_of(const at::Tensor& tensor) { return std::vector<at::Tensor>{tensor}; }

// A Work that a user derived, which knows nothing but its future.
class UserWork final : public Work {
 public:
  explicit UserWork(Future future) : future_(std::move(future)) {}
  Future future() override { return future_; }

 private:
  Future future_;
};

// One that can only be waited for.
class WaitingWork final : public Work {
 public:
  bool wait(Milliseconds) override {
    ++waits;
    return true;
  }
  int waits = 0;
};

// What is done to the results belongs to the worker: the thread that waits may hold what a callback needs.
TEST(Work, CallbacksOfACallDoNotRunOnAThreadThatWaitsForALaterOne) {
  test_support::run_ranks("threads", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("threads", store, rank, 2);
    AllReduceOptions later;
    later.async = true;
    for (int i = 0; i < 200; ++i) {
      std::atomic<bool> ran_here{false};
      const auto first = group->all_reduce({at::ones({4})}, later);
      const auto with_callback = first->future()->then(
          [&, caller = std::this_thread::get_id()](c10::ivalue::Future&) {
            ran_here = std::this_thread::get_id() == caller;
            return c10::IValue();
          },
          c10::NoneType::get());
      const auto second = group->all_reduce({at::ones({4})}, later);
      second->wait();
      with_callback->wait();
      ASSERT_FALSE(ran_here) << "call " << i;
    }
  });
}

// Up to 128 KiB a list goes as one call.
TEST(Work, ListsOfTheSameLengthInAllButOtherTensorsAreADisagreement) {
  const std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>> lists{
      {{8}, {4, 4}}, {{3, 5}, {4, 4}}, {{4, 4}, {4, 4, 0}}};
  for (const auto& [mine, others] : lists) {
    for (const bool reduces : {true, false}) {
      test_support::run_ranks("threads", 2, [&](int rank, const std::shared_ptr<Store>& store) {
        const auto group = make_process_group("threads", store, rank, 2);
        Tensors tensors;
        for (const std::int64_t length : rank == 0 ? mine : others) tensors.push_back(at::ones({length}));
        EXPECT_THROW(reduces ? group->all_reduce(tensors)->wait() : group->broadcast(tensors)->wait(), MismatchError);
      });
    }
  }
}

TEST(Work, DefaultsNeedNothingButTheFuture) {
  const Future future = new_future();
  UserWork work(future);
  EXPECT_FALSE(work.is_completed());
  EXPECT_FALSE(work.is_success());
  EXPECT_EQ(work.exception(), nullptr);
  EXPECT_THROW(work.result(), InvalidArgument);
  const at::Tensor tensor = at::ones({2});
  future->markCompleted(list_of(tensor));
  EXPECT_TRUE(work.wait());
  EXPECT_TRUE(work.wait());  // twice is fine
  EXPECT_TRUE(work.wait(Milliseconds(1)));
  EXPECT_TRUE(work.is_success());
  ASSERT_EQ(work.result().size(), 1U);
  EXPECT_TRUE(work.result()[0].is_same(tensor));
  work.block_current_stream();
  EXPECT_THROW(work.source_rank(), UnsupportedError);
}

TEST(Work, WithoutAFutureSaysSo) {
  WaitingWork waiting;
  Work& work = waiting;
  EXPECT_THROW(work.future(), UnsupportedError);
  EXPECT_TRUE(work.wait());
}

TEST(Work, RethrowsTheVeryException) {
  const auto work = failed_work(std::make_exception_ptr(PeerError("rank 3 died", {3})));
  EXPECT_TRUE(work->is_completed());
  EXPECT_FALSE(work->is_success());
  for (int i = 0; i < 2; ++i) {
    try {
      work->wait();
      FAIL() << "wait() returned";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.peers(), std::vector<int>{3});
    }
  }
  EXPECT_THROW(work->result(), PeerError);
  EXPECT_THROW(std::rethrow_exception(work->exception()), PeerError);
  EXPECT_THROW(work->future()->value(), PeerError);
}

TEST(Work, TimedWaitLeavesTheCallGoing) {
  const Future future = new_future();
  const auto work = work_from_future(future);
  EXPECT_THROW(work->wait(Milliseconds(20)), TimeoutError);
  EXPECT_FALSE(work->is_completed());
  std::thread later([&] { future->markCompleted(list_of(at::ones({1}))); });
  EXPECT_TRUE(work->wait(std::chrono::minutes(2)));
  later.join();
}

std::size_t bytes_in_use() { return ::mallinfo2().uordblks; }

// Many threads, because a poll takes a millisecond.
void poll(Work& work, int polls) {
  constexpr int kThreads = 20;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int poll = 0; poll < polls / kThreads; ++poll) EXPECT_THROW(work.wait(Milliseconds(1)), TimeoutError);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Work, PollingWithATimeoutTakesNoMemory) {
  const Future future = new_future();
  const auto work = work_from_future(future);
  poll(*work, 100);
  const std::size_t before = bytes_in_use();
  poll(*work, 10000);
  EXPECT_LT(bytes_in_use(), before + 200'000);
  future->markCompleted(list_of(at::ones({1})));
  EXPECT_TRUE(work->wait(std::chrono::minutes(2)));
}

// The message of the TimeoutError of a wait of 20 ms.
std::string late(Work& work) {
  try {
    work.wait(Milliseconds(20));
  } catch (const TimeoutError& error) {
    std::string text = error.what();
    // Both ranks are in this process, so all groups of the name but the first have a number.
    if (const std::size_t number = text.find('#'); number != std::string::npos)
      text.erase(number, text.find_first_not_of("0123456789", number + 1) - number);
    return text;
  }
  return "wait() returned";
}

TEST(Work, ALateWaitSaysWhatItWaitsFor) {
  test_support::run_ranks("threads", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("threads", store, rank, 2);
    group->set_group_name("late");
    const at::Tensor sum = at::ones({2});
    if (rank == 0) {
      const auto reduction = group->all_reduce({sum});
      EXPECT_EQ(
          late(*reduction),
          "all_reduce (call 1 of group late) on rank 0 of 2: wait() has waited 20 ms, and the call has not ended; "
          "it goes on: wait again, or abort the group");
      // A call that is made of several, and an expanded tensor, which is reduced through a copy.
      at::Tensor output = at::zeros({4});
      const auto several = group->all_gather_into_tensor_coalesced({output}, {sum});
      EXPECT_NE(late(*several).find("all_gather_into_tensor (call 2 of group late) on rank 0 of 2: "),
                std::string::npos)
          << late(*several);
      const auto expanded = group->all_reduce({at::ones({1}).expand({3})});
      EXPECT_NE(late(*expanded).find("all_reduce (call 3 of group late) on rank 0 of 2: "), std::string::npos)
          << late(*expanded);
      const auto message = group->recv({output}, 1, 7);
      EXPECT_NE(late(*message).find("recv (group late, tag 7) on rank 0 of 2: "), std::string::npos) << late(*message);
      group->send({sum}, 1, 8)->wait();
      for (const auto& each : {reduction, several, expanded, message}) EXPECT_TRUE(each->wait());
      return;
    }
    group->recv({sum}, 0, 8)->wait();
    at::Tensor output = at::zeros({4});
    group->all_reduce({sum})->wait();
    group->all_gather_into_tensor_coalesced({output}, {sum})->wait();
    group->all_reduce({at::ones({1}).expand({3})})->wait();
    group->send({output}, 0, 7)->wait();
  });
}

// The thread that would end the call is not there.
TEST(Work, AForkedChildDoesNotWaitForWhatNobodyEnds) {
  const Future open = new_future();
  const auto under_way = work_from_future(open);
  const Future ended = new_future();
  ended->markCompleted(list_of(at::ones({1})));
  const auto done = work_from_future(ended);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    int refused = 0;
    for (const Milliseconds timeout : {Work::kNoTimeout, Milliseconds(1000)}) {
      try {
        under_way->wait(timeout);
      } catch (const InvalidArgument&) {
        ++refused;
      }
    }
    ::_exit(refused == 2 && done->wait() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  open->markCompleted(list_of(at::ones({1})));
  EXPECT_TRUE(under_way->wait());
}

TEST(Work, SeveralThreadsMayWait) {
  const Future future = new_future();
  const auto work = work_from_future(future);
  std::atomic<int> returned{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      work->wait(i % 2 == 0 ? Work::kNoTimeout : Milliseconds(std::chrono::minutes(2)));
      ++returned;
    });
  }
  future->markCompleted(list_of(at::ones({1})));
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(returned, 4);
}

TEST(Work, CompletedOnesHaveAFutureWhenAsked) {
  const at::Tensor tensor = at::ones({3});
  const auto work = completed_work({tensor});
  EXPECT_TRUE(work->wait());
  EXPECT_TRUE(work->future()->completed());
  EXPECT_EQ(work->future(), work->future());
  EXPECT_TRUE(work->future()->value().toTensorVector()[0].is_same(tensor));
  bool called = false;
  const Future next = work->future()->then(
      [&](c10::ivalue::Future&) {
        called = true;
        return c10::IValue(1);
      },
      c10::IntType::get());
  EXPECT_TRUE(called);
  EXPECT_TRUE(completed_future(tensor)->value().toTensor().is_same(tensor));
}

TEST(Work, ListsOfListsAreFlattenedInResult) {
  const auto work =
      internal::completed_work(internal::Outputs::lists({{at::ones({1}), at::ones({2})}, {at::ones({3})}}));
  EXPECT_EQ(work->result().size(), 3U);
  EXPECT_EQ(work->future()->value().toListRef().size(), 2U);
  EXPECT_EQ(UserWork(work->future()).result().size(), 3U);
}

TEST(Work, AfterAnotherRunsItsEndOnceAndNotAfterAnError) {
  int ends = 0;
  const Future future = new_future();
  const auto after = internal::work_after(
      work_from_future(future), [&] { ++ends; }, internal::Outputs::list({at::ones({1})}));
  EXPECT_FALSE(after->is_completed());
  future->markCompleted(list_of(at::ones({1})));
  EXPECT_TRUE(after->wait());
  EXPECT_EQ(ends, 1);

  const auto failed =
      internal::work_after(failed_work(std::make_exception_ptr(AbortedError("why"))), [&] { ++ends; }, {});
  EXPECT_THROW(failed->wait(), AbortedError);
  EXPECT_EQ(ends, 1);

  // A Work without a future is waited for.
  auto waiting = std::make_shared<WaitingWork>();
  EXPECT_TRUE(internal::work_after(waiting, [&] { ++ends; }, {})->is_completed());
  EXPECT_EQ(ends, 2);
  EXPECT_EQ(waiting->waits, 1);
}

TEST(Work, OfAllEndsWithTheLastAndFailsWithTheFirstError) {
  const Future one = new_future();
  const Future two = new_future();
  const auto all = internal::work_of_all({work_from_future(one), work_from_future(two), completed_work({})},
                                         internal::Outputs::list({at::ones({1})}));
  two->setError(std::make_exception_ptr(MismatchError("second")));
  EXPECT_FALSE(all->is_completed());
  one->setError(std::make_exception_ptr(AbortedError("first")));
  EXPECT_THROW(all->wait(), AbortedError);
  EXPECT_TRUE(internal::work_of_all({}, {})->is_success());
  EXPECT_TRUE(internal::work_of_all({completed_work({}), completed_work({})}, {})->is_success());
}

}  // namespace
}  // namespace gradwire::work_test
