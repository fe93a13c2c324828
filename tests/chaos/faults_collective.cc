// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A rank is killed in collectives, between them, and where ranks make channels and memory.
#include <unistd.h>

#include "tests/chaos/member.h"
#include "tests/chaos/trigger.h"

namespace gradwire::testing {
namespace {

constexpr const char* kPoints[] = {"collective.entry", "collective.copy", "collective.reduce", "collective.exit"};

// All ranks call `body` until one dies: the victim by what `arm` sets up.
template <class Armed>
void until_death(Member& self, const std::function<Armed()>& arm, const std::function<void()>& body) {
  self.join();
  self.warm_up();
  if (self.is_victim()) {
    [[maybe_unused]] const Armed armed = arm();
    body();
    return;
  }
  self.learn(body);
  self.after_death();
}

void arm_clock(Member& self, std::size_t longest_ns) {
  const std::chrono::nanoseconds from_now(self.random().below(longest_ns));
  self.stage().death.stamp_in(from_now);
  kill_this_process_after(from_now);
}

void at_a_point(Member& self) {
  const char* const point = kPoints[self.random().below(std::size(kPoints))];
  const int occurrence = static_cast<int>(self.random().below(20));
  until_death<std::unique_ptr<Trigger>>(
      self, [&] { return std::make_unique<Trigger>(point, occurrence, [&self] { self.die(); }); },
      [&] { self.make_calls_for_ever(); });
}

// Sums over several pieces, longer than a cache, in memory that is in place on all ranks, on some, or on none.
void in_a_long_sum(Member& self) {
  constexpr std::size_t kCount = 400'003;
  constexpr const char* kAlwaysPassed[] = {"collective.entry", "collective.reduce", "collective.exit"};
  const char* const point = kAlwaysPassed[self.random().below(std::size(kAlwaysPassed))];
  const int occurrence = static_cast<int>(self.random().below(8));
  const Placement placement = kPlacements[self.random().below(std::size(kPlacements))];
  const std::vector<Bytes> inputs = make_inputs(DType::f32, kCount, self.size(), self.fault().seed);
  const Bytes expected = combine(DType::f32, ReduceOp::sum(), inputs);
  until_death<std::unique_ptr<Trigger>>(
      self, [&] { return std::make_unique<Trigger>(point, occurrence, [&self] { self.die(); }); },
      [&] {
        for (Arena arena(self.context(), kCount * sizeof(float));;) {
          arena.start(placement);
          std::byte* const data = arena.add(inputs[static_cast<std::size_t>(self.rank())]);
          self.channel().all_reduce(data, kCount, DType::f32, ReduceOp::sum(), guarded());
          const std::string where = difference(data, expected, DType::f32);
          if (!where.empty()) return Member::report(Complaint::wrong, where);
        }
      });
}

void at_any_moment(Member& self) {
  until_death<int>(
      self,
      [&] {
        arm_clock(self, 1'500'000);
        return 0;
      },
      [&] { self.make_calls_for_ever(); });
}

void between_calls(Member& self) {
  until_death<int>(
      self,
      [&] {
        self.die();
        return 0;
      },
      [&] { self.make_calls_for_ever(); });
}

// Killed where it enters a call that makes something, or while memory goes from rank to rank.
void in_a_making_call(Member& self, void (Program::*make)(), std::size_t longest_ns) {
  const bool at_entry = self.random().below(3) == 0;
  until_death<std::unique_ptr<Trigger>>(
      self,
      [&]() -> std::unique_ptr<Trigger> {
        if (at_entry) return std::make_unique<Trigger>("collective.entry", 0, [&self] { self.die(); });
        arm_clock(self, longest_ns);
        return nullptr;
      },
      [&] {
        for (;;) (self.program().*make)();
      });
}

void in_duplicate(Member& self) { in_a_making_call(self, &Program::duplicate, 400'000); }
void in_split(Member& self) { in_a_making_call(self, &Program::split, 3'000'000); }
void in_allocate(Member& self) { in_a_making_call(self, &Program::allocate, 400'000); }

// Two ranks die, one right after the other; the second may be on its way to hear of the first.
void two_at_once(Member& self) {
  self.join();
  self.warm_up();
  if (!self.is_victim()) {
    self.learn([&] { self.make_calls_for_ever(); });
    return self.after_death();
  }
  self.stage().death.stamp();
  self.stage().ready.raise();
  self.stage().ready.await(2);
  if (self.rank() == self.victim()) self.die();
  kill_this_process_after(std::chrono::nanoseconds(self.random().below(300'000)));
  try {
    self.make_calls_for_ever();
  } catch (const PeerError&) {
  }
  for (;;) ::pause();
}

// No signal and no destructor: the process is just not there any more.
void exits(Member& self) {
  const bool in_call = self.random().below(2) == 0;
  until_death<std::unique_ptr<Trigger>>(
      self,
      [&]() -> std::unique_ptr<Trigger> {
        const auto exit_now = [&self] {
          self.stage().death.stamp();
          ::_exit(0);
        };
        if (!in_call) exit_now();
        return std::make_unique<Trigger>("collective.exit", 2, exit_now);
      },
      [&] { self.make_calls_for_ever(); });
}

constexpr FaultClass kCollectiveFaults[] = {
    {.name = "collective: killed at a trace point", .ending = Ending::killed, .weight = 10, .play = at_a_point},
    {.name = "collective: killed in a long sum", .ending = Ending::killed, .weight = 4, .play = in_a_long_sum},
    {.name = "collective: killed at any moment", .ending = Ending::killed, .weight = 12, .play = at_any_moment},
    {.name = "collective: two killed", .ending = Ending::killed, .weight = 4, .play = two_at_once, .victims = 2},
    {.name = "between calls: killed", .ending = Ending::killed, .weight = 4, .play = between_calls},
    {.name = "duplicate: killed", .ending = Ending::killed, .weight = 3, .play = in_duplicate},
    {.name = "split: killed", .ending = Ending::killed, .weight = 3, .play = in_split},
    {.name = "allocate: killed", .ending = Ending::killed, .weight = 6, .play = in_allocate},
    {.name = "exit without a word", .ending = Ending::gone, .weight = 4, .play = exits},
};

}  // namespace

std::span<const FaultClass> collective_faults() { return kCollectiveFaults; }

}  // namespace gradwire::testing
