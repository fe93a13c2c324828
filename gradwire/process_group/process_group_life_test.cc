// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Callbacks, messages, lanes, ends and errors of groups over our own backends: what the conformance suite
// (gradwire/testing) does not ask of every group.
#include <ATen/Functions.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <future>
#include <optional>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/duplicate_list_internal.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/lane_scope.h"
#include "gradwire/process_group/parked_threads_internal.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "tests/support/named_group.h"
#include "tests/support/ranks.h"

namespace gradwire::process_group_life_test {
namespace {

using test_support::engine_of;
using test_support::make_named_group;
using test_support::run_ranks;

constexpr Milliseconds kLong = std::chrono::minutes(2);

AllReduceOptions at_once() {
  AllReduceOptions options;
  options.async = false;
  return options;
}

at::Tensor number(double value) { return at::full({1}, value, at::kDouble); }

double number_of(const at::Tensor& tensor) { return tensor.item<double>(); }

class Groups : public ::testing::TestWithParam<std::string> {
 protected:
  void on_ranks(int world, const std::function<void(const std::shared_ptr<ProcessGroup>& group)>& body) {
    run_ranks(engine_of(GetParam()), world, [&](int rank, const std::shared_ptr<Store>& store) {
      const auto group = make_named_group(GetParam(), store, rank, world, kLong);
      group->set_group_name("test");
      body(group);
    });
  }

  // What docs/backends.md denies an engine of c10d.
  bool callbacks_may_wait() const { return GetParam() == "threads" || GetParam() == "shm"; }
  bool sees_mismatches() const { return GetParam() != "gloo"; }
  bool sends_are_buffered() const { return GetParam() != "gloo"; }
  bool carries_tags() const { return callbacks_may_wait(); }
};

// Twelve floats a rank. What all ranks send together does not depend on who is the root.
TEST_P(Groups, PayloadIsWhatTheTextbookAlgorithmsSend) {
  on_ranks(3, [](const std::shared_ptr<ProcessGroup>& shared) {
    ProcessGroup& group = *shared;
    const auto ranks = static_cast<std::uint64_t>(group.size());
    const auto payload_of = [&](const auto& call) {
      const std::uint64_t before = group.payload_bytes();
      call()->wait();
      return group.payload_bytes() - before;
    };
    at::Tensor one = at::ones({12});
    at::Tensor all = at::ones({12 * group.size()});
    const std::uint64_t others = ranks - 1;
    EXPECT_EQ(payload_of([&] { return group.all_reduce({one}); }), 2 * others * 48 / ranks);
    EXPECT_EQ(payload_of([&] { return group.all_gather_into_tensor(all, one); }), others * 48);
    EXPECT_EQ(payload_of([&] { return group.reduce_scatter_tensor(one, all); }), others * 48);
    EXPECT_EQ(payload_of([&] { return group.all_to_all_single(all, at::ones({12 * group.size()})); }), others * 48);
    EXPECT_EQ(payload_of([&] { return group.broadcast({one}); }), group.rank() == 0 ? others * 48 : 0);
    EXPECT_EQ(payload_of([&] { return group.reduce({one}); }), group.rank() == 0 ? 0U : 48U);
    EXPECT_EQ(payload_of([&] { return group.barrier(); }), 0U);
  });
}

TEST_P(Groups, MemoryFromAllocateOutlivesTheGroup) {
  run_ranks(engine_of(GetParam()), 3, [](int rank, const std::shared_ptr<Store>& store) {
    at::Tensor tensor;
    {
      const auto group = make_named_group(GetParam(), store, rank, 3);
      tensor = group->allocate(1000, at::kBFloat16);
      EXPECT_EQ(tensor.count_nonzero().item<std::int64_t>(), 0);
      tensor.fill_(rank + 1);
      group->all_reduce({tensor})->wait();
      group->shutdown();
    }
    EXPECT_TRUE(at::equal(tensor, at::full({1000}, 6, at::kBFloat16)));
    tensor.fill_(1);
  });
}

TEST_P(Groups, SymmetricMemoryIsTheOtherRanksOrNobodys) {
  on_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor whole = group->allocate(1000, at::kFloat);
    const at::Tensor part = whole.narrow(0, 301, 60).view({6, 10});
    const std::shared_ptr<ProcessGroup> duplicate = group->dup();
    const Tensors everywhere = (duplicate != nullptr ? duplicate : group)->symmetric_memory(part);
    at::Tensor have = at::full({1}, everywhere.empty() ? 0 : 1);
    group->all_reduce({have})->wait();
    EXPECT_TRUE(have.item<double>() == 0 || have.item<double>() == group->size());
    EXPECT_TRUE(group->symmetric_memory(at::zeros({5})).empty());
    EXPECT_THROW(group->symmetric_memory(part.t()), InvalidArgument);
    EXPECT_THROW(group->symmetric_memory(at::Tensor()), InvalidArgument);
    const bool shares = GetParam() == "shm" || GetParam() == "threads";
    EXPECT_EQ(!everywhere.empty(), shares);
    if (!shares) return;
    ASSERT_EQ(everywhere.size(), 3U);
    EXPECT_EQ(everywhere[static_cast<std::size_t>(group->rank())].const_data_ptr(), part.const_data_ptr());
    for (const at::Tensor& view : everywhere) view[group->rank()].fill_(group->rank() + 1);
    group->barrier()->wait();
    for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(part[rank].eq(rank + 1).all().item<bool>());
    EXPECT_EQ(whole.count_nonzero().item<std::int64_t>(), 30);
    group->barrier()->wait();
  });
}

TEST_P(Groups, TypesThatAreNotReducedTravelToo) {
  on_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor shorts = at::full({7}, group->rank() + 5, at::kShort);
    group->broadcast({shorts})->wait();
    EXPECT_TRUE(at::equal(shorts, at::full({7}, 5, at::kShort)));
  });
}

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

// Not only with the next call. The end of a call may come before its group lets go.
TEST_P(Groups, ACallThatHasEndedLetsGoOfItsTensors) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    std::vector<float> memory(12, 1);
    std::promise<void> freed;
    {
      const at::Tensor tensor = at::from_blob(memory.data(), {12}, [&](void*) { freed.set_value(); });
      group->all_reduce({tensor})->wait();
    }
    EXPECT_EQ(freed.get_future().wait_for(kLong), std::future_status::ready);
    group->barrier()->wait();
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

// A fork copies a mutex as it is, and the thread that holds the mutex does not exist in the child.
TEST_P(Groups, AForkedChildLetsGoOfAGroupThatAnotherThreadUses) {
  on_ranks(1, [](const std::shared_ptr<ProcessGroup>& outside) {
    std::shared_ptr<ProcessGroup> group = outside->dup();
    ASSERT_NE(group, nullptr);
    std::atomic<bool> stop{false};
    std::thread user([&stop, &used = *group] {
      while (!stop) static_cast<void>(is_open(used));
    });
    int hung = 0;
    for (int i = 0; i < 60 && hung == 0; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(20);
        group.reset();
        ::_exit(0);
      }
      int status = 0;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      if (status != 0) ++hung;
    }
    stop = true;
    user.join();
    EXPECT_EQ(hung, 0);
  });
}

TEST_P(Groups, AWorkKeepsItsGroupAlive) {
  run_ranks(engine_of(GetParam()), 2, [](int rank, const std::shared_ptr<Store>& store) {
    auto group = make_named_group(GetParam(), store, rank, 2, kLong);
    at::Tensor tensor = number(3);
    const auto work = group->all_reduce({tensor});
    const std::weak_ptr<ProcessGroup> seen = group;
    group.reset();
    EXPECT_TRUE(work->wait());
    EXPECT_EQ(number_of(tensor), 6);
    EXPECT_FALSE(seen.expired());
  });
}

TEST_P(Groups, AGroupThatIsLetGoWithWorkUnderWayFailsIt) {
  run_ranks(engine_of(GetParam()), 2, [](int rank, const std::shared_ptr<Store>& store) {
    auto group = make_named_group(GetParam(), store, rank, 2, kLong);
    at::Tensor tensor = number(3);
    const std::string met = "met";
    if (rank == 0) {
      const Future under_way = group->all_reduce({tensor})->future();
      const Future queued = group->all_reduce({tensor})->future();
      group.reset();  // rank 1 never calls
      EXPECT_THROW(under_way->waitAndThrow(), AbortedError);
      EXPECT_THROW(queued->waitAndThrow(), AbortedError);
      store->set(met, "1");
    } else {
      store->wait(std::span(&met, 1), kLong);
    }
  });
}

TEST_P(Groups, AGroupThatIsLetGoAfterItsWorkEndedHasOnlyLeft) {
  run_ranks(engine_of(GetParam()), 2, [](int rank, const std::shared_ptr<Store>& store) {
    auto group = make_named_group(GetParam(), store, rank, 2, kLong);
    at::Tensor tensor = number(3);
    group->all_reduce({tensor})->wait();
    EXPECT_EQ(number_of(tensor), 6);
    const std::string left = "left";
    if (rank == 0) {
      group.reset();
      store->set(left, "1");
      return;
    }
    store->wait(std::span(&left, 1), kLong);
    try {
      group->all_reduce({tensor})->wait();
      ADD_FAILURE() << "rank 0 has left";
    } catch (const PeerError& error) {
      EXPECT_EQ(std::string(error.what()).find("under way"), std::string::npos) << error.what();
    }
  });
}

TEST_P(Groups, ShutdownFinishesAndThenRefuses) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    at::Tensor tensor = number(1);
    const Future future = group->all_reduce({tensor})->future();
    group->shutdown();
    EXPECT_TRUE(future->completed());
    EXPECT_EQ(number_of(tensor), 2);
    EXPECT_THROW(group->all_reduce({tensor}), InvalidArgument);
    EXPECT_THROW(group->dup(), InvalidArgument);
    EXPECT_THROW(group->send({tensor}, 1 - group->rank()), InvalidArgument);
    group->shutdown();
    group->abort("nothing is left to abort");
    EXPECT_EQ(group->size(), 2);
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

TEST_P(Groups, AFactorThatIsNanGivesNanOnAllRanks) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    AllReduceOptions options;
    options.op = ReduceOp::premul_sum(std::nan(""));
    const at::Tensor tensor = at::ones({3});
    group->all_reduce({tensor}, options)->wait();
    EXPECT_TRUE(tensor.isnan().all().item<bool>()) << tensor;
    group->barrier()->wait();
  });
}

TEST_P(Groups, MoreMemoryThanThereIsAnywhereIsRefused) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_THROW(group->allocate(std::int64_t{1} << 61, at::kDouble), InvalidArgument);
    EXPECT_THROW(group->allocate(std::int64_t{1} << 60, at::kFloat), InvalidArgument);
    group->barrier()->wait();
  });
}

// Lets one rank wait until another has come somewhere, without a message of the group under test.
class Signpost {
 public:
  Signpost(std::shared_ptr<Store> store, std::string name) : store_(std::move(store)), name_(std::move(name)) {}
  void reach() { store_->set(name_, "1"); }
  void await() { store_->wait(std::span(&name_, 1), kLong); }

 private:
  std::shared_ptr<Store> store_;
  std::string name_;
};

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

TEST_P(Groups, AbortEndsWaitingCallsAndEveryLaterOneWithItsReason) {
  run_ranks(engine_of(GetParam()), 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_named_group(GetParam(), store, rank, 2, kLong);
    const auto copy = group->dup();
    Signpost aborted(store, "aborted");
    at::Tensor tensor = number(1);
    if (rank == 0) {
      const auto waiting = group->all_reduce({tensor});
      const auto on_copy = copy->all_reduce({tensor});
      const auto message = group->recv({tensor}, 1);
      group->abort("the test wants it");
      aborted.reach();
      for (const auto& work : {waiting, on_copy, message}) {
        try {
          work->wait();
          ADD_FAILURE() << "wait() returned after abort()";
        } catch (const AbortedError& error) {
          EXPECT_NE(std::string(error.what()).find("the test wants it"), std::string::npos) << error.what();
        }
      }
      EXPECT_THROW(group->all_reduce({tensor})->wait(), AbortedError);
      EXPECT_THROW(group->all_reduce({tensor}, at_once())->wait(), AbortedError);
      EXPECT_THROW(group->allocate(5, at::kFloat), AbortedError);
    } else {
      aborted.await();
      // The other's part of the first call may have come before it aborted.
      const auto call_twice = [&](ProcessGroup& called) {
        for (int call = 0; call < 2; ++call) called.all_reduce({tensor})->wait();
      };
      EXPECT_THROW(call_twice(*group), PeerError);
      EXPECT_THROW(call_twice(*copy), PeerError);
      EXPECT_THROW(group->barrier()->wait(), PeerError);  // the first reason stays
    }
  });
}

TEST_P(Groups, ADeadlineCountsFromTheCall) {
  run_ranks(engine_of(GetParam()), 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_named_group(GetParam(), store, rank, 2, kLong);
    Signpost over(store, "over");
    if (rank == 1) return over.await();
    at::Tensor tensor = number(1);
    AllReduceOptions options;
    options.timeout = Milliseconds(100);
    const auto first = group->all_reduce({tensor}, options);
    const auto queued = group->all_reduce({tensor}, options);
    EXPECT_THROW(first->wait(), TimeoutError);
    EXPECT_THROW(queued->wait(), TimeoutError);  // the group's first reason
    over.reach();
  });
}

TEST_P(Groups, LanesLeadToDuplicatesAndRunAtOnce) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto copy = group->dup();
    const auto other = group->dup();
    const std::vector<LaneScope::Route> routes{{group, copy}};
    // Without a lane a call that the others have not made yet does not end; on the lane of another thread it goes by
    // the duplicate.
    at::Tensor held = number(1);
    std::shared_ptr<Work> on_group;
    if (group->rank() == 0) on_group = group->all_reduce({held});
    {
      const LaneScope lane(routes, CallTag{3, 7, 0});
      EXPECT_EQ(LaneScope::current(), &lane);
      at::Tensor tensor = number(1);
      const auto work = group->all_reduce({tensor});
      EXPECT_TRUE(work->is_completed());
      EXPECT_EQ(number_of(tensor), 2);
      std::thread::id where;
      const Future chained = work->future()->then(
          [&](c10::ivalue::Future&) {
            where = std::this_thread::get_id();
            group->all_reduce({tensor})->wait();
            return c10::IValue(1);
          },
          c10::IntType::get());
      EXPECT_TRUE(chained->completed());
      EXPECT_EQ(where, std::this_thread::get_id());
      EXPECT_EQ(number_of(tensor), 4);
      EXPECT_TRUE(copy->all_reduce({tensor})->is_completed());
      EXPECT_THROW(other->all_reduce({tensor}), InvalidArgument);
      {
        const std::vector<LaneScope::Route> inner_routes{{other, other}};
        const LaneScope inner(inner_routes);
        EXPECT_TRUE(other->all_reduce({tensor})->is_completed());
        EXPECT_THROW(group->all_reduce({tensor}), InvalidArgument);
      }
      EXPECT_EQ(LaneScope::current(), &lane);
    }
    EXPECT_EQ(LaneScope::current(), nullptr);
    if (group->rank() == 1) on_group = group->all_reduce({held});
    on_group->wait();
    EXPECT_EQ(number_of(held), 2);
  });
}

TEST_P(Groups, LanesCountTheStagesOfABucket) {
  if (!carries_tags()) return;
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const std::vector<LaneScope::Route> routes{{group, group}};
    LaneScope lane(routes, CallTag{1, 2, 0});
    at::Tensor tensor = number(1);
    if (group->rank() == 1) {
      EXPECT_EQ(lane.next_tag().stage, 0);  // as if this rank had made one call more
    }
    const auto work = group->all_reduce({tensor});
    EXPECT_TRUE(work->is_completed());
    EXPECT_THROW(work->wait(), MismatchError);
  });
}

TEST_P(Groups, AForkedChildIsRefusedAndTearsNothingDown) {
  on_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    auto copy = group->dup();
    at::Tensor tensor = number(1);
    group->all_reduce({tensor})->wait();  // the worker runs, and the child has none
    const auto work = group->all_reduce({tensor});
    const pid_t child = ::fork();
    if (child == 0) {
      int wrong = 0;
      try {
        copy->all_reduce({tensor});
        wrong |= 1;
      } catch (const InvalidArgument&) {
      }
      try {
        group->send({tensor}, 1 - group->rank());
        wrong |= 2;
      } catch (const InvalidArgument&) {
      }
      copy->abort("from the child");
      copy.reset();
      ::_exit(wrong);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    work->wait();
    copy->all_reduce({tensor})->wait();
    EXPECT_EQ(number_of(tensor), 8);
  });
}

TEST(DuplicateList, AbortsThoseThatLiveAndThoseThatComeLater) {
  const auto group = [] {
    return make_process_group("threads", std::make_shared<HashStore>(), /*rank=*/0, /*size=*/1, kLong);
  };
  const auto early = group();
  const auto late = group();
  const auto released = group();
  internal::DuplicateList duplicates;
  duplicates.add(released);
  duplicates.release(*released);
  duplicates.add(early);
  duplicates.add(group());  // gone already
  duplicates.abort_all(*released, "the end");
  duplicates.add(late);
  EXPECT_THROW(early->all_reduce({number(1)})->wait(), AbortedError);
  EXPECT_THROW(late->all_reduce({number(1)})->wait(), AbortedError);
  released->all_reduce({number(1)})->wait();
}

INSTANTIATE_TEST_SUITE_P(Backends, Groups, ::testing::ValuesIn(test_support::named_groups()), test_support::name_case);

}  // namespace
}  // namespace gradwire::process_group_life_test
