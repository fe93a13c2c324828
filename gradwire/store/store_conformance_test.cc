// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One suite over all stores: what store.h promises holds for each of them.
#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/store_test_support_internal.h"
#include "gradwire/store/tcp_store.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::store_conformance_test {
namespace {

using store_test::message_of;
using store_test::run_threads;

// Holds the stores of one test.
class Bench {
 public:
  virtual ~Bench() = default;
  // A handle as another rank would make it.
  virtual std::shared_ptr<Store> open() = 0;
};

class HashBench : public Bench {
 public:
  std::shared_ptr<Store> open() override { return store_->clone(); }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

class FileBench : public Bench {
 public:
  std::shared_ptr<Store> open() override { return std::make_shared<FileStore>(folder_.path() + "/store", 2); }

 private:
  test_support::TemporaryFolder folder_;
};

class TcpBench : public Bench {
 public:
  std::shared_ptr<Store> open() override { return std::make_shared<TcpStore>(TcpStoreOptions{.port = server_.port()}); }

 private:
  TcpStore server_{TcpStoreOptions{.is_server = true}};
};

template <class Underlying>
class PrefixBench : public Bench {
 public:
  std::shared_ptr<Store> open() override { return std::make_shared<PrefixStore>("job/1", bench_.open()); }

 private:
  Underlying bench_;
};

struct Kind {
  const char* name;
  std::unique_ptr<Bench> (*make)();
};

template <class B>
constexpr Kind kind(const char* name) {
  return {name, []() -> std::unique_ptr<Bench> { return std::make_unique<B>(); }};
}

class StoreConformance : public ::testing::TestWithParam<Kind> {
 protected:
  std::shared_ptr<Store> open() { return bench_->open(); }
  std::unique_ptr<Bench> bench_ = GetParam().make();
  std::shared_ptr<Store> store_ = bench_->open();
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformance,
                         ::testing::Values(kind<HashBench>("Hash"), kind<FileBench>("File"), kind<TcpBench>("Tcp"),
                                           kind<PrefixBench<HashBench>>("PrefixOverHash"),
                                           kind<PrefixBench<FileBench>>("PrefixOverFile"),
                                           kind<PrefixBench<PrefixBench<TcpBench>>>("PrefixOverPrefixOverTcp")),
                         [](const auto& info) { return std::string(info.param.name); });

using Keys = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string all_bytes() {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  return bytes;
}

TEST_P(StoreConformance, GetReturnsWhatAnotherHandleSetLast) {
  store_->set("key", "first");
  store_->set("key", "second");
  EXPECT_EQ(open()->get("key"), "second");
}

TEST_P(StoreConformance, KeysAndValuesHoldAnyByte) {
  const std::string odd = all_bytes();
  store_->set(odd, odd + odd);
  store_->set(std::string("\0", 1), "");
  store_->set(std::string("\0\0", 2), std::string("\0", 1));
  store_->queue_push(odd, odd);
  const auto other = open();
  EXPECT_EQ(other->get(odd), odd + odd);
  EXPECT_EQ(other->get(std::string("\0", 1)), "");
  EXPECT_EQ(other->get(std::string("\0\0", 2)), std::string("\0", 1));
  EXPECT_EQ(other->queue_pop(odd), odd);
}

TEST_P(StoreConformance, ALargeValueComesBackWhole) {
  std::string value(Store::kMaxValueBytes, 'x');
  for (std::size_t i = 0; i < value.size(); i += 4093) value[i] = static_cast<char>(i);
  const std::string key(Store::kMaxKeyBytes - 100, 'k');  // room for the prefixes
  store_->set(key, value);
  EXPECT_TRUE(open()->get(key) == value);
}

TEST_P(StoreConformance, GetWaitsForTheKey) {
  const auto other = open();
  auto value = std::async(std::launch::async, [&] { return other->get("late"); });
  EXPECT_EQ(value.wait_for(Milliseconds(50)), std::future_status::timeout);
  store_->set("late", "here");
  EXPECT_EQ(value.get(), "here");
}

TEST_P(StoreConformance, AWaitingCallHoldsUpNoOtherOfTheSameHandle) {
  auto value = std::async(std::launch::async, [&] { return store_->get("late"); });
  EXPECT_EQ(value.wait_for(Milliseconds(50)), std::future_status::timeout);
  store_->set("late", "here");  // would wait for the get, and the get for it
  EXPECT_EQ(value.get(), "here");
}

TEST_P(StoreConformance, WaitsEndInTimeAndNameWhatIsMissing) {
  const Milliseconds limit(60);
  store_->set("there", "");
  store_->set_timeout(limit);
  const auto begin = Deadline::Clock::now();
  EXPECT_TRUE(contains(message_of<TimeoutError>([&] { store_->get("no\x01ne"); }), "no\\x01ne'"));
  EXPECT_GE(Deadline::Clock::now() - begin, limit);

  const std::string text = message_of<TimeoutError>([&] {
    store_->wait(Keys{"there", "missing1", "missing2"}, limit);
  });
  EXPECT_TRUE(contains(text, "missing1'") && contains(text, "missing2'")) << text;
  EXPECT_FALSE(contains(text, "there'")) << text;
  EXPECT_TRUE(contains(text, "60 ms")) << text;

  const auto expect_named = [](const std::string& message, const char* call, const char* missing) {
    EXPECT_TRUE(contains(message, missing)) << message;
    EXPECT_TRUE(contains(message, concat(": ", call, ": timeout"))) << message;
  };
  expect_named(message_of<TimeoutError>([&] { store_->get("away"); }), "get", "away'");
  expect_named(message_of<TimeoutError>([&] { store_->multi_get(Keys{"there", "away"}); }), "multi_get", "away'");
  expect_named(message_of<TimeoutError>([&] { store_->queue_pop("queue"); }), "queue_pop", "queue'");
  expect_named(message_of<TimeoutError>([&] { store_->queue_pop_within("queue", Milliseconds(1)); }),
               "queue_pop_within", "queue'");
  EXPECT_THROW(store_->wait(Keys{"away"}), TimeoutError);
  EXPECT_THROW(store_->wait(Keys{"away"}, Milliseconds(0)), TimeoutError);
  EXPECT_EQ(store_->get("there"), "") << "a handle is as good as new after a timeout";
}

TEST_P(StoreConformance, ATimeoutOfZeroStillFindsWhatIsThere) {
  open()->set("there", "value");
  open()->queue_push("queue", "element");
  store_->set_timeout(Milliseconds(0));
  EXPECT_EQ(store_->get("there"), "value");
  EXPECT_EQ(store_->queue_pop("queue"), "element");
  store_->wait(Keys{"there"});
}

TEST_P(StoreConformance, WaitReturnsWhenTheLastKeyComes) {
  const auto other = open();
  auto waiting = std::async(std::launch::async, [&] { other->wait(Keys{"a", "b", "c"}, std::chrono::minutes(2)); });
  store_->set("c", "");
  store_->set("a", "");
  EXPECT_EQ(waiting.wait_for(Milliseconds(50)), std::future_status::timeout);
  store_->add("b", 1);
  waiting.get();
  store_->wait(Keys{}, Milliseconds(0));
}

TEST_P(StoreConformance, CheckTellsWhetherAllKeysAreThere) {
  store_->set("a", "");
  EXPECT_TRUE(open()->check(Keys{"a"}));
  EXPECT_FALSE(open()->check(Keys{"a", "b"}));
  EXPECT_TRUE(open()->check(Keys{}));
}

TEST_P(StoreConformance, AddCounts) {
  EXPECT_EQ(store_->add("n", 5), 5);
  EXPECT_EQ(open()->add("n", -7), -2);
  EXPECT_EQ(store_->get("n"), "-2");
  store_->set("n", "40");
  EXPECT_EQ(store_->add("n", 2), 42);
  EXPECT_EQ(store_->add("n", 0), 42);
}

TEST_P(StoreConformance, AddRefusesWhatIsNoNumberAndWhatDoesNotFit) {
  for (const char* text : {"", "x", "1x", " 1", "99999999999999999999"}) {
    store_->set("n", text);
    EXPECT_THROW(store_->add("n", 1), StoreError) << text;
    EXPECT_EQ(store_->get("n"), text);
  }
  store_->set("n", std::to_string(std::numeric_limits<std::int64_t>::max()));
  EXPECT_THROW(store_->add("n", 1), StoreError);
  EXPECT_EQ(store_->add("n", -1), std::numeric_limits<std::int64_t>::max() - 1);
}

TEST_P(StoreConformance, CompareSetSetsOnlyWhatWasExpected) {
  EXPECT_EQ(store_->compare_set("k", "something", "new"), "something");
  EXPECT_FALSE(store_->check(Keys{"k"}));
  EXPECT_EQ(store_->compare_set("k", "", "one"), "one");
  EXPECT_EQ(open()->compare_set("k", "two", "three"), "one");
  EXPECT_EQ(open()->compare_set("k", "", "three"), "one");
  EXPECT_EQ(open()->compare_set("k", "one", "two"), "two");
  EXPECT_EQ(store_->get("k"), "two");
}

TEST_P(StoreConformance, DeleteKeyRemovesOneKey) {
  store_->set("a", "1");
  store_->set("b", "2");
  EXPECT_TRUE(open()->delete_key("a"));
  EXPECT_FALSE(store_->delete_key("a"));
  EXPECT_FALSE(store_->check(Keys{"a"}));
  EXPECT_EQ(store_->get("b"), "2");
  EXPECT_EQ(store_->add("a", 1), 1) << "an absent key counts as 0";
}

TEST_P(StoreConformance, NumKeysCountsKeysButNotQueues) {
  EXPECT_EQ(store_->num_keys(), 0);
  store_->set("a", "");
  store_->add("b", 1);
  store_->append("c", "x");
  store_->compare_set("d", "", "y");
  store_->set("a", "again");
  store_->queue_push("q", "element");
  EXPECT_EQ(open()->num_keys(), 4);
  store_->delete_key("a");
  EXPECT_EQ(open()->num_keys(), 3);
}

TEST_P(StoreConformance, ListKeysHasTheKeysInTheOrderOfTheirBytes) {
  EXPECT_EQ(store_->list_keys(), Keys());
  const std::string zero("\0", 1);
  for (const std::string& key : Keys{"b", "a/b", "\xff", "a", zero, "aa", "gone"}) store_->set(key, "");
  store_->queue_push("queue", "element");
  store_->delete_key("gone");
  EXPECT_EQ(open()->list_keys(), (Keys{zero, "a", "a/b", "aa", "b", "\xff"}));
}

TEST_P(StoreConformance, ListKeysOfAPrefixHasThoseUnderIt) {
  PrefixStore inner("a", store_);
  for (const std::string& key : Keys{"b", "ab", "a/b"}) {
    store_->set(key, "");
    inner.set(key, "");
  }
  EXPECT_EQ(store_->list_keys(), (Keys{"a/a/b", "a/ab", "a/b", "ab", "b"}));
  EXPECT_EQ(inner.list_keys(), (Keys{"a/b", "ab", "b"}));
  EXPECT_EQ(PrefixStore("a", PrefixStore("a", store_).clone()).list_keys(), Keys{"b"});
}

TEST_P(StoreConformance, AppendExtends) {
  store_->append("k", "one");
  open()->append("k", "");
  open()->append("k", std::string("\0two", 4));
  EXPECT_EQ(store_->get("k"), std::string("one\0two", 7));
}

TEST_P(StoreConformance, MultiSetAndMultiGetKeepTheOrder) {
  store_->multi_set(Keys{"a", "b", "c"}, Keys{"1", "", "3"});
  EXPECT_EQ(open()->multi_get(Keys{"c", "a", "b", "a"}), (Keys{"3", "1", "", "1"}));
  EXPECT_EQ(open()->multi_get(Keys{}), Keys{});
  store_->multi_set(Keys{}, Keys{});
  store_->multi_set(Keys{"a", "a"}, Keys{"first", "last"});
  EXPECT_EQ(open()->get("a"), "last");
  EXPECT_THROW(store_->multi_set(Keys{"a", "b"}, Keys{"1"}), InvalidArgument);
  EXPECT_EQ(store_->get("a"), "last");
}

TEST_P(StoreConformance, MultiGetWaitsForAllKeys) {
  const auto other = open();
  auto values = std::async(std::launch::async, [&] { return other->multi_get(Keys{"a", "b"}); });
  store_->set("b", "2");
  EXPECT_EQ(values.wait_for(Milliseconds(50)), std::future_status::timeout);
  store_->set("a", "1");
  EXPECT_EQ(values.get(), (Keys{"1", "2"}));
}

TEST_P(StoreConformance, QueuesAreFirstInFirstOut) {
  EXPECT_EQ(store_->queue_length("q"), 0);
  for (const char* element : {"1", "", "3"}) store_->queue_push("q", element);
  store_->queue_push("other", "x");
  EXPECT_EQ(open()->queue_length("q"), 3);
  EXPECT_EQ(open()->queue_pop_within("q", Milliseconds(0)), "1");
  EXPECT_EQ(store_->queue_pop("q"), "");
  EXPECT_EQ(open()->queue_pop("q"), "3");
  EXPECT_EQ(store_->queue_length("q"), 0);
  EXPECT_EQ(store_->queue_length("other"), 1);
}

TEST_P(StoreConformance, QueuesAndKeysOfOneNameAreApart) {
  store_->queue_push("name", "element");
  store_->set_timeout(Milliseconds(20));
  EXPECT_TRUE(store_->check(Keys{"name"})) << "check and wait see a queue that is not empty";
  store_->wait(Keys{"name"});
  EXPECT_THROW(store_->get("name"), TimeoutError);
  EXPECT_FALSE(store_->delete_key("name"));
  store_->set("name", "value");
  EXPECT_EQ(store_->get("name"), "value");
  EXPECT_EQ(store_->queue_pop_within("name", Milliseconds(0)), "element");
  // The key of that name is no element.
  EXPECT_TRUE(contains(message_of<TimeoutError>([&] { store_->queue_pop_within("name", Milliseconds(0)); }), "name'"));
  EXPECT_THROW(store_->queue_pop_within("name", Milliseconds(20)), TimeoutError);
  EXPECT_TRUE(store_->delete_key("name"));
  EXPECT_FALSE(store_->check(Keys{"name"}));
}

TEST_P(StoreConformance, PopAndWaitWakeWhenAnElementComes) {
  const auto other = open();
  const auto third = open();
  auto waiting = std::async(std::launch::async, [&] { third->wait(Keys{"q", "k"}, std::chrono::minutes(2)); });
  auto popped = std::async(std::launch::async, [&] { return other->queue_pop("q"); });
  EXPECT_EQ(popped.wait_for(Milliseconds(50)), std::future_status::timeout);
  store_->queue_push("q", "element");
  EXPECT_EQ(popped.get(), "element");
  store_->queue_push("q", "stays");
  store_->set("k", "");
  waiting.get();
}

TEST_P(StoreConformance, AddIsAtomicAcrossHandlesAndThreads) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 25;
  std::vector<std::set<std::int64_t>> seen(kThreads);
  run_threads(kThreads, [&](int i) {
    const auto mine = i % 2 == 0 ? store_ : open();
    for (int round = 0; round < kRounds; ++round) seen[i].insert(mine->add("n", 1));
  });
  std::set<std::int64_t> all;
  for (const auto& part : seen) all.insert(part.begin(), part.end());
  EXPECT_EQ(all.size(), kThreads * kRounds) << "each add returned a number of its own";
  EXPECT_EQ(*all.rbegin(), kThreads * kRounds);
}

TEST_P(StoreConformance, CompareSetHasOneWinner) {
  std::atomic<int> winners{0};
  run_threads(8, [&](int i) {
    const std::string mine = "thread " + std::to_string(i);
    if (open()->compare_set("leader", "", mine) == mine) ++winners;
  });
  EXPECT_EQ(winners, 1);
}

TEST_P(StoreConformance, AppendIsAtomic) {
  run_threads(8, [&](int i) {
    const auto mine = open();
    for (int round = 0; round < 10; ++round) mine->append("log", std::string(10, static_cast<char>('a' + i)));
  });
  const std::string log = store_->get("log");
  std::map<char, int> counts;
  for (std::size_t at = 0; at < log.size(); at += 10) {
    ASSERT_EQ(log.substr(at, 10), std::string(10, log[at])) << "pieces are whole";
    ++counts[log[at]];
  }
  EXPECT_EQ(counts.size(), 8U);
  for (const auto& [letter, count] : counts) EXPECT_EQ(count, 10) << letter;
}

TEST_P(StoreConformance, EachElementIsPoppedExactlyOnce) {
  constexpr int kProducers = 4;
  constexpr int kElements = 25;
  std::vector<std::vector<std::string>> popped(kProducers);
  run_threads(2 * kProducers, [&](int i) {
    const auto mine = i % 3 == 0 ? store_ : open();
    for (int n = 0; n < kElements; ++n) {
      if (i < kProducers) {
        mine->queue_push("q", std::to_string(i) + "/" + std::to_string(n));
      } else {
        popped[i - kProducers].push_back(mine->queue_pop("q"));
      }
    }
  });
  std::multiset<std::string> all;
  for (const auto& part : popped) all.insert(part.begin(), part.end());
  std::multiset<std::string> expected;
  for (int i = 0; i < kProducers; ++i) {
    for (int n = 0; n < kElements; ++n) expected.insert(std::to_string(i) + "/" + std::to_string(n));
  }
  EXPECT_EQ(all, expected);
  EXPECT_EQ(store_->queue_length("q"), 0);
}

TEST_P(StoreConformance, BadArgumentsAreRefused) {
  const std::string long_key(Store::kMaxKeyBytes + 1, 'k');
  for (const std::string& key : {std::string(), long_key}) {
    EXPECT_THROW(store_->set(key, ""), InvalidArgument);
    EXPECT_THROW(store_->get(key), InvalidArgument);
    EXPECT_THROW(store_->add(key, 1), InvalidArgument);
    EXPECT_THROW(store_->compare_set(key, "", "x"), InvalidArgument);
    EXPECT_THROW(store_->wait(Keys{"a", key}, Milliseconds(0)), InvalidArgument);
    EXPECT_THROW(store_->check(Keys{key}), InvalidArgument);
    EXPECT_THROW(store_->delete_key(key), InvalidArgument);
    EXPECT_THROW(store_->append(key, "x"), InvalidArgument);
    EXPECT_THROW(store_->multi_get(Keys{key}), InvalidArgument);
    EXPECT_THROW(store_->multi_set(Keys{"a", key}, Keys{"1", "2"}), InvalidArgument);
    EXPECT_THROW(store_->queue_push(key, "x"), InvalidArgument);
    EXPECT_THROW(store_->queue_pop(key), InvalidArgument);
    EXPECT_THROW(store_->queue_length(key), InvalidArgument);
  }
  const std::string long_value(Store::kMaxValueBytes + 1, 'v');
  EXPECT_THROW(store_->set("a", long_value), InvalidArgument);
  EXPECT_THROW(store_->append("a", long_value), InvalidArgument);
  EXPECT_THROW(store_->queue_push("a", long_value), InvalidArgument);
  EXPECT_THROW(store_->compare_set("a", "", long_value), InvalidArgument);
  EXPECT_THROW(store_->set_timeout(Milliseconds(-1)), InvalidArgument);
  EXPECT_THROW(store_->wait(Keys{"a"}, Milliseconds(-1)), InvalidArgument);
  EXPECT_EQ(store_->num_keys(), 0);
  EXPECT_EQ(store_->timeout(), kDefaultTimeout);
}

TEST_P(StoreConformance, AppendStopsAtTheLimit) {
  store_->set("k", std::string(Store::kMaxValueBytes - 1, 'v'));
  store_->append("k", "1");
  EXPECT_THROW(store_->append("k", "2"), StoreError);
  EXPECT_EQ(store_->get("k").size(), Store::kMaxValueBytes);
}

TEST_P(StoreConformance, ACloneSharesTheDataAndHasItsOwnTimeout) {
  EXPECT_EQ(store_->timeout(), kDefaultTimeout);
  store_->set_timeout(Milliseconds(1234));
  store_->set("before", "1");
  const auto clone = store_->clone();
  EXPECT_EQ(clone->timeout(), Milliseconds(1234));
  clone->set_timeout(Milliseconds(5));
  EXPECT_EQ(store_->timeout(), Milliseconds(1234));
  EXPECT_EQ(clone->get("before"), "1");
  clone->set("after", "2");
  EXPECT_EQ(store_->get("after"), "2");
  store_.reset();
  EXPECT_EQ(clone->get("after"), "2") << "a clone outlives what it was made from";
}

TEST_P(StoreConformance, AnInterruptedThreadStopsWaiting) {
  const std::string never = "never";
  const std::vector<std::function<void()>> waits = {
      [&] { store_->get(never); }, [&] { store_->wait(std::span(&never, 1), kDefaultTimeout); },
      [&] { store_->multi_get(std::span(&never, 1)); }, [&] { store_->queue_pop(never); }};
  for (const auto& wait : waits) {
    static thread_local int looks = 0;
    looks = 0;
    const InterruptCheckScope check(+[]() noexcept { return ++looks > 3; });
    EXPECT_THROW(wait(), AbortedError);
  }
  store_->set("key", "value");
  EXPECT_EQ(store_->get("key"), "value");
}

TEST_P(StoreConformance, AForkedChildIsRefusedAndHarmsNothing) {
  const auto other = open();
  auto waiting = std::async(std::launch::async, [&] { return other->get("late"); });
  EXPECT_EQ(waiting.wait_for(Milliseconds(50)), std::future_status::timeout);
  const pid_t child = store_test::fork_child([&] {
    int refused = 0;
    try {
      store_->set("late", "from the child");
    } catch (const InvalidArgument&) {
      refused = 1;
    }
    store_.reset();
    bench_.reset();
    return refused;
  });
  EXPECT_EQ(store_test::wait_for(child), 1);
  EXPECT_EQ(waiting.wait_for(Milliseconds(20)), std::future_status::timeout);
  store_->set("late", "from the parent");
  EXPECT_EQ(waiting.get(), "from the parent");
  EXPECT_EQ(open()->get("late"), "from the parent");
}

}  // namespace
}  // namespace gradwire::store_conformance_test
