// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The coordinator's word that a member is gone ends whatever a member waits in.
#include "gradwire/elastic/epoch_watch_internal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/elastic/epoch_store_internal.h"
#include "gradwire/membership/records.h"
#include "gradwire/process_group/init.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "tests/support/counting_store.h"

namespace gradwire::elastic_test {
namespace {

// The first wait fails, as when a connection breaks.
class FailsOnce final : public Store {
 public:
  explicit FailsOnce(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  void wait(std::span<const std::string> keys, Milliseconds timeout) override {
    if (!failed_.exchange(true)) throw StoreError("for this test");
    store_->wait(keys, timeout);
  }
  bool failed() const { return failed_; }

  void set(const std::string& key, const Value& value) override { store_->set(key, value); }
  Value get(const std::string& key) override { return store_->get(key); }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return store_->add(key, amount); }
  Value compare_set(const std::string& key, const Value& expected, const Value& desired) override {
    return store_->compare_set(key, expected, desired);
  }
  bool check(std::span<const std::string> keys) override { return store_->check(keys); }
  bool delete_key(const std::string& key) override { return store_->delete_key(key); }
  std::int64_t num_keys() override { return store_->num_keys(); }
  void append(const std::string& key, const Value& value) override { store_->append(key, value); }
  std::vector<Value> multi_get(std::span<const std::string> keys) override { return store_->multi_get(keys); }
  void multi_set(std::span<const std::string> keys, std::span<const Value> values) override {
    store_->multi_set(keys, values);
  }
  void queue_push(const std::string& queue, const Value& value) override { store_->queue_push(queue, value); }
  Value queue_pop(const std::string& queue) override { return store_->queue_pop(queue); }
  std::int64_t queue_length(const std::string& queue) override { return store_->queue_length(queue); }
  Milliseconds timeout() const override { return store_->timeout(); }
  void set_timeout(Milliseconds timeout) override { store_->set_timeout(timeout); }
  std::shared_ptr<Store> clone() override { return store_->clone(); }

 private:
  const std::shared_ptr<Store> store_;
  std::atomic<bool> failed_{false};
};

class EpochWatchTest : public ::testing::Test {
 protected:
  // Member 9, rank 1, of epoch 4 is gone.
  void lose() { job_->set(membership::lost_key(4), "9"); }
  static void expect_names_the_rank(const std::function<void()>& call) {
    try {
      call();
      FAIL() << "the call returned";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.peers(), std::vector<int>{1});
      EXPECT_NE(std::string(error.what()).find("rank 1 (member 9 of the job) is gone"), std::string::npos)
          << error.what();
    }
  }

  std::shared_ptr<Store> job_ = std::make_shared<HashStore>();
};

TEST_F(EpochWatchTest, ALossEndsAWaitInTheStoreOfTheEpoch) {
  internal::EpochWatch watch(job_);
  const auto keys = watch.begin(4, {3, 9}, std::make_shared<PrefixStore>("world", job_), "");
  keys->set("here", "1");
  EXPECT_EQ(keys->get("here"), "1");
  std::thread loses([&] { lose(); });
  expect_names_the_rank([&] { keys->wait(std::vector<std::string>{"never"}, std::chrono::minutes(10)); });
  loses.join();
  expect_names_the_rank([&] { keys->get("here"); });
}

TEST_F(EpochWatchTest, ALookThatFailsIsNotTheLast) {
  const auto flaky = std::make_shared<FailsOnce>(job_);
  internal::EpochWatch watch(flaky);
  const auto keys = watch.begin(4, {3, 9}, std::make_shared<PrefixStore>("world", job_), "");
  const Deadline guard = Deadline::after(std::chrono::seconds(60));
  while (!flaky->failed() && !guard.expired()) std::this_thread::yield();
  ASSERT_TRUE(flaky->failed());
  lose();
  expect_names_the_rank([&] { keys->wait(std::vector<std::string>{"never"}, std::chrono::seconds(60)); });
}

// The addresses that ranks wait for are gone with the store in which they were.
TEST_F(EpochWatchTest, AnotherStoreEndsARendezvousAndNothingLater) {
  job_->set(membership::kStoreKey, "1");
  internal::EpochWatch watch(job_);
  const auto keys = watch.begin(4, {3, 9}, std::make_shared<PrefixStore>("world", job_), "1");
  std::thread changes([&] { job_->set(membership::kStoreKey, "2"); });
  EXPECT_THROW(keys->wait(std::vector<std::string>{"never"}, std::chrono::minutes(10)), AbortedError);
  changes.join();
  watch.end();
  const auto again = watch.begin(4, {3, 9}, std::make_shared<PrefixStore>("world", job_), "2");
  watch.attach(std::make_shared<ElasticGroup>());
  job_->set(membership::kStoreKey, "3");
  EXPECT_THROW(again->wait(std::vector<std::string>{"never"}, std::chrono::seconds(1)), TimeoutError);
}

// Rank 1 came to the meeting, and to nothing after it.
TEST_F(EpochWatchTest, ALossEndsCallsOfTheGroupWhoseDuplicatesAreBeingMade) {
  for (const bool before : {true, false}) {
    internal::EpochWatch watch(job_);
    const auto keys = watch.begin(4, {3, 9}, std::make_shared<PrefixStore>(before ? "a" : "b", job_), "");
    const auto place = std::make_shared<HashStore>();
    std::shared_ptr<ProcessGroup> made, of_the_lost;
    std::thread lost([&] { of_the_lost = make_process_group("threads", place, 1, 2); });
    made = make_process_group("threads", place, 0, 2);
    lost.join();
    if (before) {
      lose();
      EXPECT_THROW(keys->wait(std::vector<std::string>{"never"}, std::chrono::seconds(60)), PeerError);
    }
    watch.go_on_with(made);
    std::thread loses([&] { lose(); });
    EXPECT_THROW(made->all_reduce({at::ones({1})})->wait(), AbortedError);
    loses.join();
    job_->delete_key(membership::lost_key(4));
  }
}

// It waits in slices.
TEST_F(EpochWatchTest, AWaitThatIsTooLongNamesItsTimeout) {
  internal::EpochWatch watch(job_);
  const auto keys = watch.begin(4, {3, 9}, std::make_shared<PrefixStore>("world", job_), "");
  try {
    keys->wait(std::vector<std::string>{"never"}, Milliseconds(250));
    FAIL() << "the wait ended well";
  } catch (const TimeoutError& error) {
    EXPECT_NE(std::string(error.what()).find("250 ms"), std::string::npos) << error.what();
  }
}

// With threads, the group of rank 0 waits for rank 1 for its timeout, half an hour.
TEST_F(EpochWatchTest, ALossEndsARendezvous) {
  internal::EpochWatch watch(job_);
  const auto keys = watch.begin(4, {3, 9}, std::make_shared<PrefixStore>("world", job_), "");
  std::thread loses([&] { lose(); });
  EXPECT_THROW(make_process_group("hybrid", keys, 0, 2), PeerError);
  loses.join();
}

TEST_F(EpochWatchTest, ALossAbortsTheGroupBeforeAndAfterItIsAttached) {
  internal::EpochWatch watch(job_);
  const auto group = std::make_shared<ElasticGroup>();
  watch.begin(4, {3, 9}, job_, "");
  watch.attach(group);
  lose();
  const Deadline guard = Deadline::after(std::chrono::seconds(60));
  const auto is_aborted = [](ElasticGroup& each) {
    try {
      each.barrier()->wait();
      return false;
    } catch (const AbortedError&) {
      return true;
    }
  };
  while (!is_aborted(*group) && !guard.expired()) std::this_thread::yield();
  EXPECT_TRUE(is_aborted(*group));
  const auto later = std::make_shared<ElasticGroup>();
  watch.attach(later);
  EXPECT_TRUE(is_aborted(*later));
  // The next epoch is another one.
  watch.end();
  const auto next = std::make_shared<ElasticGroup>();
  watch.begin(5, {3}, job_, "");
  watch.attach(next);
  EXPECT_FALSE(is_aborted(*next));
}

// Requests cross links between hosts, and a rendezvous makes many.
TEST(EpochStoreTest, WhatWasWaitedForIsNotWaitedForAgain) {
  const auto counting = std::make_shared<test_support::CountingStore>(std::make_shared<HashStore>());
  internal::EpochStore store(counting, [] {});
  store.set_timeout(Milliseconds(50));
  for (const char* key : {"a", "b", "c"}) store.set(key, key);
  const auto requests_of = [&](const std::function<void()>& calls) {
    const int before = counting->calls();
    calls();
    return counting->calls() - before;
  };
  const std::vector<std::string> keys{"a", "b", "c"};
  EXPECT_EQ(requests_of([&] { store.get("a"); }), 2);
  EXPECT_EQ(requests_of([&] {
              store.wait(keys, Milliseconds(0));
              EXPECT_EQ(store.multi_get(keys), keys);
            }),
            2);
  EXPECT_EQ(requests_of([&] {
              store.wait(keys, Milliseconds(0));
              for (const std::string& key : keys) EXPECT_EQ(store.get(key), key);
            }),
            4);
  EXPECT_EQ(requests_of([&] { store.get("b"); }), 2) << "a wait counts once: the key may be gone";
  store.delete_key("b");
  EXPECT_THROW(store.get("b"), TimeoutError);
}

}  // namespace
}  // namespace gradwire::elastic_test
