// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/report.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"

namespace gradwire::launch {
namespace {

constexpr const char* kName = "gradwire-run: ";

std::string seconds(std::chrono::milliseconds time) {
  return measured_seconds(static_cast<double>(time.count()) / 1000);
}

std::string hint(const ProcessEnd& end) {
  const bool killed = end.by_signal && end.code == SIGKILL;
  return killed ? " (somebody killed it, or the kernel did because memory ran out: see dmesg)" : "";
}

// Whether the disk of a file has no room left. An empty path has no file.
bool is_full(const std::string& file) {
  struct statvfs disk {};
  return !file.empty() && ::statvfs(file.c_str(), &disk) == 0 && disk.f_blocks > 0 && disk.f_bavail == 0;
}

std::string quoted(const std::vector<std::string>& last_lines, const std::string& error_file) {
  const std::string place = error_file.empty() ? "" : concat(" (all of it is in ", error_file, ")");
  if (last_lines.empty() && is_full(error_file)) {
    return concat(kName, "what it wrote to stderr may be lost: there is no room left on the disk of ", error_file,
                  "\n");
  }
  if (last_lines.empty()) return concat(kName, "it wrote nothing to stderr\n");
  std::string text = last_lines.size() == 1
                         ? concat(kName, "its last line of stderr", place, ":\n")
                         : concat(kName, "its last ", last_lines.size(), " lines of stderr", place, ":\n");
  for (const auto& line : last_lines) text += concat("  | ", line, "\n");
  return text;
}

// "rank 1: exit code 1; ranks 0, 3: signal 15 (SIGTERM)": the ranks, alike ones together.
std::string how_ranks_ended(const JobOutcome& outcome, std::optional<int> told_already) {
  std::map<std::string, std::vector<int>> alike;
  for (int rank = 0; rank < static_cast<int>(outcome.ends.size()); ++rank) {
    if (rank == told_already) continue;
    const bool killed = std::find(outcome.killed.begin(), outcome.killed.end(), rank) != outcome.killed.end();
    const auto& end = outcome.ends[rank];
    std::string what = end ? describe(*end) : "still there after SIGKILL";
    if (end && killed && end->by_signal && end->code == SIGKILL) what = "killed by gradwire-run";
    alike[std::move(what)].push_back(outcome.first_rank + rank);
  }
  std::vector<std::string> parts;
  for (const auto& [what, ranks] : alike) parts.push_back(concat(name_ranks(ranks), ": ", what));
  return parts.empty()
             ? ""
             : concat(kName, told_already ? "the others ended so: " : "the ranks ended so: ", join(parts, "; "), "\n");
}

std::string how_one_died(int rank, const char* which, const ProcessEnd& end, std::chrono::milliseconds after) {
  return concat(kName, "rank ", rank, " died ", which, ", of ", describe(end), hint(end), ", ", seconds(after),
                " after the start\n");
}

// The deaths that ended the job: one, or the first and the last of several.
std::string deaths(const JobOutcome& outcome) {
  std::string text;
  if (const auto& earlier = outcome.earlier) {
    text = concat(how_one_died(outcome.first_rank + earlier->rank, "first", earlier->end, earlier->after),
                  quoted(earlier->last_lines, earlier->error_file));
  }
  const int last = *outcome.first_bad;
  return concat(text,
                how_one_died(outcome.first_rank + last, outcome.earlier ? "last" : "first", *outcome.ends[last],
                             outcome.first_bad_after),
                quoted(outcome.last_lines, outcome.error_file));
}

// The text of an error without the number of the rank that threw it: "on rank 2 of 4" becomes "on this rank of 4".
std::string without_own_rank(std::string line, int rank) {
  for (const char* const behind : {" of ", ":", ";", ",", ")"}) {
    const std::string own = concat("on rank ", rank, behind);
    for (auto at = line.find(own); at != std::string::npos; at = line.find(own))
      line.replace(at, own.size(), concat("on this rank", behind));
  }
  return line;
}

// Whether a line is the last one of an exception, in C++ or in Python. A rank that is asked to end may have said so
// already; any other line, of a log for example, is none of its end.
bool says_error(const std::string& line) {
  return line.find("Error: ") != std::string::npos || line.find("what():  ") != std::string::npos;
}

}  // namespace

bool JobOutcome::quotes_last_lines() const noexcept {
  return first_bad && late.empty() && !late_hosts && !interrupted_first && !stopped_first && !launch_failed;
}

bool JobOutcome::ended_with_coordinator() const noexcept {
  return launch_failed && first_bad && std::find(asked.begin(), asked.end(), *first_bad) != asked.end();
}

int JobOutcome::exit_code() const noexcept {
  if (launch_failed) return kLaunchFailedExit;
  if (first_bad && !interrupted_first && late.empty()) return (earlier ? earlier->end : *ends[*first_bad]).exit_code();
  if (interrupted_by != 0) return 128 + interrupted_by;
  if (!late.empty() || late_hosts) return kTimeoutExit;
  return unkillable.empty() ? 0 : kLaunchFailedExit;
}

std::string shared_errors(const JobOutcome& outcome, const std::function<std::vector<std::string>(int)>& last_lines) {
  std::map<std::string, std::vector<int>> ranks_of;  // by error, without the rank's own number
  std::map<std::string, std::string> text_of;        // of the first of the ranks
  for (int rank = 0; rank < static_cast<int>(outcome.ends.size()); ++rank) {
    const auto& end = outcome.ends[static_cast<std::size_t>(rank)];
    const bool was_asked = std::find(outcome.asked.begin(), outcome.asked.end(), rank) != outcome.asked.end();
    if (!end || end->good()) continue;
    const std::vector<std::string> lines = last_lines(rank);
    if (lines.empty() || (was_asked && !says_error(lines.back()))) continue;
    const int number = outcome.first_rank + rank;
    const std::string error = without_own_rank(lines.back(), number);
    ranks_of[error].push_back(number);
    text_of.emplace(error, lines.back());
  }
  std::string text;
  for (const auto& [error, ranks] : ranks_of) {
    if (ranks.size() < 2) continue;
    const int first = outcome.first_rank + outcome.first_bad.value_or(-1);
    if (outcome.quotes_last_lines() && !outcome.last_lines.empty() &&
        error == without_own_rank(outcome.last_lines.back(), first)) {
      text += concat(kName, name_ranks(ranks), " ended with the same error, quoted above in the words of rank ", first,
                     "\n");
      continue;
    }
    text += concat(kName, name_ranks(ranks), " ended with the same error, here in the words of rank ", ranks.front(),
                   ":\n  | ", text_of[error], "\n");
  }
  return text;
}

std::string report(const JobOutcome& outcome, std::chrono::milliseconds timeout) {
  std::string text;
  std::optional<int> first;
  if (!outcome.late.empty()) {
    std::vector<int> late = outcome.late;
    for (int& rank : late) rank += outcome.first_rank;
    text += concat(kName, "the job ran longer than --timeout ", seconds(timeout), " and was stopped; ",
                   name_ranks(late), outcome.late.size() == 1 ? " was" : " were", " still running\n");
  } else if (outcome.late_hosts) {
    text += concat(kName, "the job ran longer than --timeout ", seconds(timeout),
                   " and was stopped; other hosts were still in it\n");
  } else if (outcome.interrupted_first && outcome.launcher_was_killed) {
    text += concat(kName,
                   "somebody killed gradwire-run itself, or the kernel did because memory ran out (see dmesg), "
                   "so its ranks were ended too\n");
  } else if (outcome.interrupted_first) {
    text += concat(kName, "interrupted by ", name_of_signal(outcome.interrupted_by),
                   ", which was passed on to the ranks\n");
  } else if (outcome.stopped_first) {
    text += concat(kName, "the ranks of this host were stopped, because the job failed on another host\n");
  } else if (outcome.quotes_last_lines()) {
    text += deaths(outcome);
    first = outcome.first_bad;
  }
  if (!text.empty()) text += how_ranks_ended(outcome, first);
  text += outcome.diagnosis;
  if (!outcome.unkillable.empty()) {
    text += concat(kName, "SIGKILL did not end these processes in time: ",
                   join(std::vector<int>(outcome.unkillable.begin(), outcome.unkillable.end())), "\n");
  }
  return text;
}

}  // namespace gradwire::launch
