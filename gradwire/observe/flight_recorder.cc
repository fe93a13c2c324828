// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/flight_recorder.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/thread_local.h"
#include "gradwire/observe/caller_sites_internal.h"
#include "gradwire/observe/clock_internal.h"
#include "gradwire/observe/flight_format_internal.h"
#include "gradwire/observe/flight_memory_internal.h"
#include "gradwire/observe/flight_text_internal.h"

namespace gradwire::observe {
namespace {

using format::Phase;

std::uint64_t nanoseconds(clockid_t clock) noexcept { return static_cast<std::uint64_t>(time_of(clock)); }

// std::chrono::steady_clock is CLOCK_MONOTONIC in the libraries of GCC and Clang on Linux.
std::uint64_t nanoseconds(std::chrono::steady_clock::time_point time) noexcept {
  const std::chrono::nanoseconds since = time.time_since_epoch();
  return since.count() == 0 ? nanoseconds(CLOCK_MONOTONIC) : static_cast<std::uint64_t>(since.count());
}

constexpr std::uint64_t state_of(std::uint64_t ticket, Phase phase) noexcept {
  return ticket << 3 | static_cast<std::uint64_t>(phase);
}

std::uint64_t pair_of(std::int64_t high, std::int64_t low) noexcept {
  return static_cast<std::uint64_t>(high) << 32 | static_cast<std::uint32_t>(low);
}

// The recorder of the process.
struct Recorder {
  explicit Recorder(format::File& to) noexcept
      : file(to), has_ranks(to.ranks.load(std::memory_order_relaxed) != ~std::uint64_t{0}), sites(to) {}
  format::File& file;
  const bool has_ranks;  // of the environment
  CallerSites sites;
  Mutex mutex;  // of places for groups and of notes
};

// Null before the first group, where the recorder is off, and in a forked child.
std::atomic<Recorder*> active{nullptr};

// Never destroyed: calls may end after the static variables have gone.
Recorder* make_recorder() noexcept {
  try {
    format::File* const file = open_flight_memory();
    if (file == nullptr) return nullptr;
    file->pid.store(static_cast<std::uint64_t>(::getpid()), std::memory_order_relaxed);
    file->ranks.store(ranks_of_environment(), std::memory_order_relaxed);
    file->monotonic.store(nanoseconds(CLOCK_MONOTONIC), std::memory_order_relaxed);
    file->wall.store(nanoseconds(CLOCK_REALTIME), std::memory_order_relaxed);
    file->magic.store(format::kMagic, std::memory_order_release);
    Recorder* const made = std::make_unique<Recorder>(*file).release();
    active.store(made, std::memory_order_release);
    ::pthread_atfork(nullptr, nullptr, [] { active.store(nullptr, std::memory_order_relaxed); });
    return made;
  } catch (const std::exception&) {
    return nullptr;
  }
}

Recorder* recorder() noexcept {
  static Recorder* const made = make_recorder();
  return made == nullptr ? nullptr : active.load(std::memory_order_relaxed);
}

GRADWIRE_STATIC_THREAD_LOCAL CallInProgress* innermost = nullptr;
GRADWIRE_STATIC_THREAD_LOCAL std::uint32_t line_of_thread = 0;

// Where no call is under way any more, so that nobody will write there.
bool is_over(const format::Group& group) noexcept {
  if (group.state.load(std::memory_order_relaxed) != static_cast<std::uint64_t>(format::GroupState::closed))
    return false;
  return std::all_of(group.calls.begin(), group.calls.end(), [](const format::Call& call) {
    const auto phase = static_cast<Phase>(call.words[format::Call::state].load(std::memory_order_acquire) & 7);
    return phase == Phase::empty || phase == Phase::ended;
  });
}

// A free place: a new one, else that of the group that was closed first.
format::Group* find_place(format::File& file) noexcept {
  format::Group* oldest = nullptr;
  for (format::Group& group : file.groups) {
    if (group.state.load(std::memory_order_relaxed) == static_cast<std::uint64_t>(format::GroupState::empty))
      return &group;
    if (is_over(group) && (oldest == nullptr || group.closed.load() < oldest->closed.load())) oldest = &group;
  }
  if (oldest == nullptr) return nullptr;
  oldest->state.store(static_cast<std::uint64_t>(format::GroupState::empty), std::memory_order_release);
  for (format::Call& call : oldest->calls) call.words[format::Call::state].store(0, std::memory_order_relaxed);
  return oldest;
}

// The group of a call's record.
format::Group& group_of(format::Call& call, std::uint64_t ticket) noexcept {
  static_assert(std::is_standard_layout_v<format::Group>, "the group lies before its calls");
  auto* const first = reinterpret_cast<std::byte*>(&call - ticket % format::kCalls);
  return *reinterpret_cast<format::Group*>(first - offsetof(format::Group, calls));
}

// Claims a record for a call, and sets its ticket. Records of calls that are under way stay where they are, and their
// tickets are passed over.
format::Call* claim(format::Group& group, std::uint64_t& ticket) noexcept {
  for (std::size_t i = 0; i < format::kCalls; ++i) {
    ticket = group.tickets.fetch_add(1, std::memory_order_relaxed);
    format::Call& call = group.calls[ticket % format::kCalls];
    format::Word& state = call.words[format::Call::state];
    std::uint64_t before = state.load(std::memory_order_relaxed);
    const auto phase = static_cast<Phase>(before & 7);
    if (phase != Phase::empty && phase != Phase::ended) continue;
    if (state.compare_exchange_strong(before, state_of(ticket, Phase::writing), std::memory_order_acquire))
      return &call;
  }
  return nullptr;
}

}  // namespace

void FlightGroup::open(std::string_view path, std::string_view backend, std::string_view name, int rank,
                       int size) noexcept {
  Recorder* const here = recorder();
  if (here == nullptr || group_ != nullptr) return;
  MutexLock lock(here->mutex);
  format::Group* const group = find_place(here->file);
  if (group == nullptr) {
    here->file.lost_groups.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (!here->has_ranks) here->file.ranks.store(ranks_that_were_told(), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // who sees a word of this group sees that the place was empty
  group->tickets.store(0, std::memory_order_relaxed);
  group->collectives.store(0, std::memory_order_relaxed);
  group->refused.store(0, std::memory_order_relaxed);
  group->members.store(pair_of(rank, size), std::memory_order_relaxed);
  group->opened.store(nanoseconds(CLOCK_MONOTONIC), std::memory_order_relaxed);
  group->closed.store(0, std::memory_order_relaxed);
  set_text(group->path, path);
  set_text(group->backend, backend);
  set_text(group->name, name);
  group->state.store(static_cast<std::uint64_t>(format::GroupState::open), std::memory_order_release);
  group_ = group;
}

FlightGroup::~FlightGroup() {
  if (group_ == nullptr || active.load(std::memory_order_relaxed) == nullptr) return;
  group_->closed.store(nanoseconds(CLOCK_MONOTONIC), std::memory_order_relaxed);
  group_->state.store(static_cast<std::uint64_t>(format::GroupState::closed), std::memory_order_release);
}

FlightCall FlightGroup::begin(const CallArguments& arguments) noexcept {
  using format::Call;
  Recorder* const here = active.load(std::memory_order_relaxed);
  if (group_ == nullptr || here == nullptr) return {};
  const bool message = is_message(arguments.kind);
  const std::uint64_t sequence = message ? 0 : group_->collectives.fetch_add(1, std::memory_order_relaxed) + 1;
  std::uint64_t ticket = 0;
  Call* const call = claim(*group_, ticket);
  if (call == nullptr) {
    here->file.lost_calls.fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  const std::uint32_t site = line_of_thread != 0 ? line_of_thread : here->sites.of_address(arguments.return_address);
  std::atomic_thread_fence(std::memory_order_release);  // who sees a word of this call sees `writing`
  const auto set = [call](std::size_t word, std::uint64_t value) {
    call->words[word].store(value, std::memory_order_relaxed);
  };
  set(Call::sequence, sequence);
  set(Call::called, nanoseconds(arguments.called));
  set(Call::started, 0);
  set(Call::end_time, 0);
  set(Call::count, arguments.count);
  set(Call::bytes, arguments.bytes);
  set(Call::tag, arguments.tag);
  set(Call::site, std::uint64_t{site} << 32 | own_thread());
  set(Call::arguments, pair_of(arguments.root, 0) | static_cast<std::uint64_t>(arguments.kind) << 24 |
                           static_cast<std::uint64_t>(arguments.dtype) << 16);
  set(Call::peers, 0);
  set(Call::refused, group_->refused.load(std::memory_order_relaxed));
  set(Call::waiter, arguments.waits ? own_thread() : format::kNobody);
  set(Call::message, static_cast<std::uint64_t>(std::int64_t{arguments.message_tag} + 1));
  call->words[Call::state].store(state_of(ticket, Phase::pending), std::memory_order_release);
  return {call, ticket};
}

bool FlightCall::may_change() const noexcept {
  return record_ != nullptr && active.load(std::memory_order_relaxed) != nullptr;
}

void FlightCall::started() const noexcept {
  using format::Call;
  if (!may_change()) return;
  if (record_->words[Call::state].load(std::memory_order_relaxed) != state_of(ticket_, Phase::pending)) return;
  record_->words[Call::started].store(nanoseconds(CLOCK_MONOTONIC), std::memory_order_relaxed);
}

void FlightCall::set_waiter(std::uint64_t waiter) const noexcept {
  using format::Call;
  if (!may_change()) return;
  if (record_->words[Call::state].load(std::memory_order_relaxed) != state_of(ticket_, Phase::pending)) return;
  record_->words[Call::waiter].store(waiter, std::memory_order_relaxed);
}

void FlightCall::finish(Outcome outcome, std::uint64_t peers) const noexcept {
  using format::Call;
  std::uint64_t before = state_of(ticket_, Phase::pending);
  auto& words = record_->words;
  if (!words[Call::state].compare_exchange_strong(before, state_of(ticket_, Phase::ending), std::memory_order_acquire))
    return;
  std::atomic_thread_fence(std::memory_order_release);
  words[Call::end_time].store(nanoseconds(CLOCK_MONOTONIC), std::memory_order_relaxed);
  const std::uint64_t arguments = words[Call::arguments].load(std::memory_order_relaxed);
  words[Call::arguments].store(arguments | static_cast<std::uint64_t>(outcome) << 8, std::memory_order_relaxed);
  words[Call::peers].store(peers, std::memory_order_relaxed);
  const bool is_refused_collective =
      outcome == Outcome::refused && words[Call::sequence].load(std::memory_order_relaxed) != 0;
  if (is_refused_collective) group_of(*record_, ticket_).refused.fetch_add(1, std::memory_order_relaxed);
  words[Call::state].store(state_of(ticket_, Phase::ended), std::memory_order_release);
}

void FlightCall::ended(const std::exception_ptr& error) const noexcept {
  if (!may_change()) return;
  const ErrorSummary summary = summary_of(error);
  finish(summary.outcome, summary.peers);
  if (error == nullptr || summary.outcome == Outcome::refused) return;
  try {
    note_failure(NoteKind::call_failed, gradwire::describe(error));
  } catch (const std::exception&) {
    // No memory for the words.
  }
}

void FlightCall::lost() const noexcept {
  if (may_change()) finish(Outcome::unknown, 0);
}

std::string FlightCall::name() const {
  using format::Call;
  if (!may_change() || record_->words[Call::state].load(std::memory_order_acquire) >> 3 != ticket_) return "";
  const auto word = [this](std::size_t index) { return record_->words[index].load(std::memory_order_relaxed); };
  // Appended, not streamed: calls of c10d's engines are named before they have an error.
  std::string text(name_of(static_cast<CallKind>(word(Call::arguments) >> 24 & 0xff)));
  text += " (";
  if (word(Call::sequence) != 0)
    text.append("call ").append(std::to_string(word(Call::sequence) - word(Call::refused))).append(" of ");
  text.append("group ").append(get_text(group_of(*record_, ticket_).path));
  if (const std::uint64_t tag = word(Call::tag)) text.append(", ").append(words_of_tag(tag));
  // Tag 0 is the default.
  if (const std::uint64_t tag = word(Call::message); tag > 1) text.append(", tag ").append(std::to_string(tag - 1));
  return text.append(")");
}

FlightWait::FlightWait(FlightCall call) noexcept : call_(call) {
  call_.set_waiter(std::uint64_t{line_of_thread} << 32 | own_thread());
}

FlightWait::~FlightWait() { call_.set_waiter(format::kNobody); }

CallInProgress::CallInProgress(FlightCall call) noexcept : call_(call), outer_(std::exchange(innermost, this)) {}

CallInProgress::~CallInProgress() { innermost = outer_; }

FlightCall take_call() noexcept {
  if (innermost == nullptr || innermost->taken_) return {};
  innermost->taken_ = true;
  return innermost->call_;
}

CallerLine::CallerLine(std::uint64_t key, Describe describe, const void* context) noexcept : outer_(line_of_thread) {
  if (Recorder* const here = recorder()) line_of_thread = here->sites.of_line(key, describe, context);
}

CallerLine::CallerLine(std::uint32_t number) noexcept : outer_(line_of_thread) {
  if (number != 0) line_of_thread = number;
}

CallerLine::CallerLine(const void* return_address) noexcept : outer_(line_of_thread) {
  Recorder* const here = recorder();
  if (here != nullptr && line_of_thread == 0) line_of_thread = here->sites.of_address(return_address);
}

CallerLine::~CallerLine() { line_of_thread = outer_; }

std::uint32_t caller_line() noexcept { return line_of_thread; }

void note_failure(NoteKind kind, std::string_view text) noexcept {
  Recorder* const here = active.load(std::memory_order_relaxed);
  if (here == nullptr) return;
  MutexLock lock(here->mutex);
  for (format::Note& note : here->file.notes) {
    if (note.state.load(std::memory_order_relaxed) == 0) {
      note.kind.store(static_cast<std::uint64_t>(kind), std::memory_order_relaxed);
      note.time.store(nanoseconds(CLOCK_MONOTONIC), std::memory_order_relaxed);
      set_text(note.text, text);
      note.state.store(1, std::memory_order_release);
      return;
    }
    // Every later call of a failed group fails with the first reason.
    if (std::string_view(note.text.data()) == text.substr(0, note.text.size() - 1)) return;
  }
}

bool records_calls() noexcept { return recorder() != nullptr; }

std::span<const std::byte> flight_memory() noexcept {
  const Recorder* const here = active.load(std::memory_order_relaxed);
  if (here == nullptr) return {};
  return {reinterpret_cast<const std::byte*>(&here->file), format::kFileBytes};
}

std::size_t flight_memory_bytes() noexcept { return format::kFileBytes; }
std::size_t flight_file_bytes() noexcept { return format::kLongFileBytes; }

}  // namespace gradwire::observe
