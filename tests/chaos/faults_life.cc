// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that die while they meet, stop for longer than a deadline, abort, or belong to somebody else.
#include <algorithm>
#include <csignal>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/chaos/member.h"
#include "tests/chaos/play.h"
#include "tests/chaos/trigger.h"

namespace gradwire::testing {
namespace {

constexpr Milliseconds kDeadline{3000};

// The survivors of a rendezvous without the victim: they may have met it, so the world may have come to be.
void meet_without(Member& self) {
  self.learn([&] {
    self.join();
    self.make_calls_for_ever();
  });
  self.after_death();
}

void before_it_connects(Member& self) {
  if (!self.is_victim()) return meet_without(self);
  const Trigger trigger("rendezvous.begin", 0, [&self] { self.die(); });
  self.join();
}

void when_it_has_connected(Member& self) {
  if (!self.is_victim()) return meet_without(self);
  const Trigger trigger("rendezvous.connected", 0, [&self] { self.die(); });
  self.join();
}

void while_they_meet(Member& self) {
  if (!self.is_victim()) return meet_without(self);
  const std::chrono::nanoseconds from_now(self.random().below(4'000'000));
  const Trigger trigger("rendezvous.begin", 0, [&] {
    self.stage().death.stamp_in(from_now);
    kill_this_process_after(from_now);
  });
  self.join();
  self.make_calls_for_ever();
}

// A rank that is stopped is not dead: the others wait until their deadline and name it. When it goes on, it fails too,
// and memory that the others own by then stays as it is.
void stopped(Member& self) {
  constexpr const char* kPoints[] = {"collective.entry", "collective.reduce", "collective.exit"};
  const char* const point = kPoints[self.random().below(std::size(kPoints))];
  std::vector<float> data(self.random().below(2) == 0 ? 10 : 400'003);
  const auto sum_until_failure = [&](Milliseconds timeout) {
    for (;;) {
      std::fill(data.begin(), data.end(), 1.0F);
      self.channel().all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum(), with_timeout(timeout));
    }
  };
  self.join();
  self.warm_up();
  if (self.is_victim()) {
    const Trigger trigger(point, 3, [&self] {
      self.stage().death.stamp();
      std::raise(SIGSTOP);
    });
    EXPECT_THROW(sum_until_failure(kGuard), Error);
    self.stage().done.raise();
    return self.leave();
  }
  self.learn([&] { sum_until_failure(kDeadline); }, true);
  std::fill(data.begin(), data.end(), -5.0F);
  self.stage().told.await(static_cast<std::uint32_t>(self.survivors()));
  ::kill(self.stage().pids[static_cast<std::size_t>(self.victim())].load(), SIGCONT);
  if (!self.stage().done.await(1)) Member::report(Complaint::hang, "the rank that was stopped did not fail");
  const bool own = std::all_of(data.begin(), data.end(), [](float x) { return x == -5.0F; });
  if (!own) Member::report(Complaint::wrong, "the late rank wrote into a buffer whose call had ended");
  self.after_death();
}

// An exception on one rank, which tells the others why.
void aborts(Member& self) {
  const std::string why = concat("the loss is not a number, says fault ", self.fault().seed);
  self.join();
  self.warm_up();
  if (self.is_victim()) {
    self.make_calls(static_cast<int>(self.random().below(3)));
    self.stage().death.stamp();
    self.channel().abort(why);
    for (const auto& channel : self.program().duplicates()) channel->abort(why);
    EXPECT_THROW(self.channel().barrier(guarded()), AbortedError);
    self.stage().told.await(static_cast<std::uint32_t>(self.survivors()));
    return self.after_abort();
  }
  self.learn([&] {
    try {
      self.make_calls_for_ever();
    } catch (const PeerError& error) {
      const bool quoted = std::string(error.what()).find(why) != std::string::npos;
      const bool of_the_victim = error.peers() == std::vector<int>{self.victim()};  // not of a message to a survivor
      if (of_the_victim && !quoted) Member::report(Complaint::unnamed, error.what());
      throw;
    }
  });
  self.after_abort();
}

// One rank runs as another user: nobody shares memory with it, and all hear which rank that is.
void another_user(Member& self) {
  if (self.is_victim()) {
    self.stage().death.stamp();
    become_nobody();
    EXPECT_THROW(self.join(), Error);
    return;
  }
  self.fail_to_meet(kGuard);
}

constexpr FaultClass kLifeFaults[] = {
    {.name = "rendezvous: killed before it connects",
     .ending = Ending::killed,
     .weight = 3,
     .play = before_it_connects},
    {.name = "rendezvous: killed when connected", .ending = Ending::killed, .weight = 3, .play = when_it_has_connected},
    {.name = "rendezvous: killed at any moment", .ending = Ending::killed, .weight = 3, .play = while_they_meet},
    {.name = "stopped past the deadline", .ending = Ending::well, .weight = 4, .play = stopped},
    {.name = "abort(reason)", .ending = Ending::well, .weight = 4, .play = aborts},
    {.name = "abort(reason), ranks are threads",
     .ending = Ending::well,
     .weight = 3,
     .play = aborts,
     .ranks_are_threads = true},
    {.name = "a rank of another user", .ending = Ending::well, .weight = 1, .play = another_user, .needs_root = true},
};

}  // namespace

std::span<const FaultClass> life_faults() { return kLifeFaults; }

}  // namespace gradwire::testing
