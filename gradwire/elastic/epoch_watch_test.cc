// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The coordinator's word that a member is gone ends whatever a member waits in.
#include "gradwire/elastic/epoch_watch_internal.h"

#include <gtest/gtest.h>

#include <span>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/membership/records.h"
#include "gradwire/process_group/init.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::elastic_test {
namespace {

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
  const auto keys = watch.begin(4, {3, 9}, std::make_shared<PrefixStore>("world", job_));
  keys->set("here", "1");
  EXPECT_EQ(keys->get("here"), "1");
  std::thread loses([&] { lose(); });
  expect_names_the_rank([&] { keys->wait(std::vector<std::string>{"never"}, std::chrono::minutes(10)); });
  loses.join();
  expect_names_the_rank([&] { keys->get("here"); });
}

// With threads, the group of rank 0 waits for rank 1 for its timeout, half an hour.
TEST_F(EpochWatchTest, ALossEndsARendezvous) {
  internal::EpochWatch watch(job_);
  const auto keys = watch.begin(4, {3, 9}, std::make_shared<PrefixStore>("world", job_));
  std::thread loses([&] { lose(); });
  EXPECT_THROW(make_process_group("hybrid", keys, 0, 2), PeerError);
  loses.join();
}

TEST_F(EpochWatchTest, ALossAbortsTheGroupBeforeAndAfterItIsAttached) {
  internal::EpochWatch watch(job_);
  const auto group = std::make_shared<ElasticGroup>();
  watch.begin(4, {3, 9}, job_);
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
  watch.begin(5, {3}, job_);
  watch.attach(next);
  EXPECT_FALSE(is_aborted(*next));
}

}  // namespace
}  // namespace gradwire::elastic_test
