// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The diagnosis in words.
#include <string.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "gradwire/base/dtype.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/diagnosis.h"

namespace gradwire::observe {
namespace {

struct FaultWords {
  std::string_view name;
  std::string_view advice;
};

// In the order of FaultClass.
constexpr std::array<FaultWords, 18> kFaultWords = {{
    {"nothing is wrong", ""},
    {"killed",
     "Somebody killed the rank (a scheduler, a time limit, a colleague). Find out who with the logs of the machine, "
     "and "
     "start the job again."},
    {"crashed", "Run the rank in a debugger or look at its core file; its last lines of stderr may say more."},
    {"out of memory", "Give the rank more memory, make batches smaller, or start fewer ranks on this host."},
    {"ended with an error",
     "Follow the text of the error. Other ranks may report no more than that this rank has gone."},
    {"exception in a hook", "Correct the hook; the other ranks only report the hook's error."},
    {"other collective",
     "All ranks must make the same calls in the same order. Look for a branch or a loop that depends on the rank or on "
     "its data."},
    {"other shape",
     "The tensors of a collective must have as many elements on all ranks. Look at where the size of "
     "this tensor comes from; data of different lengths are a usual cause."},
    {"other dtype", "The tensors of a collective must have one dtype on all ranks."},
    {"other root", "All ranks must name the same root."},
    {"skipped a call",
     "The rank has left out calls that the others make. Look for a `continue`, an early exit or a "
     "condition that depends on the rank or on its data."},
    {"left the loop",
     "The rank ended its loop before the others did: its data may be shorter. Give all ranks as many steps, or use "
     "Join."},
    {"stopped", "Continue the process (kill -CONT), or detach the debugger that stopped it."},
    {"slow",
     "The rank still computes. Let it finish, or look at what it does (py-spy dump, gdb -p) and at what else "
     "runs on its processors."},
    {"blocked",
     "The rank waits for something other than gradwire: a file, a socket, a lock, a sleep. Look at what it "
     "waits for (py-spy dump, gdb -p)."},
    {"deadlock",
     "Ranks wait for each other: in different groups (DistributedDataParallel has groups of its own), or in receives. "
     "Look for a call that one rank left out (a branch that depends on the rank), for a rank with fewer batches (use "
     "Join), for two groups that ranks call in different orders, and for ranks that all receive before they send."},
    {"network gone",
     "The ranks run, but do not reach each other. Check cables, switches, firewalls and the interface "
     "that is used."},
    {"not known",
     "The records do not show why. Compare the ranks' positions above, and look at the ranks with gdb -p "
     "or py-spy dump."},
}};

std::string seconds(std::int64_t nanoseconds) {
  return measured_seconds(static_cast<double>(std::max<std::int64_t>(nanoseconds, 0)) / 1e9);
}

std::string at_place(const CallRow& call) {
  const std::string place = describe(call.place);
  return place.empty() ? "" : concat(" at ", place);
}

// A call of a rank and the call's group.
struct Position {
  const GroupTable* group = nullptr;
  const CallRow* call = nullptr;  // null: the rank has made none
};

// The last call that a thread waits for; where there is none, the last call.
Position position_of(const RankTable& rank) {
  Position last;
  const auto is_waited_for = [](const CallRow& call) { return call.waited == Waited::yes; };
  for (const GroupTable& group : rank.groups) {
    for (const CallRow& call : group.calls) {
      const bool is_better = last.call != nullptr && is_waited_for(call) != is_waited_for(*last.call)
                                 ? is_waited_for(call)
                                 : last.call == nullptr || call.called > last.call->called;
      if (is_better) last = {&group, &call};
    }
  }
  return last;
}

std::string process_words(const ProcessView& process, const Occasion& occasion) {
  if (process.has_ended && process.by_launcher) return "; the launcher ended it";
  if (process.has_ended && process.by_signal)
    return concat("; it was ended by signal ", process.code, " (SIG",
                  ::sigabbrev_np(process.code) == nullptr ? "?" : ::sigabbrev_np(process.code), ")");
  if (process.has_ended) return concat("; it exited with ", process.code);
  if (!process.seen) return occasion.is_over ? "" : "; its process was not seen";
  if (process.state == 'T' || process.state == 't') return "; its process is stopped";
  if (process.state == 'D') return "; its process waits for a disk or a device";
  if (waits_for_data(process)) return concat("; its process waits in ", process.system_call, "()");
  if (process.state == 'R' || process.busy >= 0.2) return "; its process computes";
  return process.system_call.empty() ? "; its process waits"
                                     : concat("; its process waits in ", process.system_call, "()");
}

std::string position(const RankTable& rank, const Occasion& occasion) {
  const std::string name = concat("rank ", rank.rank, ": ");
  const auto [group, call] = position_of(rank);
  if (call == nullptr) return concat(name, "has made no call", process_words(rank.process, occasion));
  const std::string what = concat(describe(*call), at_place(*call),
                                  // The group of all ranks is meant where none is named.
                                  group->path == "default" ? "" : concat(", group ", group->path));
  if (call->outcome == Outcome::none) {
    const std::string age = occasion.is_over ? "" : concat(", for ", seconds(occasion.now - call->called));
    if (call->waited == Waited::no)
      return concat(name, what, occasion.is_over ? " was" : " is", " under way", age, ", and no thread ",
                    occasion.is_over ? "waited" : "waits", " for it", process_words(rank.process, occasion));
    const std::string wait_place = describe(call->wait_place);
    return concat(name, occasion.is_over ? "was in " : "is in ", what, age,
                  wait_place.empty() ? "" : concat(", and waits for it at ", wait_place),
                  process_words(rank.process, occasion));
  }
  std::string how = call->outcome == Outcome::good || call->outcome == Outcome::unknown
                        ? ""
                        : concat(" with an error (", name_of(call->outcome), ")");
  if (!occasion.is_over) how += concat(" ", seconds(occasion.now - call->ended), " ago");
  return concat(name, "last call ", what, ", ended", how, process_words(rank.process, occasion));
}

std::string headline(const Diagnosis& diagnosis, const Occasion& occasion) {
  const bool one = diagnosis.culprits.size() == 1;
  if (diagnosis.culprits.empty()) return concat("the cause is: ", name_of(diagnosis.fault));
  if (diagnosis.fault == FaultClass::unknown)
    return concat("the others ", occasion.is_over ? "waited" : "wait", " for ", name_ranks(diagnosis.culprits), "; ",
                  one ? "its" : "their", " state is not known");
  if (!diagnosis.certain) return concat(name_ranks(diagnosis.culprits), " disagree: ", name_of(diagnosis.fault));
  return concat(name_ranks(diagnosis.culprits), one ? " is" : " are", " the cause: ", name_of(diagnosis.fault));
}

}  // namespace

std::string_view name_of(FaultClass fault) noexcept { return kFaultWords[static_cast<std::size_t>(fault)].name; }

std::string_view advice_for(FaultClass fault) noexcept { return kFaultWords[static_cast<std::size_t>(fault)].advice; }

std::string describe(const CallRow& call) {
  std::string text(name_of(call.kind));
  std::vector<std::string> parts;
  if (call.dtype < kDTypeCount) {
    parts.push_back(concat(call.count, " ", name_of(static_cast<DType>(call.dtype))));
  } else if (call.count != 0) {
    parts.push_back(concat(call.count, " elements"));
  }
  if (call.root >= 0) parts.push_back(concat(is_message(call.kind) ? "rank " : "root ", call.root));
  if (call.tag != 0) parts.push_back(words_of_tag(call.tag));
  if (call.message_tag > 0) parts.push_back(concat("tag ", call.message_tag));  // 0 is the default
  text += concat("(", join(parts, ", "), ")");
  if (call.sequence != 0) text += concat(" (call ", number_of(call), " of its group)");
  return text;
}

std::string describe(const CallerPlace& place) {
  if (!place.line.empty()) return place.line;
  if (place.module.empty()) return "";
  char offset[24];
  std::snprintf(offset, sizeof(offset), "+0x%llx", static_cast<unsigned long long>(place.offset));
  const std::string module = place.module.substr(place.module.rfind('/') + 1);
  return place.function.empty() ? concat(module, offset) : concat(place.function, " (", module, offset, ")");
}

std::string explain(const Diagnosis& diagnosis, const std::vector<RankTable>& ranks, const Occasion& occasion) {
  if (diagnosis.fault == FaultClass::none) return "";
  std::string text = headline(diagnosis, occasion) + "\n";
  if (diagnosis.call) {
    const std::string_view who = diagnosis.certain ? "the others" : diagnosis.their_call ? "some" : "ranks";
    text += concat("  ", who, diagnosis.their_call ? " called " : " waited in ", describe(*diagnosis.call),
                   at_place(*diagnosis.call), ", group ", diagnosis.group, "\n");
  }
  if (diagnosis.their_call)
    text += concat(diagnosis.certain ? "  the cause called " : "  others called ", describe(*diagnosis.their_call),
                   at_place(*diagnosis.their_call),
                   diagnosis.their_group == diagnosis.group ? "" : concat(", group ", diagnosis.their_group), "\n");
  if (!diagnosis.words.empty()) text += concat("  its error: ", diagnosis.words, "\n");
  if (!diagnosis.likely_cause.empty()) text += concat("  likely cause: ", diagnosis.likely_cause, "\n");
  std::vector<const RankTable*> sorted;
  for (const RankTable& rank : ranks) sorted.push_back(&rank);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->rank < b->rank; });
  for (const RankTable* rank : sorted) text += concat("  ", position(*rank, occasion), "\n");
  text += concat("  what to do: ", advice_for(diagnosis.fault), "\n");
  return text;
}

}  // namespace gradwire::observe
