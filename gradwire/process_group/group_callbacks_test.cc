// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The order of calls of groups over our own backends, and callbacks that call and wait.
#include <ATen/Functions.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "gradwire/process_group/groups_test_support.h"
#include "gradwire/process_group/parked_threads_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::groups_test::callbacks {
namespace {

TEST_P(Groups, WhatACallbackCallsKeepsItsPlaceInTheOrder) {
  if (!callbacks_may_wait()) return;
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    // The callback is there before the work can end, because the other rank starts only when told; so it runs where the
    // work ends, between the first and whatever else is called.
    at::Tensor a = number(1);
    at::Tensor b = number(2);
    at::Tensor go = at::zeros({1});
    if (group->rank() == 1) group->recv({go}, 0)->wait();
    const auto work = group->all_reduce({a});
    const Future chained = work->future()->then(
        [&](c10::ivalue::Future&) {
          a.add_(100);
          group->all_reduce({b})->wait();
          return c10::IValue(b);
        },
        c10::TensorType::get());
    if (group->rank() == 0) group->send({go}, 1)->wait();
    chained->waitAndThrow();
    EXPECT_EQ(number_of(a), 102);
    EXPECT_EQ(number_of(b), 4);
    group->barrier()->wait();
  });
}

// The future of each call is taken, so nobody but the worker runs them; and the worker runs the callback.
TEST_P(Groups, ACallbackMayWaitForCallsThatWereMadeBefore) {
  if (!callbacks_may_wait()) return;
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    at::Tensor a = number(1), b = number(2), c = number(3), d = number(4);
    at::Tensor go = at::zeros({1});
    if (group->rank() == 1) group->recv({go}, 0)->wait();
    const auto first = group->all_reduce({a});
    const auto second = group->all_reduce({b});
    const auto coalesced = group->all_gather_into_tensor_coalesced({at::zeros({2}, at::kDouble)}, {c});
    const auto expanded = group->all_reduce({d.expand({3})});
    const Future of_second = second->future();
    const Future chained = first->future()->then(
        [&](c10::ivalue::Future&) {
          second->wait();
          coalesced->wait();
          expanded->wait(kLong);
          return c10::IValue(b);
        },
        c10::TensorType::get());
    if (group->rank() == 0) group->send({go}, 1)->wait();
    chained->waitAndThrow();
    EXPECT_EQ(number_of(b), 4);
    EXPECT_EQ(number_of(d), 8);
    group->barrier()->wait();
  });
}

// Calls that copy their input, whoever runs them, read what the calls before them wrote.
TEST_P(Groups, ACallReadsWhatTheCallsBeforeItWrote) {
  on_ranks(2, [this](const std::shared_ptr<ProcessGroup>& group) {
    const auto parts_of = [](const at::Tensor& tensor) { return tensor.chunk(2); };
    for (int round = 0; round < 20; ++round) {
      std::vector<std::shared_ptr<Work>> works;
      at::Tensor gathered = at::ones({4}), reduced = at::zeros({2});
      works.push_back(group->all_reduce({gathered}));
      works.push_back(group->reduce_scatter({reduced}, {parts_of(gathered)}));
      at::Tensor exchanged = at::ones({4});
      works.push_back(group->all_reduce({exchanged}));
      works.push_back(group->all_to_all_single(exchanged, exchanged, {}, {}));
      at::Tensor listed = at::ones({4}), received = at::zeros({4});
      works.push_back(group->all_reduce({listed}));
      works.push_back(group->all_to_all(parts_of(received), parts_of(listed)));
      at::Tensor strided = at::ones({3, 4}).t();
      works.push_back(group->all_reduce({strided}));
      works.push_back(group->all_reduce({strided}));
      at::Tensor one = at::ones({1});
      // An engine of c10d writes the result of an expanded tensor back on a thread of its own.
      if (callbacks_may_wait()) works.push_back(group->all_reduce({one.expand({5})}));
      works.push_back(group->all_reduce({one.expand({5})}));
      for (const auto& work : works) work->wait();
      EXPECT_TRUE(at::equal(reduced, at::full({2}, 4.))) << reduced;
      EXPECT_TRUE(at::equal(exchanged, at::full({4}, 2.))) << exchanged;
      EXPECT_TRUE(at::equal(received, at::full({4}, 2.))) << received;
      EXPECT_TRUE(at::equal(strided, at::full({4, 3}, 4.))) << strided;
      EXPECT_EQ(one.item<float>(), callbacks_may_wait() ? 4 : 2);
    }
  });
}

// A call of a hybrid group waits for calls of the groups below it, and no other call may begin within it.
TEST_P(Groups, SeveralCallsUnderWayEndOneAfterTheOther) {
  on_ranks(4, [](const std::shared_ptr<ProcessGroup>& group) {
    for (int round = 0; round < 5; ++round) {
      Tensors tensors;
      std::vector<std::shared_ptr<Work>> works;
      for (int call = 0; call < 6; ++call) {
        tensors.push_back(at::full({call % 2 == 0 ? 1000 : 300'000}, static_cast<float>(call + 1)));
        works.push_back(group->all_reduce({tensors.back()}));
      }
      for (const auto& work : works) work->wait();
      for (int call = 0; call < 6; ++call)
        EXPECT_TRUE(tensors[static_cast<std::size_t>(call)].eq(4 * (call + 1)).all().item<bool>()) << "call " << call;
    }
  });
}

// Rank 0's callback waits for another group's call. Its own group's next call needs rank 1, which waits for what the
// callback does then.
TEST_P(Groups, ACallbackThatWaitsForAnotherGroupDoesNotBeginTheNextCall) {
  if (!callbacks_may_wait()) return;
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const std::shared_ptr<ProcessGroup> other = group->dup();
    const at::Tensor a = number(1), b = number(2), f = number(3), go = number(0);
    if (group->rank() == 0) {
      const auto of_other = other->all_reduce({f});
      const auto first = group->all_reduce({a});
      const Future chained = first->future()->then(
          [&](c10::ivalue::Future&) {
            of_other->wait();
            other->send({go}, 1)->wait();
            return c10::IValue(1);
          },
          c10::IntType::get());
      const auto second = group->all_reduce({b});
      chained->waitAndThrow();
      second->wait();
    } else {
      group->all_reduce({a})->wait();
      other->all_reduce({f})->wait();
      other->recv({go}, 0)->wait();
      group->all_reduce({b})->wait();
    }
    EXPECT_EQ(number_of(b), 4);
    group->barrier()->wait();
  });
}

// The result of the first is written back by a callback.
TEST_P(Groups, AnExpandedTensorMayBeReducedAgainAtOnce) {
  if (!callbacks_may_wait()) return;
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    for (int round = 0; round < 1000; ++round) {
      const at::Tensor one = at::ones({1});
      const auto first = group->all_reduce({one.expand({5})});
      const auto second = group->all_reduce({one.expand({5})});
      second->wait();
      first->wait();
      ASSERT_EQ(one.item<float>(), 4) << "round " << round;
    }
  });
}

// What a callback does may need what the waiting thread holds.
TEST_P(Groups, WaitingRunsNobodysCallback) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor mine = number(1);
    const at::Tensor go = number(0);
    if (group->rank() == 1) group->recv({go}, 0)->wait();
    const auto work = group->all_reduce({mine});
    std::atomic<std::thread::id> where;
    std::promise<void> ran;
    work->future()->addCallback(
        [&](c10::ivalue::Future&) {
          where = std::this_thread::get_id();
          ran.set_value();
        },
        /*uses_future=*/false);
    if (group->rank() == 0) group->send({go}, 1)->wait();
    work->wait();
    ran.get_future().wait();
    if (group->rank() == 0) {
      EXPECT_NE(where.load(), std::this_thread::get_id());
    }
    EXPECT_EQ(number_of(mine), 2);
  });
}

// Calls run with the state of their caller, whoever runs them: here writing the result back is no part of a graph.
TEST_P(Groups, ResultsAreWrittenIntoLeavesInWhateverModeSomebodyWaits) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    for (int i = 0; i < 50; ++i) {
      const at::Tensor leaf = at::ones({3, 2}).t().set_requires_grad(true);
      const auto work = group->all_reduce({leaf});
      work->wait();
      EXPECT_TRUE(at::equal(leaf.detach(), at::full({2, 3}, 2.)));
      EXPECT_TRUE(leaf.is_leaf());
    }
    at::Tensor inference;
    std::shared_ptr<Work> work;
    {
      const c10::InferenceMode within;
      inference = at::ones({3, 2}).t();
      work = group->all_reduce({inference});
    }
    work->wait();
    EXPECT_TRUE(at::equal(inference, at::full({2, 3}, 2.)));
  });
}

TEST_P(Groups, ACallbackMayDropTheLastReferenceToTheGroup) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    std::shared_ptr<ProcessGroup> copy = group->dup();
    at::Tensor tensor = number(1);
    std::shared_ptr<Work> work = copy->all_reduce({tensor});
    const Future chained = work->future()->then(
        [&](c10::ivalue::Future&) {
          // Whoever runs this may be the group's own worker.
          work.reset();
          copy.reset();
          return c10::IValue(1);
        },
        c10::IntType::get());
    chained->waitAndThrow();
    EXPECT_EQ(number_of(tensor), 2);
    group->barrier()->wait();
    internal::join_parked_threads();
  });
}

// On a thread of the library's, and on one that waits.
TEST_P(Groups, ACallbackThatThrowsEndsNeitherAThreadNorAWait) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const int peer = 1 - group->rank();
    const auto add_throwing_callback = [](Work& work) {
      try {
        work.future()->addCallback([](c10::ivalue::Future&) { throw std::runtime_error("of a callback"); },
                                   /*uses_future=*/false);
      } catch (const std::runtime_error&) {
        // The future had completed, and runs the callback at once.
      }
    };
    for (int round = 0; round < 2; ++round) {
      at::Tensor got = number(0);
      const auto sent = group->send({number(7 + round)}, peer, 1);
      const auto received = group->recv({got}, peer, 1);
      add_throwing_callback(*received);
      EXPECT_TRUE(received->wait());
      EXPECT_EQ(number_of(got), 7 + round);
      sent->wait();
      const auto reduced = group->all_reduce({got});
      add_throwing_callback(*reduced);
      EXPECT_TRUE(reduced->wait());
      EXPECT_EQ(number_of(got), 14 + 2 * round);
    }
  });
}

}  // namespace
}  // namespace gradwire::groups_test::callbacks
