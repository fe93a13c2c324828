// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Every call of a hybrid group gives what a flat group gives, whichever ranks share a host, and sends between hosts no
// more than its header says. Hosts are parts of one group of threads here.
#include "gradwire/process_group/hybrid/hybrid_group.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/jit_type.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "gradwire/backend/ucx/ucx_backend.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/backend_names.h"
#include "gradwire/process_group/c10d/gloo_internal.h"
#include "gradwire/process_group/call_group.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/hybrid/make_hybrid_internal.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/make_group_internal.h"
#include "gradwire/process_group/parked_threads_internal.h"
#include "tests/support/ranks.h"

namespace gradwire::hybrid_group_test {
namespace {

using test_support::run_ranks;

constexpr Milliseconds kLong = std::chrono::minutes(2);
constexpr std::int64_t kManyPieces = 4'500'001;  // float32: four pieces of an all-reduce and a bit

// Which host each rank is on, as a name: "0011".
class Hybrid : public ::testing::TestWithParam<const char*> {
 protected:
  static int world() { return static_cast<int>(std::string(GetParam()).size()); }
  static int host_of(int rank) { return std::string(GetParam())[static_cast<std::size_t>(rank)] - '0'; }

  struct Groups {
    std::shared_ptr<ProcessGroup> flat;      // the oracle
    std::shared_ptr<ProcessGroup> everyone;  // what crosses hosts
    std::shared_ptr<HybridGroup> hybrid;
  };
  static Groups make(int rank, const std::shared_ptr<Store>& store) {
    Groups groups;
    groups.flat = make_process_group("threads", store, rank, world(), kLong);
    groups.everyone = groups.flat->dup();
    groups.hybrid = HybridGroup::make(groups.everyone, groups.flat->split(host_of(rank)));
    return groups;
  }
  static void after_an_error_every_call_fails_with_it(std::int64_t count);
  static void on_ranks(const std::function<void(const Groups& groups)>& body) {
    run_ranks("threads", world(), [&](int rank, const std::shared_ptr<Store>& store) {
      const Groups groups = make(rank, store);
      body(groups);
      groups.flat->barrier()->wait();
    });
  }
};

// Whole numbers, so that every order of summation is exact.
at::Tensor values(int rank, std::int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).mul(rank + 2).remainder(7).sub(3).to(type);
}

#define EXPECT_SAME(actual, expected) EXPECT_TRUE(at::equal((actual), (expected))) << (actual) << (expected)

// Calls `call` on the flat group and on the hybrid one, each with tensors of its own.
template <class Call>
void expect_as_flat(ProcessGroup& flat, ProcessGroup& hybrid, const Call& call) {
  const at::Tensor expected = call(flat);
  const at::Tensor actual = call(hybrid);
  EXPECT_TRUE(at::equal(actual, expected))
      << "rank " << flat.rank() << ": " << actual.flatten().slice(0, 0, 8) << expected.flatten().slice(0, 0, 8);
}

TEST_P(Hybrid, ReductionsAreThoseOfAFlatGroup) {
  on_ranks([](const Groups& groups) {
    const int rank = groups.flat->rank();
    for (const ReduceOp op : {ReduceOp::sum(), ReduceOp::avg(), ReduceOp::product(), ReduceOp::min(), ReduceOp::max(),
                              ReduceOp::premul_sum(0.5)}) {
      for (const std::int64_t count : {0, 1, 5, 4099, 20000}) {
        expect_as_flat(*groups.flat, *groups.hybrid, [&](ProcessGroup& group) {
          const at::Tensor tensor = values(rank, count, at::kDouble).requires_grad_(true);
          AllReduceOptions options;
          options.op = op;
          group.all_reduce({tensor}, options)->wait();
          return tensor.detach();
        });
      }
      for (int root = 0; root < groups.flat->size(); ++root) {
        expect_as_flat(*groups.flat, *groups.hybrid, [&](ProcessGroup& group) {
          const at::Tensor tensor = values(rank, 33, at::kDouble);
          ReduceOptions options;
          options.op = op;
          options.root = root;
          group.reduce({tensor}, options)->wait();
          return tensor;  // off the root: as it was
        });
      }
      expect_as_flat(*groups.flat, *groups.hybrid, [&](ProcessGroup& group) {
        const at::Tensor output = at::empty({11}, at::kDouble);
        ReduceScatterOptions options;
        options.op = op;
        group.reduce_scatter_tensor(output, values(rank, 11 * group.size(), at::kDouble), options)->wait();
        return output;
      });
    }
  });
}

// A sum of these values is infinite in float16.
TEST_P(Hybrid, AnAverageOfFloat16IsFiniteWhereItsSumIsNot) {
  on_ranks([](const Groups& groups) {
    HybridGroup& group = *groups.hybrid;
    const int size = group.size();
    const auto large = [&](std::int64_t count) { return at::full({count}, 30000.0, at::kHalf); };
    const auto expect_large = [&](const at::Tensor& tensor) {
      EXPECT_TRUE(at::allclose(tensor.to(at::kFloat), at::full(tensor.sizes(), 30000.0), 1e-2)) << tensor;
    };
    for (const std::int64_t count : {3, 40000}) {
      const at::Tensor all = large(count);
      group.all_reduce({all}, {{}, ReduceOp::avg()})->wait();
      expect_large(all);
      const at::Tensor one = large(count);
      ReduceOptions to_one;
      to_one.op = ReduceOp::avg();
      to_one.root = size - 1;
      group.reduce({one}, to_one)->wait();
      expect_large(one);
      const at::Tensor part = at::empty({count}, at::kHalf);
      ReduceScatterOptions scattered;
      scattered.op = ReduceOp::avg();
      group.reduce_scatter_tensor(part, large(count * size), scattered)->wait();
      expect_large(part);
    }
  });
}

TEST_P(Hybrid, AListWithATypeThatHasNoReductionIsRefusedAndNothingChanges) {
  on_ranks([](const Groups& groups) {
    const at::Tensor first = at::ones({4});
    EXPECT_THROW(groups.hybrid->all_reduce({first, at::ones({4}, at::kShort)}), InvalidArgument);
    EXPECT_TRUE(at::equal(first, at::ones({4})));
    groups.hybrid->all_reduce({first})->wait();
    EXPECT_TRUE(at::equal(first, at::full({4}, static_cast<double>(groups.hybrid->size()))));
  });
}

TEST_P(Hybrid, WhatMovesIsAsInAFlatGroup) {
  on_ranks([](const Groups& groups) {
    const int rank = groups.flat->rank();
    const auto same = [&](const auto& call) { expect_as_flat(*groups.flat, *groups.hybrid, call); };
    for (int root = 0; root < groups.flat->size(); ++root) {
      same([&](ProcessGroup& group) {
        const at::Tensor tensor = values(rank, 50, at::kShort).t();
        BroadcastOptions options;
        options.root = root;
        group.broadcast({tensor}, options)->wait();
        return tensor;
      });
      same([&](ProcessGroup& group) {
        const at::Tensor all = at::zeros({group.size(), 3}, at::kLong);
        const bool here = rank == root;
        GatherOptions options;
        options.root = root;
        group
            .gather(here ? std::vector<Tensors>{all.unbind()} : std::vector<Tensors>{}, {values(rank, 3, at::kLong)},
                    options)
            ->wait();
        return all;
      });
      same([&](ProcessGroup& group) {
        const at::Tensor part = at::zeros({3}, at::kLong);
        const Tensors parts = values(rank, 3 * group.size(), at::kLong).chunk(group.size());
        ScatterOptions options;
        options.root = root;
        group.scatter({part}, rank == root ? std::vector<Tensors>{parts} : std::vector<Tensors>{}, options)->wait();
        return part;
      });
    }
    same([&](ProcessGroup& group) {
      const at::Tensor all = at::empty({group.size(), 6}, at::kFloat);
      group.all_gather_into_tensor(all, values(rank, 6, at::kFloat))->wait();
      return all;
    });
    same([&](ProcessGroup& group) {
      const at::Tensor all = at::empty({6, group.size()}, at::kFloat);
      group.all_gather({all.unbind(1)}, {values(rank, 6, at::kFloat)})->wait();
      return all;
    });
    same([&](ProcessGroup& group) {
      const at::Tensor part = at::empty({4}, at::kInt);
      group.reduce_scatter({part}, {values(rank, 4 * group.size(), at::kInt).chunk(group.size())})->wait();
      return part;
    });
    same([&](ProcessGroup& group) {
      const at::Tensor output = at::empty({2 * group.size()}, at::kInt);
      group.all_to_all_single(output, values(rank, 2 * group.size(), at::kInt))->wait();
      return output;
    });
    if (groups.flat->size() == 1) return;  // nobody to send to
    same([&](ProcessGroup& group) {
      const at::Tensor output = at::empty({5}, at::kInt);
      const auto sent = group.send({values(rank, 5, at::kInt)}, (rank + 1) % group.size(), 9);
      group.recv({output}, (rank + group.size() - 1) % group.size(), 9)->wait();
      sent->wait();
      return output;
    });
  });
}

// A piece holds 4 MiB: one and a bit, four and a bit; what is left divides by no number of ranks.
TEST_P(Hybrid, ABigAllReduceInPiecesIsThatOfAFlatGroup) {
  on_ranks([](const Groups& groups) {
    for (const std::int64_t count : {(std::int64_t{1} << 20) + 7, kManyPieces}) {
      const at::Tensor mine = values(groups.flat->rank(), count, at::kFloat);
      expect_as_flat(*groups.flat, *groups.hybrid, [&](ProcessGroup& group) {
        const at::Tensor tensor = mine.clone();
        AllReduceOptions options;
        options.op = ReduceOp::avg();
        group.all_reduce({tensor}, options)->wait();
        return tensor;
      });
    }
  });
}

TEST_P(Hybrid, BetweenHostsABigAllReduceSendsItsBytesOnceAHost) {
  on_ranks([](const Groups& groups) {
    constexpr std::int64_t kCount = 120'001;
    const std::shared_ptr<ProcessGroup>& cross = groups.hybrid->cross();
    const std::size_t before = cross == nullptr ? 0 : cross->payload_bytes();
    const std::size_t before_of_everyone = groups.everyone->payload_bytes();
    groups.hybrid->all_reduce({at::ones({kCount})})->wait();
    const auto sent = static_cast<std::int64_t>(cross == nullptr ? 0 : cross->payload_bytes() - before);
    const at::Tensor by_host = at::zeros({groups.hybrid->hosts()}, at::kLong);
    by_host[groups.hybrid->host_of(groups.flat->rank())] = sent;
    groups.flat->all_reduce({by_host})->wait();
    // A ring's bytes, 2 B (H-1)/H, give or take the rounding of each rank's share.
    const std::int64_t hosts = groups.hybrid->hosts();
    const double expected = 2.0 * 4 * kCount * static_cast<double>(hosts - 1) / static_cast<double>(hosts);
    for (std::int64_t host = 0; host < hosts; ++host)
      EXPECT_NEAR(static_cast<double>(by_host[host].item<std::int64_t>()), expected, 64) << "host " << host;
    EXPECT_EQ(groups.everyone->payload_bytes(), before_of_everyone);
  });
}

TEST_P(Hybrid, DuplicatesAndPartsAreHybridToo) {
  on_ranks([](const Groups& groups) {
    const auto copy = std::dynamic_pointer_cast<HybridGroup>(groups.hybrid->dup());
    ASSERT_NE(copy, nullptr);
    // A sequence of its own: ranks call the two in different orders.
    const bool first = groups.flat->rank() % 2 == 0;
    const at::Tensor one = at::ones({3});
    const at::Tensor two = at::ones({3});
    const auto a = (first ? groups.hybrid : copy)->all_reduce({first ? one : two});
    const auto b = (first ? copy : groups.hybrid)->all_reduce({first ? two : one});
    a->wait();
    b->wait();
    EXPECT_SAME(one, at::full({3}, groups.flat->size()));
    EXPECT_SAME(two, one);
    // The even and the odd ranks, backwards.
    const auto part = groups.hybrid->split(groups.flat->rank() % 2, -groups.flat->rank());
    ASSERT_NE(part, nullptr);
    const auto flat_part = groups.flat->split(groups.flat->rank() % 2, -groups.flat->rank());
    EXPECT_EQ(part->name(), "hybrid");
    EXPECT_EQ(part->rank(), flat_part->rank());
    expect_as_flat(*flat_part, *part, [&](ProcessGroup& group) {
      const at::Tensor all = at::empty({group.size()}, at::kLong);
      group.all_gather_into_tensor(all, at::tensor({std::int64_t{groups.flat->rank()}}))->wait();
      return all;
    });
  });
}

void Hybrid::after_an_error_every_call_fails_with_it(std::int64_t count) {
  run_ranks("threads", world(), [&](int rank, const std::shared_ptr<Store>& store) {
    const Groups groups = make(rank, store);
    groups.flat->barrier()->wait();
    if (rank == 0) {
      groups.hybrid->abort("the test wants it");
      EXPECT_THROW(groups.hybrid->barrier()->wait(), AbortedError);
      return;
    }
    std::string first;
    std::vector<int> culprits;
    try {
      groups.hybrid->all_reduce({at::ones({count})})->wait();
      ADD_FAILURE() << "rank 0 never calls";
    } catch (const PeerError& error) {
      culprits = error.peers();  // whoever of the ranks between told this one
      first = error.what();
    } catch (const Error& error) {
      first = error.what();
    }
    EXPECT_NE(first.find("the test wants it"), std::string::npos) << first;
    EXPECT_EQ(culprits, std::vector<int>{0}) << first;
    try {
      groups.hybrid->barrier()->wait();
      ADD_FAILURE() << "the group is at its end";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), first);
    }
  });
}

// With one piece under way, and with as many as there may be.
TEST_P(Hybrid, AfterAnErrorEveryCallFailsWithIt) {
  for (const std::int64_t count : {std::int64_t{10}, kManyPieces}) after_an_error_every_call_fails_with_it(count);
}

// The callback runs on the group's own worker, which then comes to the call that is still queued.
TEST_P(Hybrid, ACallbackMayDropTheLastReferenceWhileAnotherCallIsQueued) {
  on_ranks([](const Groups& groups) {
    auto copy = std::dynamic_pointer_cast<HybridGroup>(groups.hybrid->dup());
    const at::Tensor first = at::ones({1});
    const at::Tensor second = at::ones({1});
    std::promise<void> may_drop;
    std::shared_ptr<Work> work = copy->all_reduce({first});
    bool has_ended = false;  // before the callback was there, which then runs on this thread, with nothing queued
    const Future dropped = work->future()->then(
        [&, caller = std::this_thread::get_id()](c10::ivalue::Future&) {
          if (std::this_thread::get_id() == caller) {
            has_ended = true;
          } else {
            may_drop.get_future().wait();
          }
          work.reset();
          copy.reset();
          return c10::IValue(1);
        },
        c10::IntType::get());
    if (has_ended) return;
    const Future queued = copy->all_reduce({second})->future();
    may_drop.set_value();
    dropped->waitAndThrow();
    EXPECT_SAME(first, at::full({1}, groups.flat->size()));
    EXPECT_THROW(queued->waitAndThrow(), Error);  // this rank let go of it, or another one did
    internal::join_parked_threads();
  });
}

TEST_P(Hybrid, MemoryIsRefusedToAllOrNone) {
  on_ranks([](const Groups& groups) {
    const at::Tensor memory = groups.hybrid->allocate(1000, at::kFloat);
    EXPECT_SAME(memory, at::zeros({1000}));
    memory.fill_(groups.flat->rank() + 1);
    groups.hybrid->all_reduce({memory})->wait();
    const int n = groups.flat->size();
    EXPECT_SAME(memory, at::full({1000}, n * (n + 1) / 2.0f));
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, Hybrid,
                         ::testing::Values("0", "000", "012", "0011", "0101", "0110", "001", "01100", "001122",
                                           "012021"),
                         [](const auto& info) { return std::string("ranks_on_") + info.param; });

// First: its ranks are forked. Hosts are what GRADWIRE_HOST says.
void expect_between_hosts(const std::string& backend, const std::string& engine) {
  run_ranks("shm", 4, [&](int rank, const std::shared_ptr<Store>& store) {
    at::set_num_threads(1);
    ::setenv("GRADWIRE_HOST", rank % 2 == 0 ? "even" : "odd", 1);
    const auto group = std::dynamic_pointer_cast<HybridGroup>(make_process_group(backend, store, rank, 4, kLong));
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->hosts(), 2);
    EXPECT_EQ(group->local()->name(), "shm");
    EXPECT_EQ(group->cross()->name(), engine);
    const auto copy = group->dup();
    ASSERT_NE(copy, nullptr);
    for (const auto& each : {std::shared_ptr<ProcessGroup>(group), copy}) {
      const at::Tensor tensor = at::arange(50'000, at::kDouble).mul(rank + 1);
      each->all_reduce({tensor})->wait();
      EXPECT_SAME(tensor, at::arange(50'000, at::kDouble).mul(10));
    }
  });
}

TEST(HybridByName, RanksOnSeveralHostsGetSharedMemoryAndUcxOrElseGloo) {
  for (const char* backend : {"auto", "hybrid"}) expect_between_hosts(backend, ucx_is_built() ? "ucx" : "gloo");
}

TEST(HybridByName, TheEngineBetweenHostsMayBeNamed) {
  if (ucx_is_built()) expect_between_hosts("hybrid/ucx", "ucx");
  if (internal::gloo_is_built()) expect_between_hosts("hybrid/gloo", "gloo");
}

TEST(HybridByName, WhereOneRankLacksUcxGlooCrossesHosts) {
  using internal::Crossing;
  for (const int without : {-1, 0, 2}) {
    run_ranks("threads", 3, [&](int rank, const std::shared_ptr<Store>& store) {
      const std::optional<std::string> why_no_ucx = rank == without ? std::optional("no library") : std::nullopt;
      const Crossing chosen = internal::choose_crossing(*store, rank, 3, why_no_ucx, Deadline::after(kLong));
      const bool all_have_ucx = without == -1 || !internal::gloo_is_built();
      EXPECT_EQ(chosen, all_have_ucx ? Crossing::ucx : Crossing::gloo);
    });
  }
}

TEST(HybridByName, RanksOnOneHostGetSharedMemory) {
  run_ranks("shm", 2, [](int rank, const std::shared_ptr<Store>& store) {
    EXPECT_EQ(make_process_group("auto", store, rank, 2, kLong)->name(), "shm");
  });
}

TEST(HybridByName, ARankThatDoesNotSayItsHostIsNamed) {
  const auto store = std::make_shared<HashStore>();
  try {
    make_process_group("auto", store, 0, 3, std::chrono::milliseconds(50));
    ADD_FAILURE() << "ranks 1 and 2 are not there";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.peers(), (std::vector<int>{1, 2})) << error.what();
  }
  EXPECT_THROW(make_process_group("auto", store, 3, 3, kLong), InvalidArgument);
}

// Rank 1 has said its host, when the deadline has passed; no later step waits for it.
TEST(HybridByName, AllStepsHaveOneDeadline) {
  const auto began = std::chrono::steady_clock::now();
  for (const char* const backend : {"hybrid", "hybrid/ucx", "hybrid/gloo", "gloo"}) {
    if (!is_backend_built(backend)) continue;
    SCOPED_TRACE(backend);
    const auto store = std::make_shared<HashStore>();
    store->set("host/1", "another one");
    try {
      internal::make_group_by(Deadline::after(Milliseconds(0)), backend, store, 0, 2, kLong);
      ADD_FAILURE() << "rank 1 is not there";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(error.peers(), std::vector<int>{1}) << error.what();
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong);
}

// A group whose next call can be refused, on all ranks and before anything is sent.
class Refusing final : public CallGroup {
 public:
  explicit Refusing(std::shared_ptr<ProcessGroup> inner)
      : CallGroup(inner->rank(), inner->size()), inner_(std::move(inner)) {}
  void refuse_next() { refuses_next_ = true; }

 protected:
  std::string get_backend_name() const override { return inner_->name(); }
  std::shared_ptr<Work> do_call(GroupCall& call) override {
    if (std::exchange(refuses_next_, false)) throw ResourceError("no memory for messages");
    return call_on(*inner_, call, timeout());
  }
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override {
    return inner_->split(color, key, desc);
  }

 private:
  const std::shared_ptr<ProcessGroup> inner_;
  bool refuses_next_ = false;
};

TEST(HybridGroups, ACallThatIsRefusedToAllRanksEndsNothing) {
  run_ranks("threads", 4, [](int rank, const std::shared_ptr<Store>& store) {
    const auto flat = make_process_group("threads", store, rank, 4, kLong);
    const auto everyone = std::make_shared<Refusing>(flat->dup());
    const auto hybrid = HybridGroup::make(everyone, flat->split(rank / 2));
    everyone->refuse_next();
    EXPECT_THROW(hybrid->all_to_all_single(at::zeros({4}), at::ones({4}))->wait(), ResourceError);
    const at::Tensor tensor = at::ones({10});
    hybrid->all_reduce({tensor})->wait();
    EXPECT_SAME(tensor, at::full({10}, 4.0));
    hybrid->barrier()->wait();
  });
}

// Two hosts of two ranks, of which the last rank alone brings another number of elements.
TEST(HybridGroups, ADisagreementNamesTheCallOfTheWholeAndItsRanks) {
  run_ranks("threads", 4, [](int rank, const std::shared_ptr<Store>& store) {
    const auto flat = make_process_group("threads", store, rank, 4, kLong);
    const auto hybrid = HybridGroup::make(flat->dup(), flat->split(rank / 2));
    hybrid->set_group_name("whole");
    hybrid->barrier()->wait();
    try {
      hybrid->all_reduce({at::ones({rank == 3 ? 5 : 6})})->wait();
      ADD_FAILURE() << "ranks disagree";
    } catch (const MismatchError& error) {
      const std::string text = error.what();
      EXPECT_GE(rank, 2) << text;
      EXPECT_NE(text.find("among the ranks 2, 3 (called 0, 1 here): "), std::string::npos) << text;
      EXPECT_NE(text.find("all_reduce (call 2 of group whole"), std::string::npos) << text;
    } catch (const PeerError& error) {
      EXPECT_LT(rank, 2) << error.what();
    }
    flat->barrier()->wait();
  });
}

// A barrier takes the groups that reductions take.
TEST(HybridGroups, ABarrierBesideAReductionIsADisagreement) {
  run_ranks("threads", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto flat = make_process_group("threads", store, rank, 2, kLong);
    const auto hybrid = HybridGroup::make(flat->dup(), flat->split(rank));
    const auto work = rank == 0 ? hybrid->barrier() : hybrid->all_reduce({at::ones({6})});
    EXPECT_THROW(work->wait(), MismatchError);
    flat->barrier()->wait();
  });
}

// One call of each kind, with sizes that fit each other wherever two kinds could be taken for one another.
using AnyCall = std::pair<const char*, std::function<void(ProcessGroup& group)>>;
const std::vector<AnyCall>& calls_of_all_kinds() {
  static const std::vector<AnyCall> calls{
      {"all_reduce", [](ProcessGroup& group) { group.all_reduce({at::ones({group.size()})})->wait(); }},
      {"large all_reduce", [](ProcessGroup& group) { group.all_reduce({at::ones({100'000})})->wait(); }},
      {"broadcast", [](ProcessGroup& group) { group.broadcast({at::ones({group.size()})})->wait(); }},
      {"reduce", [](ProcessGroup& group) { group.reduce({at::ones({group.size()})})->wait(); }},
      {"all_gather",
       [](ProcessGroup& group) { group.all_gather_into_tensor(at::ones({group.size()}), at::ones({1}))->wait(); }},
      {"reduce_scatter",
       [](ProcessGroup& group) { group.reduce_scatter_tensor(at::ones({1}), at::ones({group.size()}))->wait(); }},
      {"gather",
       [](ProcessGroup& group) {
         const Tensors room = at::ones({group.size()}).split(1);
         group.gather(group.rank() == 0 ? std::vector<Tensors>{room} : std::vector<Tensors>{}, {at::ones({1})})->wait();
       }},
      {"scatter",
       [](ProcessGroup& group) {
         const Tensors parts = at::ones({group.size()}).split(1);
         group.scatter({at::ones({1})}, group.rank() == 0 ? std::vector<Tensors>{parts} : std::vector<Tensors>{})
             ->wait();
       }},
      {"all_to_all",
       [](ProcessGroup& group) {
         group.all_to_all(at::ones({group.size()}).split(1), at::ones({group.size()}).split(1))->wait();
       }},
      {"all_to_all",  // the same call to the ranks
       [](ProcessGroup& group) {
         group.all_to_all_single(at::ones({group.size()}), at::ones({group.size()}))->wait();
       }},
      {"barrier", [](ProcessGroup& group) { group.barrier()->wait(); }},
      {"allocate", [](ProcessGroup& group) { group.allocate(1, at::kFloat); }},
      {"dup", [](ProcessGroup& group) { group.dup(); }},
      {"split", [](ProcessGroup& group) { group.split(0); }}};
  return calls;
}

// Ranks of `apart` make one call, and the others another one. Returns how many were told that ranks disagree.
int count_told(const std::string& hosts, const std::string& apart, const AnyCall& theirs, const AnyCall& others) {
  std::atomic<int> told{0};
  run_ranks("threads", static_cast<int>(hosts.size()), [&](int rank, const std::shared_ptr<Store>& store) {
    const auto at = static_cast<std::size_t>(rank);
    const auto flat =
        make_process_group("threads", store, rank, static_cast<int>(hosts.size()), std::chrono::seconds(30));
    const auto hybrid = HybridGroup::make(flat->dup(), flat->split(hosts[at] - '0'));
    const std::string which =
        concat(hosts, ", ", apart, ": ", theirs.first, " beside ", others.first, ", rank ", rank, ": ");
    try {
      (apart[at] == 'x' ? theirs : others).second(*hybrid);
      hybrid->barrier()->wait();  // a broadcast may end on the host it comes from
      ADD_FAILURE() << which << "ended well";
    } catch (const MismatchError&) {
      ++told;
    } catch (const PeerError&) {  // of a rank that was told
    } catch (const AbortedError&) {
    } catch (const std::exception& error) {
      ADD_FAILURE() << which << error.what();
    }
    flat->barrier()->wait();
  });
  return told;
}

// Whichever ranks they are: all of a host, one of a host, one of each host, and where hosts have different numbers.
TEST(HybridGroups, RanksThatCallDifferentThingsAreToldAtOnce) {
  const std::vector<AnyCall>& calls = calls_of_all_kinds();
  const std::vector<std::pair<const char*, const char*>> cases{{"01", "x-"},     {"0011", "xx--"}, {"0011", "-x--"},
                                                               {"0011", "x-x-"}, {"0011", "x--x"}, {"012", "x--"},
                                                               {"001", "xx-"},   {"001", "-x-"}};
  for (const auto& [hosts, apart] : cases) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (std::string_view(calls[i].first) == calls[j].first) continue;
        EXPECT_GT(count_told(hosts, apart, calls[i], calls[j]), 0) << hosts << calls[i].first << calls[j].first;
        if (HasFailure()) return;  // each further one may wait for a deadline
      }
    }
  }
}

// Ends like one whose calls were interrupted: with an error, but it ends.
class FailsAtShutdown final : public CallGroup {
 public:
  explicit FailsAtShutdown(std::shared_ptr<ProcessGroup> inner)
      : CallGroup(inner->rank(), inner->size()), inner_(std::move(inner)) {}
  void shutdown() override {
    inner_->shutdown();
    throw AbortedError("interrupted");
  }

 protected:
  std::string get_backend_name() const override { return inner_->name(); }
  std::shared_ptr<Work> do_call(GroupCall& call) override { return call_on(*inner_, call, timeout()); }
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override {
    return inner_->split(color, key, desc);
  }

 private:
  const std::shared_ptr<ProcessGroup> inner_;
};

// Whether buffers overlap shows when ranks have met already.
TEST(HybridGroups, RanksDoNotWaitForOneThatWasRefusedOnItsOwn) {
  run_ranks("threads", 4, [](int rank, const std::shared_ptr<Store>& store) {
    const auto everyone = make_process_group("threads", store, rank, 4, kLong);
    const auto hybrid = HybridGroup::make(everyone->dup(), everyone->split(rank / 2));
    const at::Tensor all = at::zeros({8});
    const at::Tensor apart = at::ones({2});
    std::vector<Tensors> outputs;
    if (rank == 0)
      outputs.push_back({all.narrow(0, 0, 2), all.narrow(0, 1, 2), all.narrow(0, 4, 2), all.narrow(0, 6, 2)});
    const auto begin = std::chrono::steady_clock::now();
    try {
      hybrid->gather(outputs, {apart})->wait();
      ADD_FAILURE() << "rank 0 was refused";
    } catch (const InvalidArgument&) {
      EXPECT_EQ(rank, 0);
    } catch (const PeerError& error) {
      EXPECT_NE(rank, 0);
      EXPECT_NE(std::string(error.what()).find("overlap"), std::string::npos) << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong / 2);
    EXPECT_THROW(hybrid->barrier()->wait(), Error);
  });
}

// As DDP does in its other lanes, when one of them has failed.
TEST(HybridGroups, AGroupThatEndsBecauseOfAnErrorElsewhereNamesTheRanksOfThatError) {
  run_ranks("threads", 4, [](int rank, const std::shared_ptr<Store>& store) {
    const auto everyone = make_process_group("threads", store, rank, 4, kLong);
    const auto hybrid = HybridGroup::make(everyone->dup(), everyone->split(rank / 2));
    if (rank == 2) {
      abort_because(*hybrid, std::make_exception_ptr(PeerError("rank 3 died", {3})), "the reduction failed");
    } else if (rank != 3) {
      try {
        hybrid->all_reduce({at::ones({3})})->wait();
        ADD_FAILURE() << "the group has ended";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.peers(), std::vector<int>{3}) << error.what();
      }
    }
    everyone->barrier()->wait();
  });
}

TEST(HybridGroups, EveryPartIsShutDownWhateverBecameOfTheOthers) {
  run_ranks("threads", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto flat = make_process_group("threads", store, rank, 2, kLong);
    const auto everyone = flat->dup();
    const auto local = flat->split(rank);
    const auto hybrid = HybridGroup::make(std::make_shared<FailsAtShutdown>(everyone), local);
    EXPECT_THROW(hybrid->shutdown(), AbortedError);
    EXPECT_FALSE(is_open(*everyone));
    EXPECT_FALSE(is_open(*local));
    flat->barrier()->wait();
  });
}

TEST(HybridGroups, LocalRanksOutOfOrderAreRefusedOnAllRanks) {
  run_ranks("threads", 4, [](int rank, const std::shared_ptr<Store>& store) {
    const auto flat = make_process_group("threads", store, rank, 4, kLong);
    // The second host's ranks the other way round.
    auto local = flat->split(rank / 2, rank < 2 ? rank : -rank);
    EXPECT_THROW(HybridGroup::make(flat->dup(), local), InvalidArgument);
    flat->barrier()->wait();
  });
}

}  // namespace
}  // namespace gradwire::hybrid_group_test
