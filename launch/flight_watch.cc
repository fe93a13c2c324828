// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/flight_watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "gradwire/base/environment.h"
#include "gradwire/base/strings.h"
#include "launch/rank_environment.h"

namespace gradwire::launch {
namespace {

using observe::Occasion;
using observe::RankTable;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Between two looks at a job that may stand still.
constexpr milliseconds kShortestLook{50};
// A job that ran too long is one that stands still when nothing has happened for so long.
constexpr milliseconds kStandstill{1000};
// Who interrupts a healthy job shall not read of a rank that computes a little longer than the others.
constexpr milliseconds kLongStandstill{5000};

std::int64_t now() { return nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::int64_t in_nanoseconds(milliseconds time) { return nanoseconds(time).count(); }

// When a call last began or ended.
std::int64_t last_event(const std::vector<RankTable>& tables) {
  std::int64_t last = 0;
  for (const RankTable& table : tables) {
    for (const auto& group : table.groups) {
      for (const auto& call : group.calls) last = std::max({last, call.called, call.started, call.ended});
    }
  }
  return last;
}

// By rank: whether a process that was replaced recorded the table, and the present one has recorded nothing yet.
std::vector<bool> replaced(const std::vector<RankTable>& tables, const std::vector<RunningRank>& ranks) {
  std::vector<bool> all;
  for (std::size_t rank = 0; rank < tables.size(); ++rank)
    all.push_back(tables[rank].pid != 0 && tables[rank].started < ranks[rank].started);
  return all;
}

}  // namespace

FlightWatch::FlightWatch(const Options& options, const JobVariables& job, EpochLookup epochs)
    : options_(options),
      first_rank_(job.first_rank),
      world_(job.world),
      run_id_(job.run_id),
      kills_before_(out_of_memory_kills()),
      files_(environment("GRADWIRE_FLIGHT_RECORDER") == "off" ? 0 : options.ranks),
      looks_(static_cast<std::size_t>(options.ranks)),
      epochs_(std::move(epochs)) {
  if (!options_.stall) return;
  next_check_ = Deadline::after(*options_.stall);
  if (epochs_ && options_.elastic && options_.elastic->replace_stalled)
    hangs_.emplace(*options_.stall, own_host_name());
}

std::vector<std::string> FlightWatch::recorders() const {
  std::vector<std::string> paths;
  for (int rank = 0; rank < files_.ranks(); ++rank) paths.push_back(files_.path(rank));
  return paths;
}

std::vector<RankTable> FlightWatch::tables() const {
  std::vector<RankTable> tables;
  bool any = false;
  for (int rank = 0; rank < files_.ranks(); ++rank) {
    auto table = files_.read(rank);
    any = any || table.has_value();
    tables.push_back(std::move(table).value_or(RankTable{}));
    // A rank is known by its number also before its first call.
    tables.back().rank = first_rank_ + rank;
    tables.back().world = world_;
    tables.back().run = run_id_;
    const Looks& looks = looks_[static_cast<std::size_t>(rank)];
    if (looks.now) add_look(tables.back().process, *looks.now, looks.before);
  }
  return any ? tables : std::vector<RankTable>();
}

std::vector<RankTable> FlightWatch::earlier() const {
  std::vector<RankTable> all;
  for (int rank = 0; rank < files_.ranks(); ++rank) {
    for (RankTable& table : files_.read_earlier(rank)) {
      table.rank = first_rank_ + rank;
      table.world = world_;
      table.run = run_id_;
      all.push_back(std::move(table));
    }
  }
  return all;
}

void FlightWatch::look(const std::vector<RunningRank>& ranks) {
  for (int rank = 0; rank < files_.ranks(); ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (ranks[index].pid <= 0) continue;
    // The process that records may be a child of the one that the launcher started.
    const auto table = files_.read(rank);
    auto look = look_at(table && table->pid > 0 ? table->pid : ranks[index].pid);
    if (!look) look = look_at(ranks[index].pid);
    if (!look) continue;
    looks_[index].before = std::move(looks_[index].now);
    looks_[index].now = std::move(look);
  }
}

FlightRecords FlightWatch::records(std::vector<RankTable> tables, const std::vector<bool>& is_replaced,
                                   const Occasion& occasion) const {
  FlightRecords all{.tables = std::move(tables), .occasion = occasion};
  if (!options_.flight_folder.empty()) all.earlier = earlier();
  for (std::size_t rank = 0; rank < is_replaced.size(); ++rank) {
    RankTable& table = all.tables[rank];
    if (!is_replaced[rank]) continue;
    RankTable of_present;
    of_present.rank = table.rank;
    of_present.world = table.world;
    of_present.run = table.run;
    of_present.process = std::exchange(table.process, {});
    if (!options_.flight_folder.empty()) all.earlier.push_back(std::move(table));
    table = std::move(of_present);
  }
  return all;
}

std::string FlightWatch::tell(const FlightRecords& records) const {
  return launch::tell(records, options_.flight_folder, world_);
}

observe::Diagnosis FlightWatch::Sight::diagnose() const {
  return observe::diagnose(epoch ? tables_of(*epoch, tables) : tables, occasion);
}

std::optional<EpochMembers> FlightWatch::members_of(std::int64_t epoch) {
  if (known_epoch_.first == epoch) return known_epoch_.second;
  auto members = epochs_(epoch);
  if (members) known_epoch_ = {epoch, *members};
  return members;
}

FlightWatch::Sight FlightWatch::see(const std::vector<RunningRank>& ranks, milliseconds bound) {
  look(ranks);
  Sight found{.tables = tables(), .occasion = {.now = now(), .bound = in_nanoseconds(bound)}};
  found.event = last_event(found.tables);
  if (epochs_) {
    // At each look: the members may be known only some time after they were asked for.
    found.is_replaced = replaced(found.tables, ranks);
    auto epoch = present_epoch(found.tables, ranks, [this](std::int64_t number) { return members_of(number); });
    if (found.stands_still()) found.epoch = std::move(epoch);
  }
  return found;
}

FlightWatch::StallFinding FlightWatch::check_stall(const std::vector<RunningRank>& ranks, bool tells) {
  const milliseconds pause = std::max(kShortestLook, *options_.stall / 4);
  const bool was_away = Deadline::Clock::now() > next_check_.point() + pause;
  next_check_ = Deadline::after(pause);
  // The machine, or this process, has not run for a while, and so perhaps the ranks have not. They get the time until
  // the next look.
  if (was_away && !std::exchange(was_away_, true)) return {};
  was_away_ = was_away;
  Sight at = see(ranks, *options_.stall);
  StallFinding found;
  if (at.stands_still() && at.diagnose().fault != observe::FaultClass::none)
    found.hangs = std::chrono::nanoseconds(at.time());
  const bool hangs = hangs_ && hangs_->look(Deadline::Clock::now(), at.event, pause);
  if (hangs && at.stands_still()) found.answer = judge(at, ranks);
  if (!tells || !at.stands_still() || at.event == told_event_) return found;
  const bool is_wrong = at.diagnose().fault != observe::FaultClass::none;
  // Ranks of other hosts may wait for one of these.
  const bool others_may_wait = static_cast<int>(at.tables.size()) < world_ && !options_.flight_folder.empty();
  if (!is_wrong && !others_may_wait) return found;
  told_event_ = at.event;
  found.records = with_headline("stands still: no call has", std::move(at));
  found.records->is_told = is_wrong;
  return found;
}

std::optional<HangAnswer> FlightWatch::judge(const Sight& at, const std::vector<RunningRank>& ranks) {
  std::vector<int> groups;
  for (const RankTable& table : at.tables) groups.push_back(table.pid > 0 ? ::getpgid(table.pid) : -1);
  return hangs_->judge({.diagnosis = at.diagnose(),
                        .epoch = *at.epoch,
                        .tables = at.tables,
                        .running = ranks,
                        .groups = groups,
                        .standstill = at.time()});
}

void FlightWatch::forgive() noexcept {
  if (hangs_) hangs_->forget();
}

FlightRecords FlightWatch::with_headline(std::string_view what, Sight at) const {
  const std::string seconds = measured_seconds(static_cast<double>(at.time()) / 1e9);
  FlightRecords found = records(std::move(at.tables), at.is_replaced, at.occasion);
  found.epoch = std::move(at.epoch);
  found.headline = concat("gradwire-run: the job ", what, " begun or ended for ", seconds, "\n");
  return found;
}

std::optional<FlightRecords> FlightWatch::at_interruption(const std::vector<RunningRank>& ranks) {
  Sight at = see(ranks, kLongStandstill);
  if (!at.stands_still() || at.event == told_event_) return std::nullopt;
  return with_headline("stood still: no call had", std::move(at));
}

std::optional<FlightRecords> FlightWatch::at_timeout(const std::vector<RunningRank>& ranks) {
  Sight at = see(ranks, kStandstill);
  if (!at.stands_still()) return std::nullopt;
  FlightRecords found = records(std::move(at.tables), at.is_replaced, at.occasion);
  found.epoch = std::move(at.epoch);
  return found;
}

FlightRecords FlightWatch::at_end(const JobOutcome& outcome, const std::vector<RunningRank>& ranks,
                                  const std::function<std::vector<std::string>(int)>& last_lines) const {
  FlightRecords found = records_at_end(outcome, ranks, last_lines);
  found.errors = shared_errors(outcome, last_lines);
  found.quoted =
      concat(outcome.quotes_last_lines() ? join(outcome.last_lines, "\n") : std::string(), "\n", found.errors);
  found.is_told = !outcome.ended_with_coordinator();
  return found;
}

std::optional<FlightRecords> FlightWatch::at_good_end(const JobOutcome& outcome,
                                                      const std::vector<RunningRank>& ranks) const {
  if (files_.ranks() == world_ || options_.flight_folder.empty()) return std::nullopt;
  FlightRecords found = records_at_end(outcome, ranks, [](int) { return std::vector<std::string>(); });
  found.is_told = false;
  return found;
}

JobOutcome::Calls FlightWatch::calls_of(int rank) const {
  using Calls = JobOutcome::Calls;
  const std::vector<RankTable> all = tables();
  if (static_cast<std::size_t>(rank) >= all.size()) return Calls::unknown;
  const observe::CallRow* last = nullptr;
  bool any = false;
  for (const observe::GroupTable& group : all[static_cast<std::size_t>(rank)].groups) {
    any = any || !group.calls.empty();
    for (const observe::CallRow& call : group.calls) {
      using observe::Outcome;
      const bool failed = call.outcome != Outcome::none && call.outcome != Outcome::good &&
                          call.outcome != Outcome::refused && call.outcome != Outcome::unknown;
      if (failed && (last == nullptr || call.ended > last->ended)) last = &call;
    }
  }
  if (last == nullptr) return any ? Calls::good : Calls::unknown;
  return last->outcome == observe::Outcome::peer ? Calls::of_other_rank : Calls::failed;
}

FlightRecords FlightWatch::records_at_end(const JobOutcome& outcome, const std::vector<RunningRank>& ranks,
                                          const std::function<std::vector<std::string>(int)>& last_lines) const {
  std::vector<RankTable> all = tables();
  const std::vector<bool> is_replaced = epochs_ ? replaced(all, ranks) : std::vector<bool>();
  const bool memory_ran_out = out_of_memory_kills() > kills_before_;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    observe::ProcessView& view = all[rank].process;
    const auto& end = outcome.ends[rank];
    view.out_of_memory = memory_ran_out;
    if (!end) continue;
    const int number = static_cast<int>(rank);
    view.has_ended = true;
    view.by_signal = end->by_signal;
    view.code = end->code;
    if (!end->good()) view.order = outcome.first_bad == number ? 0 : 1;
    view.by_launcher = std::find(outcome.asked.begin(), outcome.asked.end(), number) != outcome.asked.end();
    if (!end->good()) view.last_lines = last_lines(number);
  }
  return records(std::move(all), is_replaced, {.is_over = true, .now = now()});
}

}  // namespace gradwire::launch
