// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/flight_table.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "gradwire/observe/flight_format_internal.h"
#include "gradwire/observe/flight_text_internal.h"

namespace gradwire::observe {
namespace {

using format::Phase;
using Words = std::array<std::uint64_t, format::Call::used>;

std::uint64_t load(const format::Word& word) noexcept { return word.load(std::memory_order_relaxed); }

int high_half(std::uint64_t pair) noexcept { return static_cast<std::int32_t>(pair >> 32); }
int low_half(std::uint64_t pair) noexcept { return static_cast<std::int32_t>(pair & 0xffffffffU); }

// A whole record, or nothing: the writer has come in between, or has died while it wrote.
std::optional<Words> read_words(const format::Call& call) noexcept {
  constexpr int kTries = 4;
  Words words{};
  for (int i = 0; i < kTries; ++i) {
    words[0] = call.words[0].load(std::memory_order_acquire);
    const auto phase = static_cast<Phase>(words[0] & 7);
    if (phase != Phase::pending && phase != Phase::ending && phase != Phase::ended) continue;
    for (std::size_t word = 1; word < words.size(); ++word) words[word] = load(call.words[word]);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (load(call.words[0]) == words[0]) return words;
  }
  return std::nullopt;
}

CallRow row_of(const Words& words, const std::vector<CallerPlace>& places) {
  using format::Call;
  const auto phase = static_cast<Phase>(words[Call::state] & 7);
  const std::uint64_t arguments = words[Call::arguments];
  CallRow row;
  row.ticket = words[Call::state] >> 3;
  row.sequence = words[Call::sequence];
  row.called = static_cast<std::int64_t>(words[Call::called]);
  row.started = static_cast<std::int64_t>(words[Call::started]);
  row.count = words[Call::count];
  row.bytes = words[Call::bytes];
  row.tag = words[Call::tag];
  row.refused = words[Call::refused];
  row.message_tag = static_cast<std::int32_t>(words[Call::message] - 1);
  row.root = high_half(arguments);
  row.kind = static_cast<CallKind>(arguments >> 24 & 0xff);
  row.dtype = static_cast<std::uint8_t>(arguments >> 16 & 0xff);
  row.thread = words[Call::site] & 0xffffffffU;
  const auto place_of = [&](std::uint64_t site) {
    return site >= 1 && site <= places.size() ? places[site - 1] : CallerPlace();
  };
  row.place = place_of(words[Call::site] >> 32);
  if (phase != Phase::ended) {  // of a record in `ending`, the end may be half written
    const std::uint64_t waiter = words[Call::waiter];
    if (waiter != 0) row.waited = waiter == format::kNobody ? Waited::no : Waited::yes;
    if (row.waited == Waited::yes) row.wait_place = place_of(waiter >> 32);
    return row;
  }
  row.ended = static_cast<std::int64_t>(words[Call::end_time]);
  row.outcome = static_cast<Outcome>(arguments >> 8 & 0xff);
  row.peers = words[Call::peers];
  return row;
}

GroupTable read_group(const format::Group& group, const std::vector<CallerPlace>& places) {
  GroupTable table;
  table.path = get_text(group.path);
  table.backend = get_text(group.backend);
  table.name = get_text(group.name);
  table.rank = high_half(load(group.members));
  table.size = low_half(load(group.members));
  table.closed = load(group.state) == static_cast<std::uint64_t>(format::GroupState::closed);
  table.next_ticket = load(group.tickets);
  for (const format::Call& call : group.calls) {
    if (const auto words = read_words(call)) table.calls.push_back(row_of(*words, places));
  }
  std::sort(table.calls.begin(), table.calls.end(),
            [](const CallRow& a, const CallRow& b) { return a.ticket < b.ticket; });
  return table;
}

std::vector<CallerPlace> read_places(const format::File& file) {
  std::vector<CallerPlace> places(format::kSites);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const format::Site& site = file.sites[i];
    const std::uint64_t state = site.state.load(std::memory_order_acquire);
    if (state == 0) continue;
    places[i].offset = load(site.offset);
    if (places[i].offset == 0) {
      places[i].line = get_text(site.text);
    } else {
      const bool is_long = state >= 2 && state - 2 < file.long_paths.size();
      places[i].module = is_long ? get_text(file.long_paths[state - 2]) : get_text(site.text);
      places[i].function = get_text(site.function);
    }
  }
  return places;
}

RankTable read_file(const format::File& file) {
  RankTable table;
  table.pid = static_cast<int>(load(file.pid));
  table.rank = high_half(load(file.ranks));
  table.world = low_half(load(file.ranks));
  table.started = static_cast<std::int64_t>(load(file.monotonic));
  table.wall_offset = static_cast<std::int64_t>(load(file.wall) - load(file.monotonic));
  table.lost_calls = load(file.lost_calls);
  table.lost_groups = load(file.lost_groups);
  const std::vector<CallerPlace> places = read_places(file);
  for (const format::Group& group : file.groups) {
    if (group.state.load(std::memory_order_acquire) == static_cast<std::uint64_t>(format::GroupState::empty)) continue;
    const std::uint64_t opened = load(group.opened);
    GroupTable found = read_group(group, places);
    std::atomic_thread_fence(std::memory_order_acquire);
    // Otherwise the place has gone to another group meanwhile.
    const bool same =
        load(group.state) != static_cast<std::uint64_t>(format::GroupState::empty) && load(group.opened) == opened;
    if (same) table.groups.push_back(std::move(found));
  }
  for (const format::Note& note : file.notes) {
    if (note.state.load(std::memory_order_acquire) == 0) continue;
    table.notes.push_back(
        {static_cast<NoteKind>(load(note.kind)), static_cast<std::int64_t>(load(note.time)), get_text(note.text)});
  }
  return table;
}

}  // namespace

std::string_view name_of(Waited waited) noexcept {
  return waited == Waited::yes ? "yes" : waited == Waited::no ? "no" : "";
}

Waited waited_from_name(std::string_view name) noexcept {
  return name == "yes" ? Waited::yes : name == "no" ? Waited::no : Waited::not_known;
}

std::optional<RankTable> read_flight_memory(std::span<const std::byte> memory) {
  if (memory.size() < format::kFileBytes) return std::nullopt;
  const auto& file = *reinterpret_cast<const format::File*>(memory.data());
  const std::uint64_t generation = file.generation.load(std::memory_order_acquire);
  if (generation % 2 != 0 || file.magic.load(std::memory_order_acquire) != format::kMagic) return std::nullopt;
  RankTable table = read_file(file);
  std::atomic_thread_fence(std::memory_order_acquire);
  // Otherwise a process has cleared the records of another one meanwhile, and the table mixes both.
  if (load(file.generation) != generation) return std::nullopt;
  return table;
}

std::vector<RankTable> read_earlier_processes(std::span<const std::byte> memory) {
  std::vector<RankTable> tables;
  if (memory.size() < format::kLongFileBytes) return tables;
  for (std::size_t place = 1; place <= format::kEarlier; ++place) {
    auto table = read_flight_memory(memory.subspan(place * format::kFileBytes));
    if (table) tables.push_back(*std::move(table));
  }
  std::sort(tables.begin(), tables.end(), [](const auto& a, const auto& b) { return a.started < b.started; });
  return tables;
}

bool waits_for_data(const ProcessView& process) noexcept {
  constexpr std::array<std::string_view, 11> kCalls = {"read",    "pread", "readv", "recvfrom", "recvmsg",  "openat",
                                                       "connect", "flock", "fcntl", "fsync",    "fdatasync"};
  return process.seen && std::find(kCalls.begin(), kCalls.end(), process.system_call) != kCalls.end();
}

bool ended_badly(const ProcessView& process) noexcept {
  return process.has_ended && (process.by_signal || process.code != 0) && !process.by_launcher;
}

}  // namespace gradwire::observe
