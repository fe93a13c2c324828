// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups of libtorch's as groups of ours: Gloo as a backend by every way of meeting, the errors of engines, and groups
// that users derived from c10d's classes. Collectives, messages and ends of groups over Gloo are in process_group_test
// and process_group_life_test.
#include "gradwire/process_group/c10d/from_c10d.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <fstream>
#include <iterator>
#include <span>
#include <thread>

#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_store.h"
#include "gradwire/process_group/c10d/gloo_internal.h"
#include "gradwire/process_group/c10d/process_group_backend_internal.h"
#include "gradwire/process_group/init.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::from_c10d_test {
namespace {

using test_support::collect_ranks;
using test_support::run_ranks;
using test_support::TemporaryFolder;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr Milliseconds kLong = std::chrono::minutes(2);

void expect_sum_works(ProcessGroup& group) {
  at::Tensor tensor = at::full({3}, group.rank() + 1, at::kFloat);
  group.all_reduce({tensor})->wait();
  EXPECT_TRUE(at::equal(tensor, at::full({3}, group.size() * (group.size() + 1) / 2, at::kFloat)));
}

// The tests over Gloo.
class Gloo : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!internal::gloo_is_built()) GTEST_SKIP() << "built without Gloo's headers";
  }
};
class FromC10dGloo : public Gloo {};

std::uint16_t free_port() {
  TcpStoreOptions options;
  options.is_server = true;
  options.world_size = 1;
  return TcpStore(options).port();
}

void init_and_destroy(InitOptions options, int rank) {
  options.backend = "gloo";
  options.rank = rank;
  options.world_size = 2;
  options.timeout = kLong;
  for (int round = 0; round < 2; ++round) {
    const auto group = init_process_group(options);
    EXPECT_EQ(group->name(), "gloo");
    expect_sum_works(*group);
    const auto second = new_group();
    expect_sum_works(*second);
    destroy_process_group();
  }
}

TEST_F(Gloo, IsABackendByEveryWayOfMeeting) {
  const TemporaryFolder folder;
  const std::string port = std::to_string(free_port());
  const std::string file = folder.path() + "/meeting";
  const std::string rendezvous = folder.path() + "/rendezvous";
  run_ranks("gloo", 2, [&](int rank, const std::shared_ptr<Store>& store) {
    InitOptions options;
    options.method = "file://" + file;
    init_and_destroy(options, rank);
    options.method = "tcp://localhost:" + port;
    init_and_destroy(options, rank);
    options.method = "env://";
    ::setenv("GRADWIRE_RENDEZVOUS", rendezvous.c_str(), 1);
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", "2", 1);
    init_and_destroy(options, rank);
    options.store = std::make_shared<PrefixStore>("by store", store);
    init_and_destroy(options, rank);
  });
}

TEST_F(Gloo, RanksThatDoNotComeAreNamed) {
  run_ranks("gloo", 1, [](int, const std::shared_ptr<Store>& store) {
    try {
      make_process_group("gloo", store, 1, 3, Milliseconds(50));
      ADD_FAILURE() << "ranks 0 and 2 were not there";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(error.peers(), (std::vector<int>{0, 2})) << error.what();
    }
    EXPECT_THROW(make_process_group("gloo", store, 1, 4, Milliseconds(50)), MismatchError);
    EXPECT_THROW(make_process_group("gloo", store, 4, 4, Milliseconds(50)), InvalidArgument);
  });
}

// A rank whose cable was pulled as the ranks began to connect: one short try is lost, and the others begin no longer
// one before all have come back.
TEST_F(Gloo, RanksThatConnectWaitForALostRankWhereTheyHearOfItsEnd) {
  const auto store = std::make_shared<HashStore>();
  PrefixStore meeting("rendezvous", store);
  rendezvous::claim_rank(meeting, "gloo", 1, 2);
  meeting.set("here0/1", "1");
  std::exception_ptr error;
  std::thread other([&] {
    try {
      internal::make_gloo_group(Deadline::after(kLong), store, 0, 2, kLong);
    } catch (...) {
      error = std::current_exception();
    }
  });
  const std::string back = "here1/0";
  EXPECT_NO_THROW(meeting.wait(std::span(&back, 1), kLong));
  rendezvous::announce_failure(meeting, 1, PeerError("this rank is lost on purpose", {1}));
  other.join();
  ASSERT_NE(error, nullptr);
  EXPECT_THROW(std::rethrow_exception(error), PeerError);
  const std::vector<std::string> keys = store->list_keys();
  const auto is_of_try = [&](const std::string& name) {
    return std::any_of(keys.begin(), keys.end(),
                       [&](const std::string& key) { return key.find(name) != std::string::npos; });
  };
  EXPECT_TRUE(is_of_try("try0/"));
  EXPECT_FALSE(is_of_try("try1/"));
}

TEST_F(Gloo, ADeadRankIsAPeerErrorAtOnce) {
  const auto ends = collect_ranks("gloo", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("gloo", store, rank, 2, kLong);
    expect_sum_works(*group);
    const std::string summed = "summed";
    if (rank == 1) {
      store->wait(std::span(&summed, 1), kLong);  // Gloo may need this rank until the other has its sum
      ::_exit(3);
    }
    store->set(summed, "1");
    at::Tensor tensor = at::ones({100});
    EXPECT_THROW(group->all_reduce({tensor})->wait(), PeerError);
    EXPECT_THROW(group->barrier()->wait(), PeerError);  // the first reason stays
    EXPECT_THROW(group->dup(), PeerError);
  });
  EXPECT_FALSE(ends[0].failed) << ends[0].message;
}

TEST_F(Gloo, MonitoredBarriersLeaveTheKeysOfTheLastOneOnly) {
  run_ranks("gloo", 3, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("gloo", store, rank, 3, kLong);
    std::int64_t after_one = 0;
    for (int i = 0; i < 20; ++i) {
      group->monitored_barrier(kLong);
      group->barrier()->wait();  // rank 0 has cleaned up
      if (i == 0) after_one = store->num_keys();
      group->barrier()->wait();
    }
    EXPECT_EQ(store->num_keys(), after_one);
    group->barrier()->wait();
  });
}

TEST_F(Gloo, DuplicatesRunSideBySide) {
  run_ranks("gloo", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("gloo", store, rank, 2, kLong);
    std::vector<std::shared_ptr<ProcessGroup>> lanes;
    for (int i = 0; i < 3; ++i) lanes.push_back(group->dup());
    // Each rank starts them in an order of its own.
    std::vector<at::Tensor> tensors(3);
    std::vector<std::shared_ptr<Work>> works;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t which = rank == 0 ? i : 2 - i;
      tensors[which] = at::full({1 << 16}, static_cast<double>(which + 1));
      works.push_back(lanes[which]->all_reduce({tensors[which]}));
    }
    for (const auto& work : works) work->wait();
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(at::equal(tensors[i], at::full({1 << 16}, 2 * static_cast<double>(i + 1))));
  });
}

// A group as PyTorch users know it: named, with a store, and Gloo behind the CPU.
c10::intrusive_ptr<c10d::ProcessGroup> pytorch_group(const std::shared_ptr<Store>& store, int rank, int size) {
  const auto theirs = store_to_c10d(store);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(theirs, rank, size);
  const auto engine =
      internal::make_gloo(store_to_c10d(std::make_shared<PrefixStore>("gloo", store)), rank, size, kLong);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, engine);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  group->setGroupName("theirs");
  return group;
}

TEST_F(FromC10dGloo, AGroupWithAStoreHasDuplicatesAndSplits) {
  run_ranks("gloo", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto theirs = pytorch_group(store, rank, 2);
    for (int wrapper = 0; wrapper < 2; ++wrapper) {
      const auto group = from_c10d(theirs);
      EXPECT_EQ(group->name(), "gloo");
      EXPECT_EQ(group->group_name(), "theirs");
      expect_sum_works(*group);
      for (int i = 0; i < 2; ++i) {
        const auto copy = group->dup();
        ASSERT_NE(copy, nullptr);
        expect_sum_works(*copy);
        const auto again = copy->dup();
        expect_sum_works(*again);
      }
      const auto alone = group->split(rank);
      EXPECT_EQ(alone->size(), 1);
      expect_sum_works(*alone);
      group->monitored_barrier(kLong);
    }
  });
}

TEST_F(FromC10dGloo, AGroupKeepsTheTimeLimitOfWhatItWraps) {
  run_ranks("gloo", 2, [](int rank, const std::shared_ptr<Store>& store) {
    EXPECT_EQ(from_c10d(pytorch_group(store, rank, 2))->timeout(), kLong);
    const auto short_store = std::make_shared<PrefixStore>("short", store);
    const auto engine = internal::make_gloo(store_to_c10d(short_store), rank, 2, kLong);
    engine->setTimeout(Milliseconds(2000));  // now that the ranks have connected
    const auto group = from_c10d(engine);
    EXPECT_EQ(group->timeout(), Milliseconds(2000));
    if (rank == 0) {
      const auto begin = Deadline::Clock::now();
      EXPECT_THROW(group->all_reduce({at::ones({2})})->wait(), Error);
      EXPECT_LT(Deadline::Clock::now() - begin, kLong);
    }
    store->set(concat("ended/", rank), "");
    const std::vector<std::string> ended = {"ended/0", "ended/1"};
    store->wait(ended, kLong);
  });
}

// Over Gloo gradwire divides, and halves before the sum.
TEST_F(Gloo, ReduceScatterAveragesEveryType) {
  run_ranks("gloo", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("gloo", store, rank, 2, kLong);
    for (const at::ScalarType type :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kComplexDouble, at::kComplexHalf}) {
      SCOPED_TRACE(c10::toString(type));
      // Rows for both ranks: 2 and 4, and 20 and 40. The sums are 6 and 60.
      const at::Tensor input = at::tensor({2.0, 20.0}, at::kDouble).mul(rank + 1).to(type);
      const double sum = rank == 0 ? 6 : 60;
      for (const auto& [op, expected] : std::vector<std::pair<ReduceOp, double>>{
               {ReduceOp::sum(), sum}, {ReduceOp::avg(), sum / 2}, {ReduceOp::premul_sum(0.25), sum / 4}}) {
        SCOPED_TRACE(name_of(op.kind));
        ReduceScatterOptions options;
        options.op = op;
        const auto is = [](const at::Tensor& tensor, double value) {
          return tensor.to(at::kComplexDouble).item<c10::complex<double>>() == c10::complex<double>(value);
        };
        at::Tensor whole = at::full({1}, 9, at::kDouble).to(type);
        group->reduce_scatter_tensor(whole, input, options)->wait();
        EXPECT_TRUE(is(whole, expected)) << whole;
        at::Tensor listed = at::full({1}, 9, at::kDouble).to(type);
        group->reduce_scatter({listed}, {{input.slice(0, 0, 1), input.slice(0, 1, 2)}}, options)->wait();
        EXPECT_TRUE(is(listed, expected)) << listed;
        EXPECT_TRUE(is(input.slice(0, 0, 1), 2.0 * (rank + 1))) << "the input";
      }
    }
  });
}

// Each dropped message has a thread that waits for it; a thread that has ended and was not joined keeps its stack.
TEST_F(Gloo, DroppedMessagesLeaveNoThreads) {
  run_ranks("gloo", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("gloo", store, rank, 2, kLong);
    const auto mappings = [] {
      std::ifstream file("/proc/self/maps");
      return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
    };
    const auto before = mappings();
    for (int i = 0; i < 400; ++i) {
      if (rank == 0) {
        group->send({at::ones({1})}, 1, 0);
      } else {
        at::Tensor got = at::zeros({1});
        group->recv({got}, 0, 0)->wait();
      }
      if (i % 20 == 19) group->barrier()->wait();
    }
    EXPECT_LT(mappings(), before + 200);
  });
}

// Of a thread that was interrupted once and for all.
bool is_interrupted() noexcept { return true; }

// Rank 0 runs `body`, whose calls rank 1 does not answer.
template <class Body>
void with_a_silent_peer(const Body& body) {
  run_ranks("gloo", 2, [&](int rank, const std::shared_ptr<Store>& store) {
    const auto group = make_process_group("gloo", store, rank, 2, kLong);
    expect_sum_works(*group);
    const std::string ended = "ended";
    if (rank == 1) return store->wait(std::span(&ended, 1), kLong);
    body(*group);
    store->set(ended, "1");
  });
}

TEST_F(Gloo, AnInterruptedShutdownEndsTheCallsUnderWay) {
  with_a_silent_peer([](ProcessGroup& group) {
    at::Tensor sum = at::ones({1});
    at::Tensor received = at::ones({1});
    const auto collective = group.all_reduce({sum});
    const auto message = group.recv({received}, 1, 0);
    {
      const InterruptCheckScope interrupted(is_interrupted);
      EXPECT_THROW(group.shutdown(), AbortedError);
    }
    EXPECT_THROW(collective->wait(), AbortedError);
    EXPECT_THROW(message->wait(), AbortedError);
    EXPECT_THROW(group.barrier(), InvalidArgument);  // it was shut down all the same
  });
}

TEST_F(Gloo, ACallThatIsInterruptedEndsTheGroup) {
  with_a_silent_peer([](ProcessGroup& group) {
    at::Tensor ahead = at::ones({1});
    const auto queued = group.all_reduce({ahead});
    {
      const InterruptCheckScope interrupted(is_interrupted);
      AllReduceOptions now;
      now.async = false;
      at::Tensor sum = at::ones({1});
      EXPECT_THROW(group.all_reduce({sum}, now)->wait(), AbortedError);
    }
    EXPECT_THROW(queued->wait(), AbortedError);
    EXPECT_THROW(group.barrier()->wait(), AbortedError);
    group.shutdown();
  });
}

TEST_F(FromC10dGloo, WithoutAStoreThereAreNoDuplicates) {
  run_ranks("gloo", 2, [](int rank, const std::shared_ptr<Store>& store) {
    const auto group = from_c10d(internal::make_gloo(store_to_c10d(store), rank, 2, kLong));
    expect_sum_works(*group);
    EXPECT_EQ(group->dup(), nullptr);
    EXPECT_THROW(group->split(0), UnsupportedError);
    group->monitored_barrier(kLong);
    at::Tensor complex = at::ones({2}, at::kComplexFloat);
    AllReduceOptions product;
    product.op = ReduceOp::product();
    EXPECT_THROW(group->all_reduce({complex}, product), UnsupportedError);
    expect_sum_works(*group);
    for (const at::ScalarType type : {at::kShort, at::kUInt16, at::kFloat8_e4m3fn}) {
      // Nothing of such a list is reduced.
      const at::Tensor first = at::ones({2}), second = at::ones({2}).to(type);
      EXPECT_THROW(group->all_reduce({first, second}), InvalidArgument);
      EXPECT_THROW(group->reduce({first, second}), InvalidArgument);
      EXPECT_THROW(group->reduce_scatter_tensor(at::ones({1}).to(type), second), InvalidArgument);
      EXPECT_TRUE(at::equal(first, at::ones({2})));
      expect_sum_works(*group);
    }
  });
}

// Work whose results are there, without a future.
class BareWork final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return true; }
};

// A group as a user writes one, alone in its world: the calls are overridden, there is no backend.
class UsersGroup final : public c10d::ProcessGroup {
 public:
  UsersGroup() : c10d::ProcessGroup(0, 1) {}
  const std::string getBackendName() const override { return "mine"; }
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    EXPECT_EQ(options.timeout, Milliseconds(1234));
    ++calls;
    if (tensors.at(0).numel() == 7) throw std::runtime_error("connection lost");
    return c10::make_intrusive<BareWork>();
  }
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions&) override {
    ++calls;
    outputs.at(0).at(0).copy_(inputs.at(0));
    return c10::make_intrusive<BareWork>();
  }
  int calls = 0;
};

// A backend that knows what became of its calls.
class TellingBackend final : public c10d::Backend {
 public:
  explicit TellingBackend(c10d::ErrorType error) : c10d::Backend(0, 1), error_(error) {}
  const std::string getBackendName() const override { return "telling"; }
  c10d::ErrorType getError() override { return error_; }

 private:
  const c10d::ErrorType error_;
};

// As torch's "cpu:gloo,cuda:nccl".
TEST(FromC10d, AGroupOfSeveralBackendsTellsTheErrorOfTheOneForDevices) {
  using Kind = c10d::ProcessGroup::BackendType;
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  internal::ProcessGroupBackend whole(group);
  EXPECT_EQ(whole.getError(), c10d::ErrorType::SUCCESS);
  const auto add = [&](c10::DeviceType device, Kind kind, c10d::ErrorType error) {
    group->setBackend(device, kind, c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<TellingBackend>(error)));
  };
  add(c10::DeviceType::CPU, Kind::GLOO, c10d::ErrorType::COMM_ERROR);
  add(c10::DeviceType::CUDA, Kind::NCCL, c10d::ErrorType::TIMEOUT);
  EXPECT_EQ(whole.getError(), c10d::ErrorType::TIMEOUT);
}

// Receives at once, and counts the waits for a message after its first.
class ReceivingBackend final : public c10d::Backend {
 public:
  ReceivingBackend() : c10d::Backend(0, 2) {}
  const std::string getBackendName() const override { return "receiving"; }
  WorkPtr recv(std::vector<at::Tensor>&, int, int) override { return c10::make_intrusive<Received>(second_waits); }
  std::atomic<int> second_waits{0};

 private:
  class Received final : public c10d::Work {
   public:
    explicit Received(std::atomic<int>& second_waits) : second_waits_(second_waits) {}
    bool wait(std::chrono::milliseconds) override {
      if (waits_.fetch_add(1) > 0) ++second_waits_;
      return true;
    }
    Future getFuture() override { throw std::runtime_error("no future"); }

   private:
    std::atomic<int>& second_waits_;
    std::atomic<int> waits_{0};
  };
};

// Gloo's second wait for a message lasts until the timeout, and then the group is at its end.
TEST(FromC10d, ThreadsThatWaitForOneMessageWaitOnceForTheEngine) {
  constexpr int kMessages = 5000;
  const auto engine = c10::make_intrusive<ReceivingBackend>();
  const auto group = from_c10d(c10::intrusive_ptr<c10d::Backend>(engine));
  std::shared_ptr<Work> message;
  std::barrier<> meet(2);
  std::thread other([&] {
    for (int i = 0; i < kMessages; ++i) {
      meet.arrive_and_wait();
      message->wait();
      meet.arrive_and_wait();
    }
  });
  for (int i = 0; i < kMessages; ++i) {
    message = group->recv({at::zeros({1})}, 1);
    meet.arrive_and_wait();
    message->wait();
    meet.arrive_and_wait();
  }
  other.join();
  EXPECT_EQ(engine->second_waits, 0);
}

// Its reductions end when the test says so, and its sends return then. Notes which thread ends it.
class HeldBackend final : public c10d::Backend {
 public:
  struct Course {
    const Future reduced = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    std::atomic<bool> sending{false};
    std::atomic<bool> may_return{false};
    std::atomic<bool> ended{false};
    std::thread::id ended_by;  // valid when `ended` is set
  };
  explicit HeldBackend(Course& course) : c10d::Backend(0, 2), course_(course) {}
  ~HeldBackend() override {
    course_.ended_by = std::this_thread::get_id();
    course_.ended = true;
  }
  const std::string getBackendName() const override { return "held"; }
  WorkPtr allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10d::Work::create_from_future(course_.reduced);
  }
  WorkPtr send(std::vector<at::Tensor>& tensors, int, int) override {
    course_.sending = true;
    while (!course_.may_return) std::this_thread::yield();
    const auto sent = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    sent->markCompleted(tensors);
    return c10d::Work::create_from_future(sent);
  }

 private:
  Course& course_;
};

// An engine that ended there would join its own thread, and the process would end.
TEST(FromC10d, ACallWithinACallbackDoesNotEndTheEngineOnItsOwnThread) {
  HeldBackend::Course course;
  const auto group = from_c10d(c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<HeldBackend>(course)));
  const at::Tensor tensor = at::ones({1});
  const std::shared_ptr<Work> work = group->all_reduce({tensor});
  const Future called = work->future()->then(
      [&](c10::ivalue::Future&) {
        group->send({tensor}, 1);
        return c10::IValue(1);
      },
      c10::IntType::get());
  std::thread of_engine([&] { course.reduced->markCompleted(std::vector<at::Tensor>{tensor}); });
  const std::thread::id its_id = of_engine.get_id();
  while (!course.sending) std::this_thread::yield();
  group->shutdown();
  course.may_return = true;
  of_engine.join();
  const Deadline guard = Deadline::after(kLong);
  while (!course.ended && !guard.expired()) std::this_thread::yield();
  ASSERT_TRUE(course.ended);
  EXPECT_NE(course.ended_by, its_id);
}

TEST(FromC10d, AUsersGroupNeedsOnlyWhatIsCalled) {
  run_ranks("threads", 1, [](int, const std::shared_ptr<Store>&) {
    const auto theirs = c10::make_intrusive<UsersGroup>();
    const auto group = from_c10d(c10::intrusive_ptr<c10d::ProcessGroup>(theirs));
    EXPECT_EQ(group->name(), "mine");
    EXPECT_EQ(group->dup(), nullptr);
    AllReduceOptions options;
    options.timeout = Milliseconds(1234);
    at::Tensor tensor = at::ones({2});
    EXPECT_TRUE(group->all_reduce({tensor}, options)->wait());
    at::Tensor whole = at::zeros({2});
    group->all_gather_into_tensor(whole, tensor)->wait();
    EXPECT_TRUE(at::equal(whole, tensor));
    EXPECT_EQ(theirs->calls, 2);
    at::Tensor seven = at::ones({7});
    EXPECT_THROW(group->all_reduce({seven}, options)->wait(), PeerError);
    EXPECT_THROW(group->all_reduce({tensor}, options)->wait(), PeerError);  // at its end
    EXPECT_EQ(theirs->calls, 3);
  });
}

}  // namespace
}  // namespace gradwire::from_c10d_test
