// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves: the explorer finds errors. Classic programs of two or three threads: each wrong program has an outcome that
// C++ allows and x86 mostly hides, and each correct program has no such outcome.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/model/machine.h"

namespace gradwire::model {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
constexpr auto kSeqCst = std::memory_order_seq_cst;

// The threads of a program over memory of its own, and what must hold at the end.
struct Program {
  std::vector<std::function<void()>> threads;
  std::function<bool()> holds = [] { return true; };
};

Report explore(const std::function<Program()>& make, ScheduleOptions options = {}) {
  Mutation none("");
  return Explorer().explore(
      [&](Explorer& explorer) {
        Run run(explorer, options, none);
        const Program program = make();
        int rank = 0;
        for (const auto& thread : program.threads) run.scheduler.add_thread(rank++, thread);
        if (run.scheduler.run() && !program.holds()) explorer.violated("an outcome that must not be");
      },
      1'000'000);
}

struct Cells {
  Atomic<int> x, y;
  Plain<int> data;
  int seen[4] = {-1, -1, -1, -1};
};

Report message_passing(std::memory_order write, std::memory_order read) {
  return explore([=] {
    auto at = std::make_shared<Cells>();
    return Program{{[=] {
                      at->data.write() = 42;
                      at->x.store(1, write);
                    },
                    [=] {
                      if (at->x.load(read) == 1) at->seen[0] = at->data.read();
                    }}};
  });
}

TEST(Litmus, MessagePassingNeedsReleaseAndAcquire) {
  EXPECT_EQ(message_passing(kRelease, kAcquire).violation, "");
  EXPECT_TRUE(message_passing(kRelease, kAcquire).complete);
  EXPECT_NE(message_passing(kRelaxed, kAcquire).violation.find("data race"), std::string::npos);
  EXPECT_NE(message_passing(kRelease, kRelaxed).violation.find("data race"), std::string::npos);
}

Report store_buffering(std::memory_order write, std::memory_order read) {
  return explore([=] {
    auto at = std::make_shared<Cells>();
    return Program{{[=] {
                      at->x.store(1, write);
                      at->seen[0] = at->y.load(read);
                    },
                    [=] {
                      at->y.store(1, write);
                      at->seen[1] = at->x.load(read);
                    }},
                   [=] { return at->seen[0] + at->seen[1] != 0; }};
  });
}

TEST(Litmus, StoreBufferingNeedsSequentialConsistencyOnAllSides) {
  EXPECT_EQ(store_buffering(kSeqCst, kSeqCst).violation, "");
  EXPECT_NE(store_buffering(kRelease, kSeqCst).violation, "");
  EXPECT_NE(store_buffering(kSeqCst, kAcquire).violation, "");
}

// Two writers, two readers: may the readers disagree on who was first?
Report independent_reads(std::memory_order read) {
  return explore([=] {
    auto at = std::make_shared<Cells>();
    return Program{{[=] { at->x.store(1, kSeqCst); }, [=] { at->y.store(1, kSeqCst); },
                    [=] {
                      at->seen[0] = at->x.load(read);
                      at->seen[1] = at->y.load(read);
                    },
                    [=] {
                      at->seen[2] = at->y.load(read);
                      at->seen[3] = at->x.load(read);
                    }},
                   [=] { return !(at->seen[0] == 1 && at->seen[1] == 0 && at->seen[2] == 1 && at->seen[3] == 0); }};
  });
}

TEST(Litmus, ReadersAgreeOnTheOrderOfIndependentWritesOnlyWhenSequentiallyConsistent) {
  EXPECT_EQ(independent_reads(kSeqCst).violation, "");
  EXPECT_NE(independent_reads(kAcquire).violation, "");
}

TEST(Litmus, AThreadNeverReadsBackwardsInOneLocation) {
  const Report report = explore([] {
    auto at = std::make_shared<Cells>();
    return Program{{[=] {
                      at->x.store(1, kRelaxed);
                      at->x.store(2, kRelaxed);
                    },
                    [=] {
                      at->seen[0] = at->x.load(kRelaxed);
                      at->seen[1] = at->x.load(kRelaxed);
                    }},
                   [=] { return at->seen[0] <= at->seen[1]; }};
  });
  EXPECT_EQ(report.violation, "");
  EXPECT_TRUE(report.complete);
}

TEST(Litmus, EveryOutcomeOfTwoStoresAndTwoLoadsIsSeen) {
  std::map<std::pair<int, int>, int> outcomes;
  const Report report = explore([&] {
    auto at = std::make_shared<Cells>();
    return Program{{[=] {
                      at->x.store(1, kRelaxed);
                      at->x.store(2, kRelaxed);
                    },
                    [=] {
                      at->seen[0] = at->x.load(kRelaxed);
                      at->seen[1] = at->x.load(kRelaxed);
                    }},
                   [=, &outcomes] {
                     ++outcomes[{at->seen[0], at->seen[1]}];
                     return true;
                   }};
  });
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(outcomes.size(), 6U) << "0 0, 0 1, 0 2, 1 1, 1 2, 2 2";
}

TEST(Litmus, AReadModifyWriteContinuesARelease) {
  const auto with = [](bool read_modify_write) {
    return explore([=] {
      auto at = std::make_shared<Cells>();
      return Program{{[=] {
                        at->data.write() = 42;
                        at->x.store(1, kRelease);
                        if (!read_modify_write) at->x.store(2, kRelaxed);
                      },
                      [=] {
                        if (read_modify_write && at->x.load(kRelaxed) == 1) at->x.fetch_add(1, kRelaxed);
                      },
                      [=] {
                        if (at->x.load(kAcquire) == 2) at->seen[0] = at->data.read();
                      }}};
    });
  };
  EXPECT_EQ(with(true).violation, "");
  EXPECT_NE(with(false).violation.find("data race"), std::string::npos);
}

TEST(Litmus, UnorderedStoresToOneLocationAreRefused) {
  const Report report = explore([] {
    auto at = std::make_shared<Cells>();
    return Program{{[=] { at->x.store(1, kRelaxed); }, [=] { at->x.store(2, kRelaxed); }}};
  });
  EXPECT_NE(report.violation.find("without an order"), std::string::npos);
}

// A waiter that counts itself, looks and sleeps; a waker that stores and wakes whom it sees.
Report sleeper(std::memory_order order, bool counts_first, bool wakes) {
  return explore([=] {
    auto at = std::make_shared<Cells>();
    return Program{{[=] {
                      if (!counts_first && at->x.load(order) == 1) return;
                      at->y.fetch_add(1, order);
                      while (at->x.load(order) == 0) futex_wait(at->x, 0);
                    },
                    [=] {
                      at->x.store(1, order);
                      if (at->y.load(order) != 0 && wakes) futex_wake(at->x, {});
                    }}};
  });
}

TEST(Litmus, ALostWakeUpIsFound) {
  EXPECT_EQ(sleeper(kSeqCst, true, true).violation, "");
  EXPECT_NE(sleeper(kRelaxed, true, true).violation.find("asleep for ever"), std::string::npos);
  EXPECT_NE(sleeper(kSeqCst, true, false).violation.find("asleep for ever"), std::string::npos);
}

TEST(Litmus, AWaiterThatReadsTheWordTooEarlyIsFoundAsleep) {
  // The word has changed before it is read: who sleeps on what it holds now sleeps for ever.
  const auto with = [](bool right) {
    return explore([=] {
      auto at = std::make_shared<Cells>();
      return Program{{[=] {
                        const int before = at->x.load(kSeqCst);
                        if (at->y.load(kSeqCst) == 1) return;
                        futex_wait(at->x, right ? before : at->x.load(kSeqCst));
                      },
                      [=] {
                        at->y.store(1, kSeqCst);
                        at->x.fetch_add(1, kSeqCst);
                        futex_wake(at->x, {});
                      }}};
    });
  };
  EXPECT_EQ(with(true).violation, "");
  EXPECT_NE(with(false).violation.find("asleep for ever"), std::string::npos);
}

TEST(Litmus, ADeathIsTriedAtEveryPointAndAtMostOnce) {
  std::map<std::pair<int, int>, int> outcomes;
  const Report report = explore(
      [&] {
        auto at = std::make_shared<Cells>();
        return Program{{[=] {
                          at->x.store(1, kSeqCst);
                          at->x.store(2, kSeqCst);
                          at->seen[0] = 1;
                        },
                        [=] {
                          at->y.store(1, kSeqCst);
                          at->seen[1] = 1;
                        }},
                       [=, &outcomes] {
                         ++outcomes[{at->seen[0], at->seen[1]}];
                         return true;
                       }};
      },
      {.crashes = 1});
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(outcomes.size(), 3U) << "both end, either one dies";
}

TEST(Litmus, ATraceTellsWhatHappened) {
  const Report report = message_passing(kRelaxed, kAcquire);
  EXPECT_NE(report.trace.find("rank 0"), std::string::npos);
  EXPECT_NE(report.trace.find("rank 1"), std::string::npos);
}

}  // namespace
}  // namespace gradwire::model
