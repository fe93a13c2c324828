// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Messages and monitored barriers of groups over our own backends.
#include <ATen/Functions.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/process_group/groups_test_support.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::groups_test::messages {
namespace {

// The Work of a send is held, and nobody waits for it.
TEST_P(Groups, ShutdownWaitsForSendsWhoseWorksAreHeld) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& outside) {
    const std::shared_ptr<ProcessGroup> group = outside->dup();
    const at::Tensor large = at::full({1 << 21}, 7.);
    if (group->rank() == 0) {
      const auto work = group->send({large}, 1);
      outside->barrier()->wait();
      group->shutdown();
      EXPECT_TRUE(work->is_completed());
      EXPECT_NO_THROW(work->wait());
      outside->barrier()->wait();
    } else {
      const at::Tensor received = at::zeros_like(large);
      outside->barrier()->wait();
      group->recv({received}, 0)->wait();
      EXPECT_TRUE(received.equal(large));
      outside->barrier()->wait();
    }
  });
}

TEST_P(Groups, FuturesOfMessagesCompleteByThemselves) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const int peer = 1 - group->rank();
    at::Tensor question = number(0);
    at::Tensor answer = number(0);
    // Rank 0 asks; the callback of rank 1 answers; the receive of the answer was posted first, so it must not hold the
    // other up.
    if (group->rank() == 0) {
      const Future got = group->recv({answer}, peer, 2)->future();
      group->send({number(20)}, peer, 1);
      got->waitAndThrow();
      EXPECT_EQ(number_of(answer), 21);
    } else {
      const Future never_first = group->recv({answer}, peer, 3)->future();
      const Future got = group->recv({question}, peer, 1)
                             ->future()
                             ->then(
                                 [&](c10::ivalue::Future&) {
                                   group->send({question.add(1)}, peer, 2)->wait();
                                   return c10::IValue(1);
                                 },
                                 c10::IntType::get());
      got->waitAndThrow();
      EXPECT_FALSE(never_first->completed());
      group->send({number(0)}, 0, 4)->wait();
      never_first->waitAndThrow();
    }
    if (group->rank() == 0) {
      at::Tensor told = number(1);
      group->recv({told}, peer, 4)->wait();
      group->send({told}, peer, 3)->wait();
    }
    group->shutdown();
  });
}

TEST_P(Groups, ACallbackOfAMessageMayShutTheGroupDownWhileAnotherThreadDoes) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& shared) {
    const std::shared_ptr<ProcessGroup> group = shared->dup();
    if (group == nullptr) return;
    if (group->rank() == 0) {
      group->send({number(1)}, 1)->wait();
      shared->barrier()->wait();
      group->shutdown();
      return;
    }
    at::Tensor got = number(0);
    std::atomic<bool> begun{false};
    std::atomic<bool> is_ending{false};
    std::thread other([&] {
      while (!begun) std::this_thread::yield();
      is_ending = true;
      group->shutdown();
    });
    // On the thread that watches messages, or here where the message has come already.
    const Future called = group->recv({got}, 0)->future()->then(
        [&](c10::ivalue::Future&) {
          begun = true;
          while (!is_ending) std::this_thread::yield();
          group->shutdown();
          group->shutdown();
          return c10::IValue(1);
        },
        c10::IntType::get());
    called->waitAndThrow();
    other.join();
    shared->barrier()->wait();
  });
}

TEST_P(Groups, AMessageOfAnotherLengthIsAMismatch) {
  if (!sees_mismatches()) return;
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    if (group->rank() == 0) {
      for (const std::int64_t count : {3, 5}) group->send({at::ones({count})}, 1)->wait(kLong);
    } else {
      at::Tensor four = at::zeros({4});
      EXPECT_THROW(group->recv({four}, 0)->wait(), MismatchError);
      const auto second = group->recv({four}, 0);
      EXPECT_THROW(second->future()->waitAndThrow(), MismatchError);
      EXPECT_FALSE(second->is_success());
    }
    group->barrier()->wait();
  });
}

TEST_P(Groups, ATimedWaitForAMessageLeavesItGoing) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    at::Tensor tensor = number(group->rank() + 1);
    if (group->rank() == 1) {
      const auto work = group->recv({tensor}, 0);
      EXPECT_THROW(work->wait(Milliseconds(30)), TimeoutError);
      EXPECT_FALSE(work->is_completed());
      group->barrier()->wait();
      EXPECT_TRUE(work->wait());
      EXPECT_EQ(number_of(tensor), 1);
    } else {
      group->barrier()->wait();
      group->send({tensor}, 1)->wait();
    }
    group->barrier()->wait();
  });
}

TEST_P(Groups, MonitoredBarrierNamesWhoIsMissing) {
  on_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    group->monitored_barrier(kLong);
    if (group->rank() == 0) {
      try {
        group->monitored_barrier(Milliseconds(50), true);
        ADD_FAILURE() << "rank 2 was not there";
      } catch (const TimeoutError& error) {
        EXPECT_NE(std::find(error.peers().begin(), error.peers().end(), 2), error.peers().end()) << error.what();
      }
    } else if (group->rank() == 1) {
      try {
        group->monitored_barrier(Milliseconds(100), true);
        ADD_FAILURE() << "rank 2 was not there";
      } catch (const TimeoutError& error) {  // rank 0 has told
        EXPECT_NE(std::find(error.peers().begin(), error.peers().end(), 2), error.peers().end()) << error.what();
      }
    }
    group->barrier()->wait();
    // What came late for the one that failed does not count for the next.
    if (group->rank() == 2) {
      EXPECT_THROW(group->monitored_barrier(Milliseconds(30)), TimeoutError);
    }
    group->barrier()->wait();
    group->monitored_barrier(kLong);
  });
}

// Whoever aborts, the rank that waits or the one for which it waits.
TEST_P(Groups, AMonitoredBarrierEndsWhenItsGroupIsAborted) {
  for (const int aborts : {0, 1}) {
    on_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      group->barrier()->wait();
      std::thread other;
      if (group->rank() == aborts) {
        other = std::thread([&] {
          // Before the barrier or within, as it comes: the end is the same.
          std::this_thread::yield();
          group->abort("enough");
        });
      }
      if (group->rank() == 1) {
        const auto begin = std::chrono::steady_clock::now();
        try {
          group->monitored_barrier(kLong);
          ADD_FAILURE() << "rank 0 was not there";
        } catch (const AbortedError& error) {
          EXPECT_EQ(aborts, 1) << error.what();
        } catch (const PeerError& error) {
          if (aborts == 0) {
            EXPECT_EQ(error.peers(), std::vector<int>{0}) << error.what();
          } else {
            // Over hybrid rank 0 may tell of this rank's abort() before all parts of the group here are aborted.
            EXPECT_NE(std::string(error.what()).find("enough"), std::string::npos) << error.what();
          }
        }
        EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong / 2);
      } else if (aborts == 1) {
        EXPECT_THROW(group->barrier()->wait(), PeerError);  // this rank is not gone
      }
      if (other.joinable()) other.join();
    });
  }
}

// The barrier's own time limit counts, not that of the group.
TEST_P(Groups, AMonitoredBarrierMayWaitLongerThanTheGroup) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    group->barrier()->wait();
    group->set_timeout(Milliseconds(300));
    if (group->rank() == 1) {
      const Deadline late = Deadline::after(Milliseconds(800));
      while (!late.expired()) std::this_thread::yield();
    }
    EXPECT_NO_THROW(group->monitored_barrier(kLong));
    group->set_timeout(kLong);
    group->barrier()->wait();
  });
}

TEST_P(Groups, AReceiveThatHasEndedLiesInTheTensor) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor sent = at::arange(6, at::kFloat).view({2, 3});
    if (group->rank() == 0) {
      group->send({sent}, 1)->wait();
    } else {
      at::Tensor transposed = at::zeros({3, 2});
      const std::shared_ptr<Work> work = group->recv({transposed.t()}, 0);
      while (!work->is_completed()) std::this_thread::yield();
      EXPECT_TRUE(at::equal(transposed.t(), sent)) << transposed;
    }
    group->barrier()->wait();
  });
}

// What the barrier waited for in vain is waited for no longer.
TEST_P(Groups, AGroupEndsSoonAfterAMonitoredBarrierToWhichARankDidNotCome) {
  run_ranks(engine_of(GetParam()), 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_named_group(GetParam(), store, rank, 2, kLong);
    Signpost ended(store, "ended");
    if (rank == 0) {
      EXPECT_THROW(group->monitored_barrier(Milliseconds(50)), TimeoutError);
      const Deadline soon = Deadline::after(kLong / 2);
      group->shutdown();
      EXPECT_FALSE(soon.expired());
      ended.reach();
    } else {
      ended.await();
      group->shutdown();
    }
  });
}

}  // namespace
}  // namespace gradwire::groups_test::messages
