// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What c10d's users see of a group of ours, and its stores. That every collective computes the same through both
// adapters is in process_group_test ("round_trip").
#include "gradwire/process_group/c10d/to_c10d.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <torch/version.h>
#include <functional>
#include <mutex>
#include <span>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "gradwire/base/error.h"
#include "gradwire/process_group/c10d/c10d_store.h"
#include "gradwire/process_group/c10d/from_c10d.h"
#include "gradwire/process_group/init.h"
#include "gradwire/store/forwarding_store.h"
#include "gradwire/store/prefix_store.h"
#include "tests/support/ranks.h"

namespace gradwire::to_c10d_test {
namespace {

using test_support::run_ranks;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

constexpr Milliseconds kLong = std::chrono::minutes(2);

void on_backends(int world, const std::function<void(const BackendPtr& backend)>& body) {
  run_ranks("threads", world, [&](int rank, const std::shared_ptr<Store>& store) {
    body(make_c10d_backend(store_to_c10d(store), rank, world, kLong, "threads"));
  });
}

bool equal(const at::Tensor& tensor, std::initializer_list<double> values) {
  return at::equal(tensor.to(at::kDouble), at::tensor(std::vector<double>(values), at::kDouble));
}

TEST(ToC10d, WorkSaysWhatItIs) {
  on_backends(2, [](const BackendPtr& backend) {
    EXPECT_EQ(backend->getBackendName(), "gradwire");
    EXPECT_EQ(backend->getBackendOptions()->backend, "gradwire");
    std::vector<at::Tensor> tensors{at::full({2}, backend->getRank() + 1.0)};
    for (const bool async : {true, false}) {
      tensors[0].fill_(backend->getRank() + 1.0);
      c10d::AllreduceOptions options;
      options.asyncOp = async;
      const auto work = backend->allreduce(tensors, options);
      EXPECT_EQ(work->retrieveOpType(), c10d::OpType::ALLREDUCE);
      EXPECT_EQ(work->getSequencenumber(), backend->getSequenceNumberForGroup());
      if (!async) {
        EXPECT_TRUE(work->isCompleted());
      }
      EXPECT_TRUE(work->wait());
      EXPECT_TRUE(work->isCompleted() && work->isSuccess());
      EXPECT_EQ(work->exception(), nullptr);
      EXPECT_TRUE(work->result().at(0).is_same(tensors[0]));
      EXPECT_TRUE(work->getFuture()->value().toTensorVector().at(0).is_same(tensors[0]));
      EXPECT_TRUE(equal(tensors[0], {3, 3}));
    }
    std::vector<std::vector<at::Tensor>> lists{{at::zeros({2}), at::zeros({2})}};
    const auto gathered = backend->allgather(lists, tensors, {});
    gathered->getFuture()->waitAndThrow();
    EXPECT_EQ(gathered->getFuture()->value().toTensorVector().size(), 2U);  // of one input: a list, as over Gloo
    EXPECT_EQ(gathered->result().size(), 2U);
  });
}

// As in C++, with the words that programs for c10d's engines look for.
TEST(ToC10d, ALateWaitSaysWhatItWaitsFor) {
  on_backends(2, [](const BackendPtr& backend) {
    std::vector<at::Tensor> tensors{at::ones({2})};
    std::vector<at::Tensor> go{at::ones({1})};
    if (backend->getRank() == 0) {
      c10d::AllreduceOptions options;
      options.asyncOp = true;
      const auto work = backend->allreduce(tensors, options);
      try {
        work->wait(Milliseconds(20));
        ADD_FAILURE() << "wait() returned";
      } catch (const TimeoutError& error) {
        const std::string text = error.what();
        EXPECT_TRUE(text.starts_with("gradwire: Timed out in all_reduce (call 1 of group ")) << text;
        EXPECT_NE(text.find(") on rank 0 of 2: wait() has waited 20 ms"), std::string::npos) << text;
      }
      EXPECT_FALSE(work->isCompleted());
      backend->send(go, 1, 8)->wait();
      EXPECT_TRUE(work->wait());
      EXPECT_TRUE(work->wait(kLong));
      return;
    }
    backend->recv(go, 0, 8)->wait();
    backend->allreduce(tensors, {})->wait();
  });
}

// The callback runs before the work has ended for those who wait for the work.
TEST(ToC10d, AWaitInACallbackOfTheFutureEndsWithItsTimeout) {
  on_backends(2, [](const BackendPtr& backend) {
    std::vector<at::Tensor> tensors{at::ones({2})};
    std::vector<at::Tensor> go{at::ones({1})};
    if (backend->getRank() == 1) {
      backend->recv(go, 0, 8)->wait();
      backend->allreduce(tensors, {})->wait();
      return;
    }
    c10d::AllreduceOptions options;
    options.asyncOp = true;
    const auto work = backend->allreduce(tensors, options);
    bool threw = false;
    work->getFuture()->addCallback([&](c10::ivalue::Future&) {
      try {
        work->wait(Milliseconds(20));
      } catch (const std::exception&) {
        threw = true;
      }
    });
    backend->send(go, 1, 8)->wait();
    EXPECT_TRUE(work->wait());
    EXPECT_TRUE(threw);
  });
}

// The events that a profiler would see, of all threads.
class Events {
 public:
  Events() : handle_(at::addGlobalCallback(callback())) { instance() = this; }
  ~Events() {
    at::removeCallback(handle_);
    instance() = nullptr;
  }
  int begun(const std::string& name) { return count(begun_, name); }
  int ended(const std::string& name) { return count(ended_, name); }

 private:
  static Events*& instance() {
    static Events* the_one = nullptr;
    return the_one;
  }
  static at::RecordFunctionCallback callback() {
    return at::RecordFunctionCallback(
               [](const at::RecordFunction& event) -> std::unique_ptr<at::ObserverContext> {
                 instance()->note(instance()->begun_, event.name());
                 return nullptr;
               },
               [](const at::RecordFunction& event, at::ObserverContext*) {
                 instance()->note(instance()->ended_, event.name());
               })
        .scopes({at::RecordScope::USER_SCOPE});
  }
  void note(std::vector<std::string>& names, const char* name) {
    const std::lock_guard lock(mutex_);
    names.emplace_back(name);
  }
  int count(const std::vector<std::string>& names, const std::string& name) {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::count(names.begin(), names.end(), name));
  }

  std::mutex mutex_;
  std::vector<std::string> begun_;
  std::vector<std::string> ended_;
  const at::CallbackHandle handle_;
};

TEST(ToC10d, AWaitReturnsWhereACallbackOfTheFutureThrows) {
  on_backends(2, [](const BackendPtr& backend) {
    std::vector<at::Tensor> tensors{at::full({2}, backend->getRank() + 1.0)};
    for (int round = 0; round < 20; ++round) {
      tensors[0].fill_(backend->getRank() + 1.0);
      const auto work = backend->allreduce(tensors);
      // Also before the call ends, on the thread that ends it.
      try {
        work->getFuture()->addCallback([](c10::ivalue::Future&) { throw std::runtime_error("of a callback"); },
                                       /*uses_future=*/false);
      } catch (const std::runtime_error&) {
        // The future had completed, and runs the callback at once.
      }
      EXPECT_TRUE(work->wait());
      EXPECT_TRUE(equal(tensors[0], {3, 3}));
    }
  });
}

TEST(ToC10d, AProfilerSeesEveryCallByItsName) {
  Events events;
  on_backends(2, [&](const BackendPtr& backend) {
    const int rank = backend->getRank();
    std::vector<at::Tensor> one{at::ones({2})};
    std::vector<at::Tensor> two{at::ones({2}), at::ones({2})};
    std::vector<std::vector<at::Tensor>> lists{{at::zeros({2}), at::zeros({2})}};
    std::vector<std::vector<at::Tensor>> none;
    at::Tensor whole = at::ones({4});
    std::vector<std::int64_t> even;
    backend->broadcast(one, {})->wait();
    backend->allreduce(one, {})->wait();
    backend->reduce(one, {})->wait();
    backend->allgather(lists, one, {})->wait();
    backend->_allgather_base(whole, one[0], {})->wait();
    backend->gather(rank == 0 ? lists : none, one, {})->wait();
    backend->scatter(one, rank == 0 ? lists : none, {})->wait();
    backend->reduce_scatter(one, lists, {})->wait();
    backend->_reduce_scatter_base(one[0], whole, {})->wait();
    at::Tensor turned = at::zeros({4});
    backend->alltoall_base(turned, whole, even, even, {})->wait();
    std::vector<at::Tensor> received{at::zeros({2}), at::zeros({2})};
    backend->alltoall(received, two, {})->wait();
    backend->barrier({})->wait();
    if (rank == 0) {
      backend->send(one, 1, 3)->wait();
      backend->recvAnysource(one, 4)->wait();
    } else {
      const auto work = backend->recv(one, 0, 3);
      work->wait();
      EXPECT_EQ(work->sourceRank(), 0);
      backend->send(one, 0, 4)->wait();
    }
    backend->barrier({})->wait();
  });
  const std::vector<std::pair<std::string, int>> expected{
      {"broadcast", 2},      {"all_reduce", 2}, {"reduce", 2},  {"all_gather", 4}, {"gather", 2}, {"scatter", 2},
      {"reduce_scatter", 4}, {"all_to_all", 4}, {"barrier", 4}, {"send", 2},       {"recv", 1},   {"recvAnySource", 1}};
  for (const auto& [name, times] : expected) {
    EXPECT_EQ(events.begun("gradwire:" + name), times) << name;
    EXPECT_EQ(events.ended("gradwire:" + name), times) << name;
  }
}

TEST(ToC10d, SparseTensorsAreSummed) {
  on_backends(3, [](const BackendPtr& backend) {
    const std::int64_t rank = backend->getRank();
    // Rank r has entries at 0 and r + 1; rank 1 has its first one twice; the values are rows of two.
    at::Tensor indices = rank == 1 ? at::tensor(std::vector<std::int64_t>{0, 2, 0}).view({1, 3})
                                   : at::tensor(std::vector<std::int64_t>{0, rank + 1}).view({1, 2});
    std::vector<at::Tensor> tensors{at::sparse_coo_tensor(indices, at::full({indices.size(1), 2}, rank + 1.0), {5, 2})};
    backend->allreduce(tensors, {})->wait();
    const at::Tensor dense = tensors[0].to_dense();
    EXPECT_TRUE(equal(dense.select(1, 0), {1 + 2 * 2 + 3, 1, 2, 3, 0})) << dense;
    EXPECT_TRUE(at::equal(dense.select(1, 0), dense.select(1, 1)));
    std::vector<at::Tensor> other{at::sparse_coo_tensor(at::zeros({1, 0}, at::kLong), at::zeros({0}), {4 + rank})};
    EXPECT_THROW(backend->allreduce(other, {}), MismatchError);
  });
}

// Two tensors on each of three ranks are what one tensor on each of six would be.
TEST(ToC10d, SeveralTensorsInOneCallArePartsOfOneMessage) {
  on_backends(3, [](const BackendPtr& backend) {
    const double first = 2 * backend->getRank();
    const auto pair = [&](at::ScalarType dtype) {
      return std::vector<at::Tensor>{at::full({2}, first, dtype), at::full({2}, first + 1, dtype)};
    };
    c10d::BroadcastOptions root;
    root.rootRank = 1;
    root.rootTensor = 1;
    std::vector<at::Tensor> tensors = pair(at::kInt);
    const auto sent = backend->broadcast(tensors, root);
    sent->wait();
    EXPECT_TRUE(sent->result().at(0).is_same(tensors[0]) && sent->result().at(1).is_same(tensors[1]));
    EXPECT_TRUE(equal(tensors[0], {3, 3}) && equal(tensors[1], {3, 3})) << tensors;

    c10d::AllreduceOptions options;
    const std::vector<std::pair<c10d::ReduceOp::RedOpType, double>> reductions{
        {c10d::ReduceOp::SUM, 15}, {c10d::ReduceOp::PRODUCT, 0}, {c10d::ReduceOp::MIN, 0}, {c10d::ReduceOp::MAX, 5},
        {c10d::ReduceOp::BAND, 0}, {c10d::ReduceOp::BOR, 7},     {c10d::ReduceOp::BXOR, 1}};
    for (const auto& [op, expected] : reductions) {
      options.reduceOp = op;
      tensors = pair(at::kInt);
      backend->allreduce(tensors, options)->wait();
      EXPECT_TRUE(equal(tensors[0], {expected, expected}) && equal(tensors[1], {expected, expected})) << tensors;
    }
    // 2048 has no neighbour at 2049 in halves: 2048 + 1 + 1, rounded after each sum, would be 2048.
    std::vector<at::Tensor> halves{at::full({1}, first == 0 ? 2048 : 0, at::kHalf),
                                   at::full({1}, first < 4, at::kHalf)};
    backend->allreduce(halves, {})->wait();
    EXPECT_TRUE(equal(halves[0], {2050}) && equal(halves[1], {2050})) << halves;
    std::vector<at::Tensor> sparse;
    for (int i = 0; i < 2; ++i) sparse.push_back(at::full({2}, first + i).to_sparse());
    backend->allreduce(sparse, {})->wait();
    EXPECT_TRUE(equal(sparse[0].to_dense(), {15, 15}) && equal(sparse[1].to_dense(), {15, 15}));

    std::vector<at::Tensor> inputs{at::full({1}, first), at::full({1}, first + 1)};
    std::vector<std::vector<at::Tensor>> lists(2);
    for (std::vector<at::Tensor>& list : lists) {
      for (int i = 0; i < 6; ++i) list.push_back(at::full({1}, -1.0));
    }
    backend->allgather(lists, inputs, {})->wait();
    for (const std::vector<at::Tensor>& list : lists) EXPECT_TRUE(equal(at::cat(list), {0, 1, 2, 3, 4, 5})) << list;
  });
}

TEST(ToC10d, SeveralTensorsInOneCallMustBeAlike) {
  on_backends(2, [](const BackendPtr& backend) {
    const std::vector<std::vector<at::Tensor>> unlike{{at::ones({1}), at::ones({2})},
                                                      {at::ones({1}), at::ones({1}, at::kDouble)},
                                                      {at::ones({1}), at::ones({1}).to_sparse()},
                                                      {at::ones({1}).to_sparse(), at::ones({2}).to_sparse()},
                                                      {at::ones({1}), at::Tensor()}};
    for (const at::ScalarType dtype : {at::kUInt16, at::kComplexHalf}) {
      std::vector<at::Tensor> ones{at::ones({1}).to(dtype), at::ones({1}).to(dtype)};
      EXPECT_THROW(backend->allreduce(ones, {}), InvalidArgument);
    }
    for (std::vector<at::Tensor> tensors : unlike) EXPECT_THROW(backend->allreduce(tensors, {}), InvalidArgument);
    for (std::vector<at::Tensor> tensors : unlike) EXPECT_THROW(backend->broadcast(tensors, {}), InvalidArgument);
    std::vector<at::Tensor> alike{at::ones({1}), at::ones({1})};
    c10d::AllreduceOptions average;
    average.reduceOp = c10d::ReduceOp::AVG;
    EXPECT_THROW(backend->allreduce(alike, average), InvalidArgument);
    for (const int root_tensor : {-1, 2}) {
      c10d::BroadcastOptions root;
      root.rootTensor = root_tensor;
      EXPECT_THROW(backend->broadcast(alike, root), InvalidArgument);
    }
    backend->allreduce(alike, {})->wait();  // nothing was started
    EXPECT_TRUE(equal(alike[0], {4}) && equal(alike[1], {4}));
  });
}

TEST(ToC10d, SplitAndCoalescedCalls) {
  run_ranks("threads", 3, [](int rank, const std::shared_ptr<Store>& store) {
    const auto backend = make_c10d_backend(store_to_c10d(store), rank, 3, kLong, "threads");
    ASSERT_TRUE(backend->supportsSplitting());
    const auto theirs = store_to_c10d(std::make_shared<PrefixStore>("split", store));
    const auto part = backend->split(theirs, {2, 0}, backend->getBackendOptions());
    ASSERT_EQ(part.get() == nullptr, rank == 1);
    if (part) {
      EXPECT_EQ(part->getRank(), rank == 2 ? 0 : 1);
      std::vector<at::Tensor> tensors{at::full({1}, rank), at::full({2}, rank + 1)};
      part->allreduce_coalesced(tensors, {})->wait();
      EXPECT_TRUE(equal(tensors[0], {2}) && equal(tensors[1], {4, 4}));
      // One list a rank, with an output for each input.
      std::vector<std::vector<at::Tensor>> lists{{at::zeros({1}), at::zeros({2})}, {at::zeros({1}), at::zeros({2})}};
      std::vector<at::Tensor> inputs{at::full({1}, rank + 0.0), at::full({2}, rank + 5.0)};
      part->allgather_coalesced(lists, inputs, {})->wait();
      EXPECT_TRUE(equal(lists[0][1], {7, 7}) && equal(lists[1][0], {0}));
    }
    backend->barrier({})->wait();
  });
}

TEST(ToC10d, ErrorsAreOursAndALateCallSaysTimedOut) {
  run_ranks("threads", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto backend = make_c10d_backend(store_to_c10d(store), rank, 2, kLong, "threads");
    std::vector<at::Tensor> bad{at::empty({2}, at::TensorOptions(at::kMeta))};
    EXPECT_THROW(backend->broadcast(bad, {}), InvalidArgument);
    const std::string over = "over";
    if (rank == 1) return store->wait(std::span(&over, 1), kLong);
    std::vector<at::Tensor> tensors{at::ones({1})};
    c10d::AllreduceOptions options;
    options.timeout = Milliseconds(50);
    const auto work = backend->allreduce(tensors, options);
    try {
      work->wait();
      ADD_FAILURE() << "rank 1 was not there";
    } catch (const TimeoutError& error) {
      EXPECT_NE(std::string(error.what()).find(" Timed out "), std::string::npos) << error.what();
      EXPECT_EQ(error.peers(), std::vector<int>{1});
    }
    EXPECT_FALSE(work->isSuccess());
    EXPECT_NE(work->exception(), nullptr);
    EXPECT_TRUE(work->getFuture()->hasError());
    store->set(over, "1");
  });
}

TEST(ToC10d, AMonitoredBarrierSpeaksAsGlooDoes) {
  run_ranks("threads", 3, [](int rank, const std::shared_ptr<Store>& store) {
    const auto backend = make_c10d_backend(store_to_c10d(store), rank, 3, kLong, "threads");
    c10d::BarrierOptions options;
    backend->monitoredBarrier(options, false);  // all are there
    const auto expect = [&](const std::string& words) {
      try {
        backend->monitoredBarrier(options, true);
        ADD_FAILURE() << "rank 2 was not there";
      } catch (const TimeoutError& error) {
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
        EXPECT_EQ(error.peers(), std::vector<int>{rank == 0 ? 2 : 0});
      }
    };
    const std::string over = "over";
    if (rank == 2) return store->wait(std::span(&over, 1), kLong);
    options.timeout = Milliseconds(200);
    // Rank 1 first, so that it has come when rank 0 looks who has not.
    const std::string told = "rank 1 has come";
    if (rank == 0) store->wait(std::span(&told, 1), kLong);
    expect(rank == 0 ? "Rank 2 failed to pass monitoredBarrier" : "Rank 1 successfully reached monitoredBarrier");
    if (rank == 1) store->set(told, "1");
    if (store->add("through", 1) == 2) store->set(over, "1");
  });
  run_ranks("threads", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto backend = make_c10d_backend(store_to_c10d(store), rank, 2, kLong, "threads");
    const std::string over = "over";
    if (rank == 1) return store->wait(std::span(&over, 1), kLong);
    c10d::BarrierOptions options;
    options.timeout = Milliseconds(0);  // no time at all, and not the group's
    try {
      backend->monitoredBarrier(options, false);
      ADD_FAILURE() << "rank 1 was not there";
    } catch (const TimeoutError& error) {
      EXPECT_NE(std::string(error.what()).find("Rank 0 timed out in monitoredBarrier"), std::string::npos)
          << error.what();
    }
    store->set(over, "1");
  });
}

TEST(ToC10d, BothWaysGiveTheGroupUnderneath) {
  run_ranks("threads", 1, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("threads", store, rank, 1);
    EXPECT_EQ(from_c10d(to_c10d(group)), group);
    EXPECT_EQ(group_under(to_c10d(group)), group);
    FromC10dOptions as_it_is;
    as_it_is.unwrap = false;
    EXPECT_NE(from_c10d(to_c10d(group), as_it_is), group);
    EXPECT_THROW(to_c10d(nullptr), InvalidArgument);
    EXPECT_THROW(from_c10d(BackendPtr()), InvalidArgument);
  });
}

TEST(C10dStores, OursForTheirs) {
  const auto ours = std::make_shared<HashStore>();
  const auto store = store_to_c10d(ours);
  EXPECT_EQ(store_from_c10d(store), ours);
  store->set("key", std::vector<std::uint8_t>{1, 0, 2});
  EXPECT_EQ(ours->get("key"), std::string("\1\0\2", 3));
  EXPECT_EQ(store->get("key"), (std::vector<std::uint8_t>{1, 0, 2}));
  EXPECT_EQ(store->add("n", 5), 5);
  EXPECT_EQ(store->compareSet("text", "", "first"), "first");
  EXPECT_TRUE(store->check({"key", "n"}));
  EXPECT_FALSE(store->check({"none"}));
  EXPECT_EQ(store->getNumKeys(), 3);
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 12
  EXPECT_EQ(store->listKeys(), (std::vector<std::string>{"key", "n", "text"}));
#endif
  EXPECT_TRUE(store->deleteKey("n"));
  store->append("text", {'!'});
  EXPECT_EQ(store->get_to_str("text"), "first!");
  store->multiSet({"a", "b"}, {{'1'}, {'2'}});
  EXPECT_EQ(store->multiGet({"a", "b"}).at(1), std::vector<std::uint8_t>{'2'});
  store->queuePush("queue", {'q'});
  EXPECT_EQ(store->queueLen("queue"), 1);
  EXPECT_EQ(store->queuePop("queue", true), std::vector<std::uint8_t>{'q'});
  store->setTimeout(Milliseconds(20));
  EXPECT_EQ(ours->timeout(), kDefaultTimeout);  // its own
  EXPECT_THROW(store->get("none"), c10::DistStoreError);
  EXPECT_THROW(store->wait({"none"}, Milliseconds(5)), c10::DistStoreError);
  EXPECT_THROW(store->queuePop("queue", false), c10::DistStoreError);
  EXPECT_EQ(store->clone()->get_to_str("text"), "first!");
}

TEST(C10dStores, AWaitWithoutATimeoutWaitsAsLongAsItTakes) {
  // Notes for how long it is asked to wait.
  struct AskedStore final : ForwardingStore {
    explicit AskedStore(std::shared_ptr<Store> store) : ForwardingStore(std::move(store)) {}
    void forward(const std::function<void(Store& store)>& call) override { call(*underlying()); }
    void wait(std::span<const std::string> keys, Milliseconds timeout) override {
      asked.push_back(timeout);
      ForwardingStore::wait(keys, timeout);
    }
    Value queue_pop_within(const std::string& queue, Milliseconds timeout) override {
      asked.push_back(timeout);
      return ForwardingStore::queue_pop_within(queue, timeout);
    }
    std::shared_ptr<Store> clone() override { return std::make_shared<AskedStore>(underlying()->clone()); }
    std::vector<Milliseconds> asked;
  };
  const auto ours = std::make_shared<AskedStore>(std::make_shared<HashStore>());
  ours->set("key", "x");
  ours->queue_push("queue", "x");
  const auto store = store_to_c10d(ours);
  store->wait({"key"}, c10d::Store::kNoTimeout);
  store->setTimeout(c10d::Store::kNoTimeout);
  store->wait({"key"});
  EXPECT_EQ(store->get_to_str("key"), "x");
  EXPECT_EQ(store->queuePop("queue", true), std::vector<std::uint8_t>{'x'});
  EXPECT_EQ(ours->asked, std::vector<Milliseconds>(4, Milliseconds::max()));
}

TEST(C10dStores, TheirsForOurs) {
  const c10::intrusive_ptr<c10d::Store> theirs = c10::make_intrusive<c10d::HashStore>();
  const auto store = store_from_c10d(theirs);
  EXPECT_EQ(store_to_c10d(store), theirs);
  store->set("key", std::string("\1\0\2", 3));
  EXPECT_EQ(store->get("key"), std::string("\1\0\2", 3));
  EXPECT_EQ(store->add("n", 2), 2);
  EXPECT_EQ(store->compare_set("text", "", "a"), "a");
  EXPECT_EQ(store->compare_set("text", "b", "c"), "a");
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 12
  EXPECT_EQ(store->list_keys(), (std::vector<std::string>{"key", "n", "text"}));
#else
  EXPECT_THROW(store->list_keys(), UnsupportedError);
#endif
  store->append("text", "!");
  const std::vector<std::string> keys{"text", "key"};
  EXPECT_EQ(store->multi_get(keys).at(0), "a!");
  const std::vector<std::string> values{"x", "y"};
  store->multi_set(keys, values);
  EXPECT_EQ(store->get("key"), "y");
  const std::string none = "none";
  EXPECT_FALSE(store->check(std::span(&none, 1)));
  store->set_timeout(Milliseconds(20));
  const std::vector<std::function<void()>> waits = {[&] { store->wait(std::span(&none, 1), Milliseconds(20)); },
                                                    [&] { store->get(none); }};
  for (const auto& wait : waits) {
    try {
      wait();
      ADD_FAILURE() << "there is no such key";
    } catch (const TimeoutError& error) {
      EXPECT_NE(std::string(error.what()).find("none"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(store->wait(std::span(&none, 1), Milliseconds(0)), TimeoutError);
  EXPECT_THROW(store->set("", "x"), InvalidArgument);
  EXPECT_THROW(store->wait(std::span(&none, 1), Milliseconds(-1)), InvalidArgument);
  EXPECT_THROW(store->set_timeout(Milliseconds(-1)), InvalidArgument);
  EXPECT_THROW(store_from_c10d({}), InvalidArgument);
  EXPECT_EQ(store->clone()->get("key"), "y");
}

// A queue is found by no key of its name, and the limit is that of the object that is asked.
TEST(C10dStores, AQueueIsWaitedForAsLongAsTheObjectSays) {
  const auto begin = std::chrono::steady_clock::now();
  const auto ours = std::make_shared<HashStore>();
  ours->set("key", "x");
  const auto for_theirs = store_to_c10d(ours);
  for_theirs->setTimeout(Milliseconds(20));
  for (const bool block : {false, true}) {
    EXPECT_THROW(for_theirs->queuePop("key", block), c10::DistStoreError);
    EXPECT_THROW(for_theirs->queuePop("none", block), c10::DistStoreError);
  }
  const auto theirs = c10::make_intrusive<c10d::HashStore>();
  theirs->setTimeout(kDefaultTimeout);
  const auto for_ours = store_from_c10d(theirs);
  for_ours->set_timeout(Milliseconds(20));
  EXPECT_THROW(for_ours->queue_pop("none"), TimeoutError);
  EXPECT_THROW(for_ours->queue_pop_within("none", Milliseconds(0)), TimeoutError);
  for_ours->queue_push("queue", "a");
  EXPECT_EQ(for_ours->queue_pop_within("queue", Milliseconds(0)), "a");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kDefaultTimeout / 2);
}

// Keys that each take nearly the time limit must not add up. A wait for a moment asks again and again: libtorch's
// TCPStore prints lines for each of its waits that ends without the keys.
TEST(C10dStores, OneTimeLimitHoldsForAllKeysOfAMultiGet) {
  struct Asked : c10d::HashStore {
    void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
      ADD_FAILURE() << "a wait of libtorch's";
      c10d::HashStore::wait(keys, timeout);
    }
    bool check(const std::vector<std::string>& keys) override {
      most_keys = std::max(most_keys, keys.size());
      return c10d::HashStore::check(keys);
    }
    std::size_t most_keys = 0;
  };
  const auto theirs = c10::make_intrusive<Asked>();
  const auto store = store_from_c10d(theirs);
  store->set_timeout(Milliseconds(20));
  const std::vector<std::string> keys{"a", "b", "c"};
  EXPECT_THROW(store->multi_get(keys), TimeoutError);
  EXPECT_EQ(theirs->most_keys, keys.size());
}

}  // namespace
}  // namespace gradwire::to_c10d_test
