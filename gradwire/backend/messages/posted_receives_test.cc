// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests, against a plain list, which receive is found, however many there are and whether there is memory.
#include "gradwire/backend/messages/posted_receives_internal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "gradwire/backend/messages/refused_memory_test_support.h"

namespace gradwire::messages::posted_receives_test {
namespace {

class PostedReceivesTest : public ::testing::Test {
 protected:
  void add(int peer, std::uint32_t tag) {
    auto receive = std::make_unique<Message>(Message::Direction::receive, 1, peer, tag, nullptr, 0);
    receive->peer = peer;
    Message& posted = *receive;
    receives_.push_back(std::move(receive));
    allocations_before_a_refusal = refuses_ ? 0 : -1;
    posted_.add(posted);
    allocations_before_a_refusal = -1;
  }
  void remove(Message* receive) {
    MessageQueue::remove(*receive);
    std::erase_if(receives_, [&](const auto& each) { return each.get() == receive; });
  }
  Message* expected(int source, std::uint32_t tag) const {
    const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const auto& receive) {
      return receive->tag == tag && (receive->peer == kAnySource || receive->peer == source);
    });
    return found == receives_.end() ? nullptr : found->get();
  }
  // Receives are posted and matched at random, and now and then one is given up. First more come, then more go.
  void run_at_random(std::uint32_t peers, std::uint32_t tags, std::uint32_t of_any_in_hundred) {
    std::mt19937 random(peers * 1000 + tags);
    for (int step = 0; step < 4000; ++step) {
      const std::uint32_t tag = random() % tags;
      const int peer = static_cast<int>(random() % peers);
      if (random() % 100 < (step % 2000 < 1000 ? 80U : 20U)) {
        add(random() % 100 < of_any_in_hundred ? kAnySource : static_cast<int>(random() % peers), tag);
      }
      Message* const found = posted_.find(peer, tag);
      ASSERT_EQ(found, expected(peer, tag)) << "step " << step;
      if (found != nullptr && random() % 4 != 0) remove(found);
      if (!receives_.empty() && random() % 10 == 0) remove(receives_[random() % receives_.size()].get());
    }
    while (!receives_.empty()) remove(receives_.back().get());
  }

  bool refuses_ = false;
  PostedReceives posted_;
  std::vector<std::unique_ptr<Message>> receives_;  // in the order of posting
};

TEST_F(PostedReceivesTest, TheFirstThatWasPostedIsFoundAmongThoseOfTheRankAndOfAnyRank) {
  run_at_random(1, 700, 0);
  run_at_random(3, 2, 30);
  run_at_random(40, 40, 10);
  run_at_random(700, 1, 0);
}

TEST_F(PostedReceivesTest, WithoutMemoryForMoreQueuesTheSameReceivesAreFound) {
  refuses_ = true;
  run_at_random(1, 700, 0);
  run_at_random(40, 40, 50);
}

}  // namespace
}  // namespace gradwire::messages::posted_receives_test
