// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the launcher asks of the thread that serves its host: each question gets the answer of a talk that began after
// it, and nobody waits for a thread that has ended.
#include "launch/host_mailbox.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "gradwire/base/process.h"

namespace gradwire::launch::host_mailbox_test {
namespace {

// A launcher that waits in answers().
class Asker final {
 public:
  explicit Asker(HostMailbox& mailbox) : thread_("asker", [&] { answer_ = mailbox.answers(); }) {}
  bool answer() {
    thread_.join();
    return *answer_;
  }

 private:
  std::optional<bool> answer_;
  Thread thread_;
};

HostMailbox::Orders orders_with_question(HostMailbox& mailbox) {
  while (true) {
    const auto orders = mailbox.take_orders();
    if (orders->asks) return *orders;
    std::this_thread::yield();
  }
}

TEST(HostMailboxTest, ATalkThatBeganAfterTheQuestionAnswersIt) {
  HostMailbox mailbox;
  const auto before = *mailbox.take_orders();
  Asker asker(mailbox);
  orders_with_question(mailbox);
  mailbox.report(before, {.has_talked = true});
  mailbox.report(*mailbox.take_orders(), {.has_talked = false});
  const auto orders = mailbox.take_orders();
  EXPECT_TRUE(orders->asks) << "neither an earlier talk nor a round without one is an answer";
  mailbox.report(*orders, {.has_talked = true, .has_failed = true});
  EXPECT_FALSE(asker.answer());
  EXPECT_FALSE(mailbox.take_orders()->asks);
  Asker again(mailbox);
  mailbox.report(orders_with_question(mailbox), {.has_talked = true});
  EXPECT_TRUE(again.answer());
}

TEST(HostMailboxTest, NobodyWaitsForAThreadThatIsToEnd) {
  HostMailbox mailbox;
  Asker asker(mailbox);
  orders_with_question(mailbox);
  mailbox.stop();
  EXPECT_FALSE(asker.answer());
  EXPECT_FALSE(mailbox.answers());
  EXPECT_FALSE(mailbox.take_orders().has_value());
  EXPECT_EQ(mailbox.reason(), "");
}

TEST(HostMailboxTest, TheReasonWhyTheRanksHaveToStopEndsTheThread) {
  HostMailbox mailbox;
  Asker asker(mailbox);
  mailbox.report(orders_with_question(mailbox), {.has_talked = true, .reason = "the job has ended"});
  EXPECT_FALSE(asker.answer()) << "the job does not go on";
  EXPECT_FALSE(mailbox.take_orders().has_value());
  EXPECT_EQ(mailbox.reason(), "the job has ended");
}

TEST(HostMailboxTest, ADeathIsLookedForUntilALookGoesWell) {
  HostMailbox mailbox;
  EXPECT_FALSE(mailbox.take_orders()->has_death);
  mailbox.on_death();
  const auto first = mailbox.take_orders();
  EXPECT_TRUE(first->has_death);
  EXPECT_FALSE(mailbox.take_orders()->has_death) << "it was taken";
  mailbox.report(*first, {.has_failed = true});
  const auto second = mailbox.take_orders();
  EXPECT_TRUE(second->has_death);
  mailbox.report(*second, {});
  EXPECT_FALSE(mailbox.take_orders()->has_death);
}

TEST(HostMailboxTest, AnEpochIsAskedForUntilItIsKnown) {
  HostMailbox mailbox;
  EXPECT_EQ(mailbox.epoch(3), std::nullopt);
  const auto orders = mailbox.take_orders();
  EXPECT_EQ(orders->wanted_epoch, 3);
  mailbox.report(*orders, {.has_talked = true});
  EXPECT_EQ(mailbox.take_orders()->wanted_epoch, 3) << "the store does not have it yet";
  EXPECT_EQ(mailbox.epoch(4), std::nullopt);
  mailbox.report(*orders, {.has_talked = true, .epoch = membership::Epoch{.number = 3, .members = {}}});
  EXPECT_EQ(mailbox.take_orders()->wanted_epoch, 4) << "another one is wanted meanwhile";
  const auto known = mailbox.epoch(3);
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->number, 3);
  mailbox.report(*mailbox.take_orders(), {.has_talked = true, .epoch = membership::Epoch{.number = 4, .members = {}}});
  EXPECT_EQ(mailbox.take_orders()->wanted_epoch, 0);
}

TEST(HostMailboxTest, TheCourseIsThatOfTheNewestRound) {
  HostMailbox mailbox;
  membership::JobCourse course;
  course.add(1, membership::Began{1, 1, 7});
  mailbox.report(*mailbox.take_orders(), {.course = course});
  EXPECT_EQ(mailbox.course().furthest_step(), 7);
}

TEST(HostMailboxTest, GivingUpIsAnOrderThatStays) {
  HostMailbox mailbox;
  EXPECT_FALSE(mailbox.take_orders()->gives_up);
  mailbox.gives_up();
  EXPECT_TRUE(mailbox.take_orders()->gives_up);
  EXPECT_TRUE(mailbox.take_orders()->gives_up);
  mailbox.stop();
  EXPECT_TRUE(mailbox.has_given_up()) << "the host tells it as it leaves";
}

// A wait that misses the news takes an hour.
TEST(HostMailboxTest, NewsSinceTheOrdersWereTakenEndsTheWait) {
  constexpr std::chrono::hours kLong(1);
  HostMailbox mailbox;
  auto orders = mailbox.take_orders();
  mailbox.on_death();
  mailbox.wait(*orders, kLong);
  orders = mailbox.take_orders();
  Asker asker(mailbox);
  mailbox.wait(*orders, kLong);
  mailbox.report(orders_with_question(mailbox), {.has_talked = true});
  EXPECT_TRUE(asker.answer());
  orders = mailbox.take_orders();
  const Thread stopper("stopper", [&] { mailbox.stop(); });
  mailbox.wait(*orders, kLong);
  EXPECT_FALSE(mailbox.take_orders().has_value());
}

}  // namespace
}  // namespace gradwire::launch::host_mailbox_test
