// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Coordinator and members over a store: epochs reach the members, and a coordinator may be killed and started again.
#include "gradwire/membership/coordinator.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <span>
#include <string>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/member.h"
#include "gradwire/store/forwarding_store.h"
#include "gradwire/store/hash_store.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::membership::coordinator_test {
namespace {

class CoordinatorTest : public ::testing::Test {
 protected:
  CoordinatorOptions options(int min, int max, int first) const {
    CoordinatorOptions options;
    options.roster = {.min = min, .max = max, .first = first};
    options.journal = folder_ / "journal";
    return options;
  }
  // Handles all events that are there.
  static void settle(Coordinator& coordinator) {
    while (coordinator.step(Milliseconds(0))) {
    }
  }
  // A member that joins while the coordinator runs.
  std::unique_ptr<Member> join(Coordinator& coordinator, const std::string& program = "net",
                               Milliseconds timeout = std::chrono::seconds(60)) {
    std::unique_ptr<Member> member;
    std::exception_ptr problem;
    std::atomic<bool> joined{false};
    std::thread thread([&] {
      try {
        member = std::make_unique<Member>(store_, program, timeout);
      } catch (const std::exception&) {
        problem = std::current_exception();
      }
      joined = true;
    });
    while (!joined) coordinator.step(Milliseconds(1));
    thread.join();
    if (problem) std::rethrow_exception(problem);
    return member;
  }

  // Members that have met in the first epoch.
  std::vector<std::unique_ptr<Member>> members_of_first_epoch(Coordinator& coordinator, int count) {
    std::vector<std::unique_ptr<Member>> members;
    for (int i = 0; i < count; ++i) members.push_back(join(coordinator));
    settle(coordinator);
    for (const auto& member : members) EXPECT_TRUE(member->meet());
    return members;
  }
  // What the coordinator tells the user goes to `told`.
  CoordinatorOptions options_that_tell(std::vector<std::string>& told, int first) const {
    CoordinatorOptions made = options(1, first, first);
    made.tell = [&told](const std::string& sentence) { told.push_back(sentence); };
    return made;
  }

  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  const test_support::TemporaryFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

TEST_F(CoordinatorTest, MembersMeetLeaveAndMeetAgain) {
  Coordinator coordinator(store_, options(1, 3, 2));
  const auto a = join(coordinator);
  const auto b = join(coordinator);
  settle(coordinator);
  ASSERT_EQ(a->meet()->members.size(), 2U);
  EXPECT_EQ(a->rank(), 0);
  ASSERT_EQ(b->meet()->number, 1);
  EXPECT_EQ(b->rank(), 1);
  b->leave();
  std::atomic<bool> stop{false};
  std::thread server([&] { coordinator.run(stop); });
  const auto epoch = a->meet();
  a->done();
  stop = true;
  server.join();
  ASSERT_TRUE(epoch);
  EXPECT_EQ(epoch->number, 2);
  EXPECT_EQ(epoch->members.size(), 1U);
  EXPECT_TRUE(coordinator.roster().finished) << "a member went before the coordinator had written down the end";
}

// All members have to be ready, and then all begin at the same boundary, which none of them has passed.
TEST_F(CoordinatorTest, ANewcomerFollowsFromTheStepAfterTheLastMemberIsReady) {
  Coordinator coordinator(store_, options(1, 3, 2));
  const auto members = members_of_first_epoch(coordinator, 2);
  const auto& a = members[0];
  const auto& b = members[1];
  constexpr std::int64_t kFollower = 7;
  EXPECT_FALSE(a->follows_from(kFollower, 10));
  a->ready_for(kFollower, 10);
  for (const std::int64_t step : {10, 11, 12}) {
    EXPECT_FALSE(a->follows_from(kFollower, step)) << "member b is not ready";
    EXPECT_FALSE(b->follows_from(kFollower, step));
  }
  b->ready_for(kFollower, 12);
  EXPECT_FALSE(b->follows_from(kFollower, 12)) << "member a has looked before this boundary, and does step 12";
  for (Member* const member : {a.get(), b.get()}) {
    EXPECT_TRUE(member->follows_from(kFollower, 13));
    EXPECT_FALSE(member->follows_from(kFollower, 14));
    EXPECT_FALSE(member->follows_from(kFollower + 1, 13)) << "of another newcomer nobody knows anything";
  }
}

// A program that has its result keeps it.
TEST_F(CoordinatorTest, AMemberEndsTheJobThoughTheCoordinatorIsGone) {
  bool gives_up = true;
  Member member(store_, "net", Milliseconds(200), [&] { return gives_up; });  // the time is for done()
  {
    Coordinator coordinator(store_, options(1, 1, 1));
    settle(coordinator);
    gives_up = false;
    ASSERT_TRUE(member.meet());
  }
  member.done();
}

TEST_F(CoordinatorTest, AllMembersStopBeforeTheSameStep) {
  Coordinator coordinator(store_, options(1, 3, 2));
  const auto members = members_of_first_epoch(coordinator, 2);
  const auto& a = members[0];
  const auto& b = members[1];
  EXPECT_FALSE(a->stops_before(5));
  EXPECT_FALSE(b->stops_before(5));
  b->ask_to_leave();
  settle(coordinator);
  EXPECT_FALSE(a->stops_before(6));  // the first to see the wish: it does one more step
  EXPECT_FALSE(b->stops_before(6));
  EXPECT_TRUE(b->stops_before(7));
  EXPECT_TRUE(a->stops_before(7));
}

TEST_F(CoordinatorTest, AMemberThatGivesUpStopsWaitingAndMayLeaveOrWaitAgain) {
  bool gives_up = true;
  // Nobody coordinates yet, so the constructor has nothing to wait for but `gives_up`.
  Member a(store_, "net", std::chrono::seconds(60), [&] { return gives_up; });
  EXPECT_FALSE(a.meet());
  EXPECT_FALSE(a.job_has_finished());
  Coordinator coordinator(store_, options(1, 2, 2));
  settle(coordinator);
  EXPECT_FALSE(a.meet());  // a second member is missing
  EXPECT_FALSE(a.job_has_finished());
  const auto b = join(coordinator);
  settle(coordinator);
  gives_up = false;
  ASSERT_TRUE(a.meet());
  EXPECT_EQ(a.epoch().members.size(), 2U);
  gives_up = true;
  EXPECT_FALSE(a.meet());  // b is still in the epoch
  a.leave();
  b->leave();
  settle(coordinator);
  EXPECT_EQ(coordinator.roster().members.at(a.number()).standing, Roster::Standing::gone);
}

TEST_F(CoordinatorTest, AMemberThatGaveUpWaitingIsMissedInTheEpochThatHasIt) {
  Coordinator coordinator(store_, options(1, 2, 2));
  Member a(store_, "net", std::chrono::seconds(60), [] { return true; });
  EXPECT_FALSE(a.meet());
  const auto b = join(coordinator);
  settle(coordinator);
  ASSERT_EQ(coordinator.roster().epoch, 1);
  a.leave();
  settle(coordinator);
  const std::string lost = lost_key(1);
  ASSERT_TRUE(store_->check(std::span(&lost, 1)));
  EXPECT_EQ(store_->get(lost), std::to_string(a.number()));
}

// A member of an epoch leaves in good order, so nobody has to be told.
TEST_F(CoordinatorTest, AMemberThatLeavesAnEpochIsNotMissed) {
  Coordinator coordinator(store_, options(1, 2, 2));
  const auto a = join(coordinator);
  const auto b = join(coordinator);
  settle(coordinator);
  ASSERT_TRUE(b->meet());
  b->leave();
  settle(coordinator);
  const std::string lost = lost_key(1);
  EXPECT_FALSE(store_->check(std::span(&lost, 1)));
}

TEST_F(CoordinatorTest, AnotherProgramIsRefused) {
  Coordinator coordinator(store_, options(1, 3, 1));
  const auto a = join(coordinator, "net");
  try {
    join(coordinator, "another net");
    FAIL() << "the member was not refused";
  } catch (const MismatchError& error) {
    EXPECT_NE(std::string(error.what()).find("trains 'another net' and the job trains 'net'"), std::string::npos)
        << error.what();
  }
}

// The process of a member ends without a word: the coordinator sees this by itself.
TEST_F(CoordinatorTest, AProcessThatEndsIsGone) {
  Coordinator coordinator(store_, options(1, 2, 2));
  const auto a = join(coordinator);
  settle(coordinator);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string identity = process_identity();
    [[maybe_unused]] const auto written = ::write(ends[1], identity.data(), identity.size());
    ::_exit(0);
  }
  char identity[256] = {};
  ASSERT_GT(::read(ends[0], identity, sizeof(identity) - 1), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ::close(ends[0]);
  ::close(ends[1]);
  EventLog log(store_);
  log.append(Joined{identity, GRADWIRE_VERSION, "net"});
  settle(coordinator);
  ASSERT_EQ(a->meet()->members.size(), 2U);
  std::atomic<bool> stop{false};
  std::thread server([&] { coordinator.run(stop); });
  EXPECT_EQ(a->meet()->members.size(), 1U);
  stop = true;
  server.join();
}

TEST_F(CoordinatorTest, AMemberThatDoesNotAnswerIsTakenForDead) {
  CoordinatorOptions patient = options(1, 2, 2);
  patient.stall_timeout = Milliseconds(1);
  Coordinator coordinator(store_, patient);
  const auto members = members_of_first_epoch(coordinator, 2);
  const auto& a = members[0];
  const auto& b = members[1];
  std::atomic<bool> stop{false};
  std::thread server([&] { coordinator.run(stop); });
  EXPECT_EQ(a->meet()->members.size(), 1U);  // without b, which says nothing
  EXPECT_THROW(b->meet(), PeerError);
  stop = true;
  server.join();
}

// The coordinator is more patient than the members, which must not give the job up meanwhile.
TEST_F(CoordinatorTest, MembersWaitAsLongAsTheCoordinatorWaitsForOneThatHangs) {
  CoordinatorOptions patient = options(1, 2, 2);
  patient.stall_timeout = Milliseconds(2500);
  Coordinator coordinator(store_, patient);
  const auto a = join(coordinator, "net", Milliseconds(1200));
  const auto b = join(coordinator);
  settle(coordinator);
  a->meet();
  b->meet();
  std::atomic<bool> stop{false};
  std::thread server([&] { coordinator.run(stop); });
  EXPECT_EQ(a->meet()->members.size(), 1U);  // without b
  stop = true;
  server.join();
  EXPECT_THROW(a->meet(), TimeoutError) << "nobody waits with it";
}

// A step may take any time: that one member has died says nothing of the others.
TEST_F(CoordinatorTest, NobodyIsTakenForDeadWhileNobodyWaits) {
  CoordinatorOptions patient = options(1, 3, 3);
  patient.stall_timeout = Milliseconds(1);
  Coordinator coordinator(store_, patient);
  const auto members = members_of_first_epoch(coordinator, 3);
  const auto& a = members[0];
  const auto& b = members[1];
  const auto& c = members[2];
  EventLog(store_).append(Died{c->number(), "for this test"});
  settle(coordinator);
  const Deadline long_step = Deadline::after(Milliseconds(50));
  while (!long_step.expired()) coordinator.step(Milliseconds(0));
  EXPECT_EQ(coordinator.roster().members.at(a->number()).standing, Roster::Standing::running);
  EXPECT_EQ(coordinator.roster().members.at(b->number()).standing, Roster::Standing::running);
}

// All events have been handled when the coordinator starts again, so none starts its waits.
TEST_F(CoordinatorTest, ARestartedCoordinatorGoesOnWaiting) {
  CoordinatorOptions quick = options(1, 2, 2);
  quick.first_wait = Milliseconds(1);
  quick.stall_timeout = Milliseconds(1);
  std::unique_ptr<Member> a;
  {
    CoordinatorOptions slow = quick;
    slow.first_wait = slow.stall_timeout = std::chrono::minutes(2);
    Coordinator first(store_, slow);
    a = join(first);
    settle(first);
  }
  Coordinator second(store_, quick);
  std::atomic<bool> stop{false};
  std::thread server([&] { second.run(stop); });
  EXPECT_EQ(a->meet()->members.size(), 1U);
  stop = true;
  server.join();
}

TEST_F(CoordinatorTest, TheFirstEpochDoesNotWaitForever) {
  CoordinatorOptions quick = options(1, 2, 2);
  quick.first_wait = Milliseconds(1);
  Coordinator coordinator(store_, quick);
  const auto a = join(coordinator);
  std::atomic<bool> stop{false};
  std::thread server([&] { coordinator.run(stop); });
  EXPECT_EQ(a->meet()->members.size(), 1U);
  stop = true;
  server.join();
}

TEST_F(CoordinatorTest, ASecondCoordinatorIsRefused) {
  const Coordinator first(store_, options(1, 3, 1));
  CoordinatorOptions other = options(1, 3, 1);
  EXPECT_THROW(Coordinator(store_, other), InvalidArgument);  // the same journal
  other.journal = folder_ / "another journal";
  EXPECT_THROW(Coordinator(store_, other), InvalidArgument);  // the same store
}

TEST_F(CoordinatorTest, AJournalOfAJobWithOtherSizesIsRefused) {
  { const Coordinator first(store_, options(1, 3, 1)); }
  EXPECT_THROW(Coordinator(store_, options(1, 4, 1)), InvalidArgument);
}

// Killed after each event of a story, before and after it published its decisions: the story goes on as it would have.
TEST_F(CoordinatorTest, ARestartedCoordinatorGoesOn) {
  const std::vector<Event> story = {Joined{process_identity(), "1", "net"},
                                    Joined{process_identity(), "1", "net"},
                                    Began{1, 1, 0},
                                    Began{2, 1, 0},
                                    Joined{process_identity(), "1", "net"},
                                    Ready{1, 1},
                                    Ready{2, 1},
                                    Began{5, 2, 9},
                                    Died{1, "was killed"},
                                    Ready{5, 2},
                                    Ready{2, 2},
                                    Done{2}};
  for (std::size_t killed_after = 0; killed_after <= story.size(); ++killed_after) {
    auto store = std::make_shared<HashStore>();
    EventLog log(store);
    for (const Event& event : story) log.append(event);
    CoordinatorOptions some = options(1, 3, 2);
    some.journal = folder_ / std::to_string(killed_after);
    {
      Journal journal(some.journal, some.roster);  // journals, and is killed before it publishes
      for (std::size_t i = 0; i < killed_after; ++i)
        journal.append(static_cast<std::int64_t>(i) + 1, to_text(story[i]));
    }
    Coordinator again(store, some);
    settle(again);
    EXPECT_TRUE(epoch_of(store->get(epoch_key(4))).finished);
    const auto played = read_membership_log(some.journal);
    ASSERT_EQ(played.size(), 2U);
    EXPECT_EQ(played[0].first_step, 0);
    EXPECT_EQ(played[1].first_step, 9);
    EXPECT_EQ(played[1].members, (std::vector<std::int64_t>{1, 2, 5}));
    EXPECT_EQ(epoch_in_journal(some.journal, 4), epoch_of(store->get(epoch_key(4))));
    const auto second = epoch_in_journal(some.journal, 2);
    ASSERT_TRUE(second);
    ASSERT_EQ(second->members.size(), 3U);
    EXPECT_EQ(second->members[2].number, 5);
    EXPECT_EQ(epoch_in_journal(some.journal, 5), std::nullopt);
  }
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A job of two members which loses one: the last event decides an epoch.
void write_story(Journal& journal) {
  std::int64_t number = 0;
  for (const Event& event : std::vector<Event>{Joined{"a", "1", "net"}, Joined{"b", "1", "net"}, Began{1, 1, 0},
                                               Died{2, "was killed"}, Ready{1, 1}})
    journal.append(++number, to_text(event));
}

// Wherever the file was cut: a coordinator that starts again writes the decisions that are missing, so the file is that
// of a job whose disk never was full.
TEST_F(CoordinatorTest, AJournalThatWasCutAnywhereIsCompleted) {
  const CoordinatorOptions some = options(1, 3, 2);
  { Journal journal(some.journal, some.roster); }
  const std::string head = text_of(some.journal);
  {
    Journal journal(some.journal, some.roster);
    write_story(journal);
  }
  const std::string whole = text_of(some.journal);
  for (std::size_t size = head.size(); size < whole.size(); ++size) {
    std::ofstream(some.journal, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    Journal journal(some.journal, some.roster);
    const std::string completed = text_of(some.journal);
    EXPECT_EQ(completed, whole.substr(0, completed.size()));
    EXPECT_TRUE(completed.size() == whole.size() || std::isdigit(whole[completed.size()]) != 0) << "cut at " << size;
  }
}

TEST_F(CoordinatorTest, ADiskThatIsFullLeavesTheJournalAsItWas) {
  const CoordinatorOptions some = options(1, 3, 2);
  Journal journal(some.journal, some.roster);
  journal.append(1, to_text(Joined{"a", "1", "net"}));
  const std::string before = text_of(some.journal);
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  rlimit full = unlimited;
  full.rlim_cur = before.size() + 20;  // room for a part of the event
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  EXPECT_THROW(journal.append(2, to_text(Joined{"b", "1", "net"})), StoreError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &unlimited), 0);
  EXPECT_EQ(text_of(some.journal), before);
  EXPECT_EQ(journal.roster().epoch, 0);
  journal.append(2, to_text(Joined{"b", "1", "net"}));
  EXPECT_EQ(journal.roster().epoch, 1);
}

// Refuses one call, as a store on a full disk does.
class RefusingStore final : public ForwardingStore {
 public:
  explicit RefusingStore(std::shared_ptr<Store> store) : ForwardingStore(std::move(store)) {}
  void refuse_after(int calls) { calls_left_ = calls; }
  bool has_refused() const { return calls_left_ < 0; }
  std::shared_ptr<Store> clone() override { throw UnsupportedError("a store of a test"); }

 private:
  void forward(const std::function<void(Store& store)>& call) override {
    if (calls_left_-- == 0) throw StoreError("the disk is full");
    call(*underlying());
  }
  int calls_left_ = std::numeric_limits<int>::max();
};

// Whichever call fails: what follows from an event reaches the store.
TEST_F(CoordinatorTest, ACallOfTheStoreThatFailsIsMadeAgain) {
  const std::vector<std::string> keys = {epoch_key(1), epoch_key(2), lost_key(1), patience_key(1), admitted_key(5)};
  // A member waits for the other one, which dies; a third one takes its place.
  const auto joined = [] { return Joined{process_identity(), "1", "net"}; };
  const std::vector<Event> story = {joined(), joined(), Ready{1, 1}, Died{2, "was killed"}, joined()};
  std::vector<std::string> undisturbed;  // the journal, and the values of the keys
  bool refuses = true;
  for (int calls = -1; refuses; ++calls) {
    const auto below = std::make_shared<HashStore>();
    const auto store = std::make_shared<RefusingStore>(below);
    CoordinatorOptions some = options(2, 3, 2);
    some.journal = folder_ / concat("journal-", calls);
    Coordinator coordinator(store, some);
    for (const Event& event : story) EventLog(below).append(event);
    if (calls >= 0) store->refuse_after(calls);
    int failed = 0;
    for (bool goes_on = true; goes_on;) {
      try {
        goes_on = coordinator.step(Milliseconds(0));
      } catch (const StoreError&) {
        ++failed;
      }
    }
    refuses = calls < 0 || store->has_refused();
    EXPECT_EQ(failed, calls >= 0 && refuses ? 1 : 0);
    std::vector<std::string> found = {text_of(some.journal)};
    for (const std::string& key : keys) found.push_back(below->check(std::span(&key, 1)) ? below->get(key) : "none");
    if (calls < 0) undisturbed = found;
    EXPECT_EQ(std::count(found.begin(), found.end(), "none"), 0);
    EXPECT_EQ(found, undisturbed) << "call " << calls << " failed";
  }
}

TEST_F(CoordinatorTest, DecisionsThatDoNotFollowFromTheEventsAreRefused) {
  const CoordinatorOptions some = options(1, 3, 2);
  {
    Journal journal(some.journal, some.roster);
    write_story(journal);
  }
  const std::string whole = text_of(some.journal);
  std::string changed = whole;
  const auto admitted = changed.find("admitted/2\t1");
  ASSERT_NE(admitted, std::string::npos);
  changed[admitted + 11] = '7';
  std::ofstream(some.journal, std::ios::binary | std::ios::trunc) << changed;
  EXPECT_THROW(Journal(some.journal, some.roster), StoreError);
}

// One process of another version, or of another program, does not end the job. It is told, and so after a restart.
TEST_F(CoordinatorTest, AnEventThatNobodyCanReadIsRefusedAndHarmsNobody) {
  const CoordinatorOptions some = options(1, 2, 2);
  {
    Journal journal(some.journal, some.roster);
    journal.append(1, to_text(Joined{"a", "1", "net"}));
    const std::vector<Put> answer = journal.append(2, "joined\tof a\nlater version");
    ASSERT_EQ(answer.size(), 1U);
    EXPECT_EQ(answer.front().key, refused_key(2));
    EXPECT_EQ(journal.roster().members.size(), 1U);
  }
  Journal journal(some.journal, some.roster);
  EXPECT_EQ(journal.last_event(), 2);
  EXPECT_EQ(journal.last_decisions().size(), 1U);
  journal.append(3, to_text(Joined{"b", "1", "net"}));
  journal.append(4, to_text(Began{1, 1, 0}));
  EXPECT_EQ(journal.roster().epoch, 1);
  const auto played = read_membership_log(some.journal);
  ASSERT_EQ(played.size(), 1U);
  EXPECT_EQ(played.front().members, (std::vector<std::int64_t>{1, 3}));
}

// Several launchers may run on one machine, whose ranks sum first.
TEST_F(CoordinatorTest, TheJournalTellsWhichMembersWereOnOneMachine) {
  const CoordinatorOptions some = options(3, 3, 3);
  Journal journal(some.journal, some.roster);
  journal.append(1, to_text(Joined{"a", "1", "net", "", false, "one"}));
  journal.append(2, to_text(Joined{"b", "1", "net", "1", false, "one"}));
  journal.append(3, to_text(Joined{"c", "1", "net", "2"}));
  journal.append(4, to_text(Began{1, 1, 0}));
  const auto played = read_membership_log(some.journal);
  ASSERT_EQ(played.size(), 1U);
  EXPECT_EQ(played.front().hosts, (std::vector<std::string>{"one", "one", "2"}));
}

TEST_F(CoordinatorTest, AJournalOfAnOlderGradwireIsRefusedWithAWayOut) {
  const std::string path = folder_ / "old";
  std::ofstream(path) << "gradwire membership journal 1: 1 to 2 members, the first epoch 2\n";
  try {
    read_membership_log(path);
    FAIL() << "it was read";
  } catch (const StoreError& error) {
    EXPECT_NE(std::string(error.what()).find("an older gradwire wrote it"), std::string::npos) << error.what();
  }
}

// A name that was given by mistake costs nobody a file, also one without a line end.
TEST_F(CoordinatorTest, AFileThatIsNoJournalStaysAsItIs) {
  const CoordinatorOptions some = options(1, 2, 2);
  for (const std::string text : {"no line end", "a line\nand half a line"}) {
    std::ofstream(some.journal, std::ios::binary | std::ios::trunc) << text;
    EXPECT_THROW(Journal(some.journal, some.roster), InvalidArgument);
    EXPECT_EQ(text_of(some.journal), text);
  }
}

// So a service that was stopped as it began can be started again.
TEST_F(CoordinatorTest, AJournalWithoutALineBegins) {
  const CoordinatorOptions some = options(1, 2, 2);
  EXPECT_FALSE(has_begun(some.journal));
  { Journal journal(some.journal, some.roster); }
  EXPECT_TRUE(has_begun(some.journal));
  const std::string head = text_of(some.journal);
  for (const std::size_t size : {std::size_t{0}, head.size() / 2, head.size() - 1}) {
    std::ofstream(some.journal, std::ios::binary | std::ios::trunc) << head.substr(0, size);
    EXPECT_FALSE(has_begun(some.journal));
    { Journal journal(some.journal, some.roster); }
    EXPECT_EQ(text_of(some.journal), head);
  }
}

// The name of a folder, for example. Who reads a journal again and again goes on after an error of a store.
TEST_F(CoordinatorTest, AJournalThatCannotBeReadIsAnErrorOfTheStore) {
  const std::string folder = folder_;
  const std::function<void()> readers[] = {[&] { has_begun(folder); }, [&] { epoch_in_journal(folder, 1); },
                                           [&] { course_in_journal(folder); }, [&] { read_membership_log(folder); },
                                           [&] { restored_store(folder); }};
  for (const auto& read : readers) {
    try {
      read();
      ADD_FAILURE() << "it was read";
    } catch (const StoreError& error) {
      EXPECT_EQ(std::string(error.what()),
                concat("the journal ", folder, " of the elastic job: cannot be read: Is a directory"));
    }
  }
}

// Its process lives on, so nobody would find it dead in an epoch that it was put into later.
TEST_F(CoordinatorTest, AMemberThatGivesUpJoiningIsNotCounted) {
  EXPECT_THROW(Member(store_, "net", Milliseconds(100)), TimeoutError);
  Coordinator coordinator(store_, options(1, 2, 2));
  while (coordinator.step(Milliseconds(0))) {
  }
  ASSERT_EQ(coordinator.roster().members.size(), 1U);
  EXPECT_EQ(coordinator.roster().members.begin()->second.standing, Roster::Standing::gone);
}

TEST_F(CoordinatorTest, AHalfWrittenRecordIsCutOff) {
  const CoordinatorOptions some = options(1, 3, 1);
  {
    Journal journal(some.journal, some.roster);
    journal.append(1, to_text(Joined{"a", "1", "net"}));
  }
  std::ofstream(some.journal, std::ios::app) << "2\tdied\t1";  // killed in the middle of a line
  Journal journal(some.journal, some.roster);
  EXPECT_EQ(journal.last_event(), 1);
  journal.append(2, to_text(Began{1, 1, 0}));
  EXPECT_EQ(read_membership_log(some.journal).size(), 1U);
}

TEST_F(CoordinatorTest, ASlowMemberLearnsThatItHasToLeaveAndTheUserIsTold) {
  CoordinatorOptions slow = options(1, 2, 2);
  slow.slow = SlowRule{.factor = 2, .steps = 3, .drop = true};
  std::vector<std::string> told;
  slow.tell = [&](const std::string& sentence) { told.push_back(sentence); };
  Coordinator coordinator(store_, slow);
  const auto members = members_of_first_epoch(coordinator, 2);
  const auto& a = members[0];
  const auto& b = members[1];
  EXPECT_EQ(a->slow_rule(), slow.slow);
  b->report_slow({.rank = 1, .step = 6, .own_us = 31550, .others_us = 10000}, true, "far");
  EXPECT_FALSE(b->was_dropped());
  settle(coordinator);
  EXPECT_TRUE(b->was_dropped());
  EXPECT_FALSE(a->was_dropped());
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told.front().find("rank 1 (member 2, process "), 0U) << told.front();
  EXPECT_NE(told.front().find(" on host far) is slow: its own part of a step took 31.5 ms, and that of the other ranks "
                              "10 ms (the median), in the mean of the last steps up to step 6; it leaves the job"),
            std::string::npos)
      << told.front();
  // In the middle of a step that breaks, it learns that no epoch will have it.
  EXPECT_FALSE(b->meet());
  EXPECT_FALSE(b->job_has_finished());
  b->leave();
}

TEST_F(CoordinatorTest, AMemberThatAnotherDoesNotReachLeavesAndTheUserIsToldOnce) {
  std::vector<std::string> told;
  Coordinator coordinator(store_, options_that_tell(told, 3));
  const auto members = members_of_first_epoch(coordinator, 3);
  members[1]->report_unreachable({2});
  members[2]->report_unreachable({1});
  std::atomic<bool> stop{false};
  std::thread server([&] { coordinator.run(stop); });
  std::vector<std::future<std::optional<Epoch>>> next;
  for (const auto& member : members)
    next.push_back(std::async(std::launch::async, [&member] { return member->meet(); }));
  for (auto& each : next) each.wait();
  stop = true;
  server.join();
  EXPECT_EQ(next[0].get().value().members.size(), 2U);
  EXPECT_EQ(next[1].get().value().members.size(), 2U);
  EXPECT_FALSE(next[2].get());
  EXPECT_TRUE(members[2]->was_dropped());
  EXPECT_EQ(members[2]->why_dropped(), "it and member 2 do not reach each other");
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told.front().find("member 2 (process "), 0U) << told.front();
  EXPECT_NE(told.front().find(") and member 3 (process "), std::string::npos) << told.front();
  EXPECT_NE(told.front().find(") do not reach each other; the job goes on without member 3"), std::string::npos)
      << told.front();
  members[2]->leave();
}

TEST_F(CoordinatorTest, OfAMemberThatHasDiedTheUserIsNotToldThatItIsOutOfReach) {
  std::vector<std::string> told;
  Coordinator coordinator(store_, options_that_tell(told, 3));
  const auto members = members_of_first_epoch(coordinator, 3);
  members[0]->report_unreachable({1});
  EventLog log(store_);
  log.append(Unreachable{3, 1, 4711});  // a number that nobody has
  log.append(Died{2, "was killed"});
  for (const std::int64_t member : {1, 3}) log.append(Ready{member, 1});
  settle(coordinator);
  EXPECT_EQ(coordinator.roster().current, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(told, std::vector<std::string>{});
}

TEST_F(CoordinatorTest, TheUserIsToldOnceThatTooFewMembersWait) {
  std::vector<std::string> told;
  CoordinatorOptions short_wait = options_that_tell(told, 2);
  short_wait.roster.min = 2;
  short_wait.shortage_wait = Milliseconds(0);
  Coordinator coordinator(store_, short_wait);
  auto members = members_of_first_epoch(coordinator, 2);
  EXPECT_EQ(told, std::vector<std::string>{}) << "before the first epoch there is another time limit";
  EventLog log(store_);
  log.append(Died{2, "was killed"});
  for (int looks = 0; looks < 3; ++looks) settle(coordinator);
  EXPECT_EQ(told, std::vector<std::string>{}) << "member 1 is in a step";
  log.append(Ready{1, 1});
  for (int looks = 0; looks < 3; ++looks) settle(coordinator);
  EXPECT_EQ(told, std::vector<std::string>{"the job stands still: 1 rank waits for others, and a step needs at least 2 "
                                           "(MIN); it goes on when 1 more joins"});
  const auto newcomer = join(coordinator);
  settle(coordinator);
  EXPECT_EQ(coordinator.roster().epoch, 2);
  for (const std::int64_t member : {members[0]->number(), newcomer->number()}) log.append(Ready{member, 2});
  settle(coordinator);
  log.append(Died{1, "was killed"});
  log.append(Ready{newcomer->number(), 3});
  for (int looks = 0; looks < 3; ++looks) settle(coordinator);
  EXPECT_EQ(told.size(), 2U) << "a second shortage";
}

// A member that has not seen the end itself does not wait for an epoch that never comes.
TEST_F(CoordinatorTest, MembersThatWaitLearnThatNobodyHoldsTheState) {
  Coordinator coordinator(store_, options(1, 1, 1));
  const auto first = join(coordinator);
  const auto waits = join(coordinator);
  settle(coordinator);
  ASSERT_TRUE(first->meet());
  std::atomic<bool> stop{false};
  std::thread server([&] { coordinator.run(stop); });
  auto ended = std::async(std::launch::async, [&] { return waits->meet(); });
  const PeerError told = first->state_is_lost();
  EXPECT_TRUE(course_in_journal(folder_ / "journal").has_lost_state())
      << "the member went before the coordinator had written down the end";
  try {
    ended.get();
    ADD_FAILURE() << "there is no epoch";
  } catch (const PeerError& error) {
    EXPECT_STREQ(error.what(), told.what());
  }
  // For its launcher, which may have joined since the other one told it, and read the log from there on.
  EventLog log(store_);
  int told_again = 0;
  std::optional<std::string> text;
  for (std::int64_t event = 1; (text = log.read(event, Milliseconds(0))); ++event)
    told_again += *text == to_text(StateLost{waits->number(), 1}) ? 1 : 0;
  EXPECT_EQ(told_again, 1);
  stop = true;
  server.join();
  EXPECT_FALSE(first->job_has_finished());
}

TEST_F(CoordinatorTest, ARuleThatMakesNoSenseIsRefused) {
  CoordinatorOptions bad = options(1, 1, 1);
  bad.slow = SlowRule{.factor = 0.5};
  EXPECT_THROW(Coordinator(store_, bad), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::membership::coordinator_test
