// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/rendezvous_internal.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/process_identity.h"
#include "gradwire/base/strings.h"

namespace gradwire::rendezvous {
namespace {

const std::string kFailed = "failed";
constexpr std::string_view kUnreachable = "unreachable";
constexpr std::string_view kOrEarlier =
    "unless an earlier group met in this store; give each group a PrefixStore of its own";
// A server that answers whether a key is there does so sooner.
constexpr Milliseconds kAnswer{900};

std::string process_key(int rank) { return concat("process/", rank); }

// Every failure of a rendezvous says so once, however often it is passed on.
std::string text_of(int rank, const std::exception& error) {
  const std::string text = error.what();
  const bool says_so = text.starts_with("rendezvous") || text.find("rendezvous failed") != std::string::npos;
  return says_so ? text : concat("rendezvous failed on rank ", rank, ": ", describe(error));
}

// "kind ranks|text", the ranks with commas.
std::string record_of(std::string_view kind, const std::vector<int>& ranks, const std::string& text) {
  return concat(kind, " ", join(ranks, ","), "|", text);
}

// By rank, empty for a rank that has not said so. Mostly all have: two round trips instead of two a rank.
std::vector<std::string> processes_of_ranks(Store& store, std::span<const int> ranks) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(process_key(rank));
  if (keys.empty() || store.check(keys)) return keys.empty() ? keys : store.multi_get(keys);
  std::vector<std::string> processes;
  for (const int rank : ranks) processes.push_back(process_of(store, rank));
  return processes;
}

// Whether the server does not stand still, which may be the failure that is to be told: other calls would wait for it
// for the store's whole timeout.
bool answers(Store& store) {
  const auto begin = Deadline::Clock::now();
  try {
    store.wait({&kFailed, 1}, Milliseconds(0));
  } catch (const TimeoutError&) {  // there is no such key, or no answer
  }
  return Deadline::Clock::now() - begin < kAnswer;
}

}  // namespace

void claim_backend(const std::vector<std::shared_ptr<Store>>& places, std::string_view what, int rank,
                   const std::string& backend) {
  const std::string first = places.front()->compare_set("named_backend", "", backend);
  if (first == backend) return;
  const MismatchError error(concat("rendezvous failed: ", what, ": rank ", rank, " was started with the backend ",
                                   backend, ", another rank with ", first, "; all ranks must name the same, ",
                                   kOrEarlier));
  for (const auto& place : places) announce_failure(*place, rank, error);
  throw error;
}

void claim_rank(Store& store, std::string_view backend, int rank, int size) {
  const std::string mine = concat("world size ", size, " over ", backend);
  const std::string agreed = store.compare_set("group", "", mine);
  const std::string process = process_identity();
  std::string problem;
  std::string registered;
  if (agreed != mine) {
    problem = concat("rank ", rank, " was started with ", mine, ", another rank with ", agreed);
  } else {
    // First, so that the death of a rank that has its number is noticed. Another process that has it stays registered.
    registered = store.compare_set(process_key(rank), "", process);
    if (store.compare_set(concat("rank/", rank), "", process) != process)
      problem = concat("two ranks were started with the number ", rank, " (of ", size, ")");
  }
  if (!problem.empty()) throw MismatchError(concat("rendezvous failed: ", problem, ", ", kOrEarlier));
  if (registered != process) register_rank(store, rank);
}

void register_rank(Store& store, int rank) { store.set(process_key(rank), process_identity()); }

void register_rank_at(Store& store, int rank, std::span<const std::string> places) {
  const std::string process = process_identity();
  // Where a group met in this store before, the places are its own: claim_rank() refuses this rank.
  for (const std::string& place : places)
    store.compare_set(concat(place, place.empty() ? "" : "/", process_key(rank)), "", process);
}

void register_processes(Store& store, std::span<const std::string> processes) {
  std::vector<std::string> keys;
  std::vector<std::string> known;
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    if (processes[rank].empty()) continue;
    keys.push_back(process_key(static_cast<int>(rank)));
    known.push_back(processes[rank]);
  }
  if (!keys.empty()) store.multi_set(keys, known);
}

std::string process_of(Store& store, int rank) {
  const std::string key = process_key(rank);
  return store.check({&key, 1}) ? store.get(key) : std::string();
}

std::vector<std::string> processes_of(Store& store, int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return processes_of_ranks(store, ranks);
}

std::vector<int> dead_ranks(Store& store, std::span<const int> ranks) {
  const std::vector<std::string> processes = processes_of_ranks(store, ranks);
  std::vector<int> dead;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!may_be_alive(processes[i])) dead.push_back(ranks[i]);
  }
  return dead;
}

void throw_dead(Store& store, const std::vector<int>& dead) {
  throw_if_failed(store);  // a rank that hears of a failure ends, too: then the failure is the cause
  std::vector<std::string> names;
  for (const int rank : dead)
    names.push_back(concat("rank ", rank, " (", describe_process(process_of(store, rank)), ")"));
  throw PeerError(concat("rendezvous failed: ", join(names, ", "), " ended before all ranks were there"), dead);
}

std::string encode_failure(int rank, const std::exception& error) {
  const std::string text = text_of(rank, error);
  if (const auto* unreachable = dynamic_cast<const UnreachableError*>(&error))
    return record_of(kUnreachable, unreachable->peers(), text);
  if (const auto* peer = dynamic_cast<const PeerError*>(&error)) return record_of("peer", peer->peers(), text);
  if (const auto* late = dynamic_cast<const TimeoutError*>(&error)) return record_of("timeout", late->peers(), text);
  if (dynamic_cast<const MismatchError*>(&error) != nullptr) return record_of("mismatch", {}, text);
  if (dynamic_cast<const ResourceError*>(&error) != nullptr) return record_of("resource", {}, text);
  return record_of("peer", {rank}, text);
}

void throw_failure(const std::string& record) {
  const std::size_t end = record.find('|');
  std::istringstream head(record.substr(0, end));
  std::string kind;
  head >> kind;
  std::vector<int> ranks;
  for (int rank = 0; head >> rank; head.ignore(1)) ranks.push_back(rank);
  const std::string text = end == std::string::npos ? "" : record.substr(end + 1);
  if (kind == "peer" || kind == kUnreachable) throw PeerError(text, ranks);
  if (kind == "timeout") throw TimeoutError(text, ranks);
  if (kind == "mismatch") throw MismatchError(text);
  if (kind == "resource") throw ResourceError(text);
  throw InternalError(concat("rendezvous: another rank told of a failure in words that make no sense: ", record));
}

void announce_failure(Store& store, int rank, const std::exception& error) noexcept {
  try {
    if (answers(store)) store.compare_set(kFailed, "", encode_failure(rank, error));
  } catch (...) {  // the store is gone too; the others have their deadlines
  }
}

void announce_failure(Store& store, int rank, const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& problem) {
    announce_failure(store, rank, problem);
  } catch (...) {  // nothing that could be told
  }
}

void throw_if_failed(Store& store) {
  if (store.check({&kFailed, 1})) throw_failure(store.get(kFailed));
}

bool someone_is_unreachable(Store& store) {
  return store.check({&kFailed, 1}) && store.get(kFailed).starts_with(kUnreachable);
}

std::vector<int> await_keys(Store& store, const std::vector<std::string>& keys, std::span<const int> ranks,
                            Deadline deadline) {
  for (LookPause pause;;) {
    try {
      store.wait(keys, std::min(pause.next(), deadline.remaining()));
      return {};
    } catch (const TimeoutError&) {
      throw_if_failed(store);  // a rank that failed ends, and the others are to be told of its failure
      throw_if_interrupted("rendezvous");
    }
    const std::vector<int> dead = dead_ranks(store, ranks);
    if (dead.empty() && !deadline.expired()) continue;
    // A rank that set its key and left is no failure: look at the keys after the processes.
    std::vector<int> missing;
    std::vector<int> dead_without;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (store.check({&keys[i], 1})) continue;
      missing.push_back(ranks[i]);
      if (std::find(dead.begin(), dead.end(), ranks[i]) != dead.end()) dead_without.push_back(ranks[i]);
    }
    if (missing.empty()) return {};
    if (!dead_without.empty()) throw_dead(store, dead_without);
    if (deadline.expired()) return missing;
  }
}

std::string await_key(Store& store, const std::string& key, int awaited, Deadline deadline) {
  if (await_keys(store, {key}, {&awaited, 1}, deadline).empty()) return store.get(key);
  throw TimeoutError(concat("rendezvous: the deadline passed while waiting for rank ", awaited, " (key '", key, "')"),
                     {awaited});
}

}  // namespace gradwire::rendezvous
