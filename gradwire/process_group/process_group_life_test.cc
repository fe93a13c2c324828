// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory, lanes, ends and forks of groups over our own backends: what the conformance suite (gradwire/testing) does not
// ask of every group.
#include <ATen/Functions.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <future>
#include <thread>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/duplicate_list_internal.h"
#include "gradwire/process_group/groups_test_support.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/lane_scope.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::groups_test::ends {
namespace {

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
}  // namespace gradwire::groups_test::ends
