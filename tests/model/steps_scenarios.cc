// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/steps_scenarios.h"

#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "tests/model/steps_machine.h"

namespace gradwire::model {
namespace {

using shared::FailureKind;
using shared::FailureReport;
using shared::RankState;
using shared::StepEnd;

constexpr int kMaxRanks = 3;
constexpr int kMaxCalls = 4;

enum class Outcome { none, well, failed };

// A reason as a number: what happened and to which rank.
int reason_of(FailureKind kind, int rank) { return static_cast<int>(kind) * 100 + rank + 1; }

FailureReport report_of(int reason) {
  FailureReport report{};
  report.kind = static_cast<FailureKind>(reason / 100);
  report.culprits = static_cast<std::uint64_t>(reason);
  return report;
}

// One run of a scenario.
class World {
 public:
  World(Run& run, const Scenario& scenario) : run_(run), scenario_(scenario) {
    for (int rank = 0; rank < scenario.ranks; ++rank) {
      run.owner = rank;
      std::construct_at(&slot(rank));
    }
    run.owner = -1;
    for (int rank = 0; rank < scenario.ranks; ++rank) {
      run.is_private = scenario.aborts != rank;  // else two threads use it
      at(rank).steps.emplace(at(rank).machine, slots_.data(), sizeof(ModelSteps::Slot), rank, scenario.ranks);
      run.is_private = false;
    }
    for (int rank = 0; rank < scenario.ranks; ++rank) {
      run.scheduler.add_thread(
          rank, [this, rank] { live(rank); }, scenario.deadline == rank);
    }
    if (scenario.aborts >= 0) run.scheduler.add_thread(scenario.aborts, [this] { abort(scenario_.aborts); });
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // After a run that was not cut short.
  void check();

 private:
  struct Rank {
    StepsMachine machine;
    std::optional<ModelSteps> steps;
    std::array<Plain<int>, kMaxRanks> lent;  // a share for each rank to write
    std::array<Plain<int>, 2> area;
    Atomic<unsigned> said{0};  // the last window that the rank says it has staged
    unsigned window = 0;
    std::array<Outcome, kMaxCalls> outcomes{};
    int reason = 0;        // with which its last call failed
    int first_reason = 0;  // that fail() took
    int reasons_taken = 0;
  };
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  ModelSteps::Slot& slot(int rank) {
    return *reinterpret_cast<ModelSteps::Slot*>(slots_.data() +
                                                static_cast<std::size_t>(rank) * sizeof(ModelSteps::Slot));
  }

  void live(int rank);
  int call(int rank, CallKind kind, int card);  // 0, or the reason why it failed
  int enter(Rank& self, int card, bool lends);
  int direct(int rank, int card);
  int staged(int rank, int card);
  int pieces(int rank, int card);
  int vote(int rank, int card);
  int reason_for(Rank& self, const StepEnd& end);
  int number_of(Rank& self, const StepEnd& end);
  int meet(Rank& self) { return reason_for(self, self.steps->meet()); }
  void give_up(int rank, int reason);
  void fail(Rank& self, int reason);
  void abort(int rank) { fail(at(rank), reason_of(FailureKind::aborted, rank)); }
  bool outlives_calls() const { return scenario_.options.crashes > 0; }  // the memory of processes does

  void check_reason(int rank);
  void check_agreement(std::size_t call);

  Run& run_;
  const Scenario& scenario_;
  alignas(ModelSteps::Slot) std::array<std::byte, kMaxRanks * sizeof(ModelSteps::Slot)> slots_;
  std::array<Rank, kMaxRanks> ranks_;
};

void World::live(int rank) {
  Rank& self = at(rank);
  const std::size_t calls = scenario_.calls.size() - (scenario_.leaves == rank ? 1 : 0);
  for (std::size_t i = 0; i < calls; ++i) {
    const int card = static_cast<int>(2 * i) + (scenario_.disagrees == rank ? 1 : 0);
    if (const int reason = call(rank, scenario_.calls[i], card); reason != 0) {
      give_up(rank, reason);
      self.outcomes[i] = Outcome::failed;
      break;
    }
    self.outcomes[i] = Outcome::well;
  }
  if (scenario_.aborts != rank) self.steps->leave();  // while the other thread is there, the object must stay
}

int World::call(int rank, CallKind kind, int card) {
  Rank& self = at(rank);
  if (self.steps->failed()) return self.steps->reason();
  int reason = 0;
  switch (kind) {
    case CallKind::barrier:
      reason = enter(self, card, false);
      break;
    case CallKind::direct:
      reason = direct(rank, card);
      break;
    case CallKind::staged:
      reason = staged(rank, card);
      break;
    case CallKind::pieces:
      reason = pieces(rank, card);
      break;
    case CallKind::vote:
      reason = vote(rank, card);
      break;
  }
  if (reason == 0) self.steps->finish();
  return reason;
}

int World::enter(Rank& self, int card, bool lends) {
  if (const int reason = reason_for(self, self.steps->enter(card, lends)); reason != 0) return reason;
  bool equal = true;
  for (int peer = 0; peer < scenario_.ranks; ++peer) equal = (self.steps->card(peer) == card) && equal;
  return equal ? 0 : reason_of(FailureKind::mismatch, scenario_.disagrees);
}

int World::direct(int rank, int card) {
  Rank& self = at(rank);
  for (auto& share : self.lent) share.write() = rank;
  if (const int reason = enter(self, card, !outlives_calls()); reason != 0) return reason;
  for (int peer = 0; peer < scenario_.ranks; ++peer) at(peer).lent[static_cast<std::size_t>(rank)].write() = rank;
  if (const int reason = reason_for(self, self.steps->exit()); reason != 0) return reason;
  for (int peer = 0; peer < scenario_.ranks; ++peer) {
    if (self.lent[static_cast<std::size_t>(peer)].read() != peer) run_.explorer.violated("a share was not written");
  }
  return 0;
}

int World::staged(int rank, int card) {
  Rank& self = at(rank);
  for (int window = 0; window < 2; ++window) {
    const int value = card * 10 + window;
    self.area[self.window & 1].write() = value;
    if (const int reason = window == 0 ? enter(self, card, false) : meet(self); reason != 0) return reason;
    for (int peer = 0; peer < scenario_.ranks; ++peer) {
      if (at(peer).area[self.window & 1].read() != value) run_.explorer.violated("a window of another time was read");
    }
    ++self.window;
  }
  return 0;
}

int World::pieces(int rank, int card) {
  Rank& self = at(rank);
  Rank& owner = at(0);
  for (int window = 0; window < 2; ++window) {
    const int value = card * 10 + window;
    const auto take = [&] {
      if (rank == 0 || owner.area[self.window & 1].read() == value) return;
      run_.explorer.violated("a window of another time was read");
    };
    if (rank == 0) self.area[self.window & 1].write() = value;
    if (window == 0) {
      if (const int reason = enter(self, card, false); reason != 0) return reason;
    } else {
      if (rank == 0) self.said.store(self.window, std::memory_order_release);
      self.steps->arrive_at_next();
      if (rank != 0 && owner.said.load(std::memory_order_acquire) >= self.window) take();
      if (const int reason = reason_for(self, self.steps->await_others()); reason != 0) return reason;
    }
    take();
    ++self.window;
  }
  return 0;
}

int World::vote(int rank, int card) {
  Rank& self = at(rank);
  if (const int reason = enter(self, card, false); reason != 0) return reason;
  self.steps->vote(report_of(rank + 1));
  if (const int reason = meet(self); reason != 0) return reason;
  for (int peer = 0; peer < scenario_.ranks; ++peer) {
    if (self.steps->vote_of(peer).culprits != static_cast<std::uint64_t>(peer) + 1) {
      run_.explorer.violated("not what the rank said");
    }
  }
  return meet(self);
}

int World::reason_for(Rank& self, const StepEnd& end) {
  const int reason = number_of(self, end);
  self.machine.reach(mix(self.steps->step(), static_cast<std::uint64_t>(reason)));
  return reason;
}

int World::number_of(Rank& self, const StepEnd& end) {
  switch (end.kind) {
    case StepEnd::Kind::met:
      return 0;
    case StepEnd::Kind::own_failure:
      return self.steps->reason();
    case StepEnd::Kind::peer_failed:
      return static_cast<int>(self.steps->report_of(end.peer).culprits);
    case StepEnd::Kind::peer_left:
    case StepEnd::Kind::peer_died:
      return reason_of(FailureKind::peer, end.peer);
    case StepEnd::Kind::interrupted:
    case StepEnd::Kind::deadline:
      break;
  }
  return reason_of(FailureKind::timeout, self.steps->rank());
}

void World::fail(Rank& self, int reason) {
  if (!self.steps->fail(report_of(reason), reason)) return;
  self.first_reason = reason;
  ++self.reasons_taken;
}

// As SharedChannel::end() does; then the caller's memory is his own again.
void World::give_up(int rank, int reason) {
  Rank& self = at(rank);
  fail(self, reason);
  self.steps->drain();
  self.reason = self.steps->reason();
  if (outlives_calls()) return;
  for (auto& share : self.lent) share.write() = -1;
}

void World::check() {
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    if (!run_.scheduler.is_dead(rank)) check_reason(rank);
  }
  for (std::size_t call = 0; call < scenario_.calls.size(); ++call) check_agreement(call);
}

void World::check_reason(int rank) {
  const Rank& self = at(rank);
  if (self.reasons_taken > 1) run_.explorer.violated("a second reason was taken");
  if (self.reason == 0) return;
  if (self.reason != self.first_reason) run_.explorer.violated("the first reason did not stay");
  bool right = false;
  for (int peer = 0; peer < scenario_.ranks; ++peer) {
    right = right || (run_.scheduler.is_dead(peer) && self.reason == reason_of(FailureKind::peer, peer));
  }
  right = right || (scenario_.leaves >= 0 && self.reason == reason_of(FailureKind::peer, scenario_.leaves));
  right = right || (scenario_.aborts >= 0 && self.reason == reason_of(FailureKind::aborted, scenario_.aborts));
  right = right || (scenario_.deadline >= 0 && self.reason == reason_of(FailureKind::timeout, scenario_.deadline));
  right = right || (scenario_.disagrees >= 0 && self.reason == reason_of(FailureKind::mismatch, scenario_.disagrees));
  if (!right) {
    run_.explorer.violated("rank " + std::to_string(rank) +
                           " failed for a wrong reason: " + std::to_string(self.reason));
  }
}

void World::check_agreement(std::size_t call) {
  bool any_well = false;
  bool must_fail = false;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    any_well = any_well || at(rank).outcomes[call] == Outcome::well;
    must_fail = must_fail || (run_.scheduler.is_dead(rank) && at(rank).outcomes[call] == Outcome::none);
  }
  const bool nothing_wrong = scenario_.options.crashes == 0 && scenario_.aborts < 0 && scenario_.deadline < 0 &&
                             scenario_.disagrees < 0 && scenario_.leaves < 0;
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    const Rank& self = at(rank);
    if (run_.scheduler.is_dead(rank) || self.outcomes[call] == Outcome::well) continue;
    if (nothing_wrong) run_.explorer.violated("a call failed for nothing");
    if (!any_well || self.outcomes[call] == Outcome::none) continue;
    const int kind = self.reason / 100;
    if (kind == static_cast<int>(FailureKind::aborted) || kind == static_cast<int>(FailureKind::timeout)) continue;
    run_.explorer.violated("rank " + std::to_string(rank) + " failed a call that another ended well");
  }
}

}  // namespace

Report explore(const Scenario& scenario, Mutation& mutation, std::uint64_t max_executions) {
  return Explorer().explore(
      [&](Explorer& explorer) {
        Run run(explorer, scenario.options, mutation);
        const auto world = std::make_unique<World>(run, scenario);
        if (run.scheduler.run()) world->check();
      },
      max_executions);
}

// Cheap ones first: most mutants fail there.
std::vector<Scenario> fast_scenarios() {
  using enum CallKind;
  return {
      {.name = "2 ranks, barrier", .calls = {barrier}},
      {.name = "2 ranks, one leaves early", .calls = {barrier, direct}, .leaves = 1},
      {.name = "2 ranks, direct", .calls = {direct}},
      {.name = "2 ranks, direct and barrier", .calls = {direct, barrier}},
      {.name = "2 ranks disagree", .calls = {direct}, .disagrees = 1},
      {.name = "2 ranks, a deadline", .calls = {direct}, .deadline = 0},
      {.name = "2 ranks, a death", .calls = {barrier}, .options = {.crashes = 1}},
      {.name = "2 ranks, staged twice", .calls = {staged, staged}},
      {.name = "2 ranks, pieces twice", .calls = {pieces, pieces}},
      {.name = "2 ranks, vote", .calls = {vote}},
      {.name = "2 ranks, one aborts a barrier", .calls = {barrier}, .aborts = 0},
      {.name = "2 ranks, one aborts", .calls = {direct}, .options = {.preemptions = 1}, .aborts = 0},
  };
}

std::vector<Scenario> slow_scenarios() {
  using enum CallKind;
  return {
      {.name = "2 ranks, a death among calls", .calls = {direct, barrier}, .options = {.crashes = 1}},
      {.name = "2 ranks, a sleep ends for no reason", .calls = {direct, direct}, .options = {.spurious = 1}},
      {.name = "2 ranks, one aborts", .calls = {direct}, .options = {.preemptions = 3}, .aborts = 0},
      {.name = "2 ranks, one aborts a vote", .calls = {vote}, .options = {.preemptions = 2}, .aborts = 0},
      {.name = "3 ranks, barrier", .ranks = 3, .calls = {barrier}},
      {.name = "3 ranks, direct", .ranks = 3, .calls = {direct}, .options = {.preemptions = 2}},
      {.name = "3 ranks, a death", .ranks = 3, .calls = {direct}, .options = {.crashes = 1, .preemptions = 0}},
      {.name = "3 ranks, one leaves early", .ranks = 3, .calls = {barrier}, .options = {.preemptions = 2}, .leaves = 1},
      {.name = "3 ranks disagree", .ranks = 3, .calls = {direct}, .options = {.preemptions = 0}, .disagrees = 1},
      {.name = "3 ranks, one aborts", .ranks = 3, .calls = {barrier}, .options = {.preemptions = 0}, .aborts = 0},
  };
}

}  // namespace gradwire::model
