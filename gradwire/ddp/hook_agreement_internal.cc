// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/hook_agreement_internal.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/observe/flight_recorder.h"

namespace gradwire::internal {
namespace {

using Numbers = std::vector<std::int64_t>;

std::string identity_of(const CommHook* hook) {
  return hook == nullptr ? "no hook" : concat("'", hook->identity(), "'");
}

Numbers letters_of(const std::string& text) {
  Numbers letters;
  for (const char letter : text) letters.push_back(static_cast<unsigned char>(letter));
  return letters;
}

std::string text_of(const Numbers& letters) {
  std::string text;
  for (const std::int64_t letter : letters) {
    if (letter != 0) text += static_cast<char>(letter);
  }
  return text;
}

// Returns the texts of all ranks, by rank. Collective.
std::vector<std::string> gather_texts(ProcessGroup& group, const std::string& mine) {
  const auto sizes = gather_integers(group, {static_cast<std::int64_t>(mine.size())});
  Numbers letters = letters_of(mine);
  letters.resize(static_cast<std::size_t>(std::max_element(sizes.begin(), sizes.end())->front()));
  std::vector<std::string> texts;
  for (const Numbers& text : gather_integers(group, std::move(letters))) texts.push_back(text_of(text));
  return texts;
}

// "rank 0 has 'int8', ranks 1, 2 have no hook"
std::string describe(const std::vector<std::string>& texts) {
  std::vector<std::string> parts;
  for (std::size_t first = 0; first < texts.size(); ++first) {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      if (texts[rank] == texts[first]) ranks.push_back(static_cast<int>(rank));
    }
    if (ranks.front() != static_cast<int>(first)) continue;
    parts.push_back(concat(name_ranks(ranks), ranks.size() == 1 ? " has " : " have ", texts[first]));
  }
  return join(parts, ", ");
}

}  // namespace

void require_same_hooks(ProcessGroup& group, const CommHook* hook) {
  if (group.size() == 1) return;
  const std::string mine = identity_of(hook);
  const auto hashes = gather_integers(group, {static_cast<std::int64_t>(stable_hash(mine))});
  if (std::all_of(hashes.begin(), hashes.end(), [&](const Numbers& other) { return other == hashes[0]; })) return;
  throw MismatchError(
      concat("The communication hooks of DistributedDataParallel differ: ", describe(gather_texts(group, mine)),
             " (seen on rank ", group.rank(), "). Register the same hook with the same options on all ranks."));
}

namespace {

// For the flight recorder: an error that came from no other rank is the hook's own.
void note_error_of_hook(const std::exception_ptr& error, const CommHook* hook) {
  const observe::Outcome outcome = observe::summary_of(error).outcome;
  const bool is_own = outcome == observe::Outcome::other || outcome == observe::Outcome::resource ||
                      outcome == observe::Outcome::refused;
  if (hook == nullptr || !is_own) return;
  observe::note_failure(observe::NoteKind::hook_failed,
                        concat("hook '", hook->identity(), "': ", gradwire::describe(error)));
}

}  // namespace

std::exception_ptr with_hook_named(const std::exception_ptr& error, const CommHook* hook, int rank) {
  try {
    std::rethrow_exception(error);
  } catch (const MismatchError& mismatch) {
    const std::string what = mismatch.what();
    if (what.find("hook") != std::string::npos) return error;
    return std::make_exception_ptr(
        MismatchError(concat(what, "; on rank ", rank, " DistributedDataParallel ",
                             hook == nullptr ? "averages without a communication hook"
                                             : concat("runs the communication hook '", hook->identity(), "'"),
                             "; the hooks of all ranks must be the same and make the same calls")));
  } catch (...) {
    note_error_of_hook(error, hook);
    return error;
  }
}

}  // namespace gradwire::internal
