// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/membership/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/whole_file.h"

namespace gradwire::membership {
namespace {

constexpr const char* kKind = "gradwire membership journal 2";
constexpr const char* kOldKind = "gradwire membership journal 1:";

std::string head_of(const RosterOptions& options) {
  const std::string replay = options.replay.empty() ? "" : concat(", a replay of ", options.replay.size(), " epochs");
  return concat(kKind, ": ", options.min, " to ", options.max, " members, the first epoch ", options.first, replay);
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw StoreError(concat("the journal ", path, " of the elastic job: ", what));
}

[[noreturn]] void fail_errno(const std::string& path, const char* what) {
  fail(path, concat(what, ": ", std::strerror(errno)));
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(path, "cannot be read");
  try {
    return {std::istreambuf_iterator<char>(in), {}};
  } catch (const std::ios_base::failure& problem) {
    fail(path, concat("cannot be read: ", problem.code().message()));
  }
}

// The complete lines.
std::vector<std::string> lines_in(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  return lines;
}

constexpr std::string_view kDecision = "=\t";

std::string line_of(const Put& put) { return concat(kDecision, put.key, "\t", put.value); }

// The decision that line_of() wrote; nothing for another line.
std::optional<Put> decision_of(const std::string& path, const std::string& line) {
  if (!line.starts_with(kDecision)) return std::nullopt;
  const std::size_t tab = line.find('\t', kDecision.size());
  if (tab == std::string::npos) fail(path, concat("the line '", line, "' is no decision"));
  return Put{line.substr(kDecision.size(), tab - kDecision.size()), line.substr(tab + 1)};
}

// The epoch that was decided; nothing for another decision.
std::optional<Epoch> epoch_in(const Put& decision) {
  constexpr std::string_view kEpoch = "epoch/";
  // Other keys of an epoch have one more part.
  if (!decision.key.starts_with(kEpoch) || decision.key.find('/', kEpoch.size()) != std::string::npos)
    return std::nullopt;
  return epoch_of(decision.value);
}

// "12<tab>event" of an event; the other lines are decisions ("=<tab>key<tab>value") and the head.
bool is_event(const std::string& line, std::int64_t& number, std::string& text) {
  const std::size_t tab = line.find('\t');
  if (tab == std::string::npos) return false;
  const auto [rest, problem] = std::from_chars(line.data(), line.data() + tab, number);
  if (problem != std::errc() || rest != line.data() + tab) return false;
  text = line.substr(tab + 1);
  return true;
}

// The lines of a file that must be a journal.
std::vector<std::string> lines_of_journal(const std::string& path) {
  std::vector<std::string> lines = lines_in(text_of(path));
  if (!lines.empty() && lines.front().starts_with(kOldKind)) {
    fail(path,
         "an older gradwire wrote it, in a format that this one does not read; use it with that version, or keep a new "
         "journal of the job");
  }
  if (lines.empty() || !lines.front().starts_with(kKind)) fail(path, "is no journal");
  return lines;
}

// The number of the host that an event names; 0 where it names none.
std::int64_t host_number(const std::string& event_text) {
  const std::optional<Event> event = known_event_of(event_text);
  const auto* joined = event ? std::get_if<Joined>(&*event) : nullptr;
  std::int64_t number = 0;
  if (joined != nullptr) std::from_chars(joined->host.data(), joined->host.data() + joined->host.size(), number);
  return number;
}

// What follows from the text of event `number`. A text that no gradwire of this version writes changes nothing: one
// process, perhaps of a later version, must not end the job of the others. If it is a process that offers itself, it
// finds the refusal.
std::vector<Put> apply_text(Roster& roster, std::int64_t number, const std::string& text) {
  if (const std::optional<Event> event = known_event_of(text)) return apply(roster, number, *event);
  return {{refused_key(number),
           "the coordinator of the job cannot read what this process told it; start it with the job's version of "
           "gradwire"}};
}

// A line end, which no gradwire writes within an event, would end the record.
std::string as_line(std::string event) {
  std::replace(event.begin(), event.end(), '\n', ' ');
  return event;
}

}  // namespace

Journal::Journal(const std::string& path, const RosterOptions& options)
    : path_(path), file_(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {
  require_valid(options);
  roster_.options = options;
  if (!file_) fail_errno(path_, "cannot be opened");
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) fail_errno(path_, "cannot be locked");
    throw InvalidArgument(concat("the journal ", path_,
                                 " is in use by another coordinator; a job has one coordinator, "
                                 "and the other one has to end first"));
  }
  read(path);
}

void Journal::read(const std::string& path) {
  const std::string text = text_of(path);
  const std::vector<std::string> lines = lines_in(text);
  const std::string head = head_of(roster_.options);
  // Before the file is cut: it may be another one, which was named by mistake.
  const std::string first = lines.empty() ? text : lines.front();
  if (lines.empty() ? !head.starts_with(first) : first != head) {
    throw InvalidArgument(concat("the file ", path_, " begins with '", first.substr(0, 200), "' in place of '", head,
                                 "'; give each job a journal of its own"));
  }
  off_t complete = 0;
  for (const std::string& line : lines) complete += static_cast<off_t>(line.size()) + 1;
  if (::ftruncate(file_.get(), complete) != 0) fail_errno(path_, "cannot be cut at its last complete line");
  if (lines.empty()) {
    write(head + "\n");
    return bring_name_to_disk(path);
  }
  std::size_t index = 1;
  while (index < lines.size()) {
    std::int64_t number = 0;
    std::string text;
    if (!is_event(lines[index], number, text) || number != last_event_ + 1)
      fail(path_, concat("the line '", lines[index], "' does not follow from event ", last_event_));
    last_event_ = number;
    last_text_ = text;
    last_decisions_ = apply_text(roster_, number, text);
    complete_decisions(lines, ++index);
    index += last_decisions_.size();
  }
}

void Journal::complete_decisions(const std::vector<std::string>& lines, std::size_t index) {
  std::string missing;
  for (const Put& put : last_decisions_) {
    const std::string line = line_of(put);
    if (index >= lines.size()) {
      missing += line + "\n";
    } else if (lines[index++] != line) {
      fail(path_, concat("after event ", last_event_, " comes '", lines[index - 1], "' in place of the decision '",
                         line, "'; the file was changed, or another version of gradwire wrote it"));
    }
  }
  if (!missing.empty()) write(missing);
}

void Journal::write(const std::string& text) {
  is_full_ = false;
  const auto fail_with = [&](int problem, const char* what) {
    is_full_ = problem == ENOSPC || problem == EDQUOT || problem == EFBIG;
    errno = problem;
    fail_errno(path_, what);
  };
  if (cut_at_ && ::ftruncate(file_.get(), *cut_at_) != 0) fail_with(errno, "cannot be cut after its last whole record");
  cut_at_.reset();
  const off_t before = ::lseek(file_.get(), 0, SEEK_END);
  if (before < 0) fail_errno(path_, "cannot be written");
  const auto give_up = [&](const char* what) {
    const int problem = errno;
    // Where this fails too, the next write cuts the record, or another process that reads the file.
    if (::ftruncate(file_.get(), before) != 0) cut_at_ = before;
    fail_with(problem, what);
  };
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file_.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) give_up("cannot be written");
    done += static_cast<std::size_t>(count);
  }
  if (::fdatasync(file_.get()) != 0) give_up("cannot be brought to the disk");
}

bool Journal::last_event_is(const std::string& event) const { return as_line(event) == last_text_; }

const std::vector<Put>& Journal::append(std::int64_t number, const std::string& event) {
  GRADWIRE_CHECK(number == last_event_ + 1);
  Roster next = roster_;
  std::string line = as_line(event);
  std::vector<Put> decisions = apply_text(next, number, line);
  std::string text = concat(number, "\t", line, "\n");
  for (const Put& put : decisions) text += line_of(put) + "\n";
  write(text);
  roster_ = std::move(next);
  last_event_ = number;
  last_text_ = std::move(line);
  last_decisions_ = std::move(decisions);
  return last_decisions_;
}

bool has_begun(const std::string& path) {
  std::error_code absent;
  return std::filesystem::exists(path, absent) && !lines_in(text_of(path)).empty();
}

std::optional<Epoch> epoch_in_journal(const std::string& path, std::int64_t number) {
  for (const std::string& line : lines_of_journal(path)) {
    const std::optional<Put> decision = decision_of(path, line);
    if (decision && decision->key == epoch_key(number)) return epoch_of(decision->value);
  }
  return std::nullopt;
}

JobCourse course_in_journal(const std::string& path) {
  JobCourse course;
  for (const std::string& line : lines_of_journal(path)) {
    std::int64_t number = 0;
    std::string text;
    if (!is_event(line, number, text)) continue;
    if (const std::optional<Event> event = known_event_of(text)) course.add(number, *event);
  }
  return course;
}

std::vector<PlayedEpoch> read_membership_log(const std::string& path) {
  const std::vector<std::string> lines = lines_of_journal(path);
  std::vector<PlayedEpoch> played;
  std::vector<Epoch> decided;
  std::map<std::int64_t, std::string> machines;  // of members
  for (const std::string& line : lines) {
    std::int64_t number = 0;
    std::string text;
    if (const std::optional<Put> decision = decision_of(path, line)) {
      if (std::optional<Epoch> epoch = epoch_in(*decision)) decided.push_back(std::move(*epoch));
      continue;
    }
    if (!is_event(line, number, text)) continue;
    const std::optional<Event> event = known_event_of(text);
    const auto* joined = event ? std::get_if<Joined>(&*event) : nullptr;
    if (joined != nullptr && !joined->machine.empty()) machines[number] = joined->machine;
    const auto* began = event ? std::get_if<Began>(&*event) : nullptr;
    if (began == nullptr) continue;
    if (!played.empty() && played.back().number >= began->epoch) continue;  // each member says so
    for (const Epoch& epoch : decided) {
      if (epoch.number != began->epoch) continue;
      PlayedEpoch entry{.number = epoch.number, .first_step = began->step};
      for (const EpochMember& member : epoch.members) {
        entry.members.push_back(member.number);
        // The ranks of a machine sum first, whichever launchers started them. A replay says itself where they were.
        const auto machine = epoch.played ? machines.end() : machines.find(member.number);
        entry.hosts.push_back(machine == machines.end() ? member.host : machine->second);
      }
      played.push_back(std::move(entry));
    }
  }
  return played;
}

std::map<std::string, std::string> restored_store(const std::string& path) {
  // Hosts that have brought no member are not in the journal, and their numbers must not be given again.
  constexpr std::int64_t kHostsWithoutMembers = 64;
  std::map<std::string, std::string> keys;
  std::int64_t last_event = 0;
  std::int64_t last_host = 0;
  for (const std::string& line : lines_of_journal(path)) {
    std::int64_t number = 0;
    std::string text;
    if (const std::optional<Put> decision = decision_of(path, line)) {
      const std::optional<Epoch> epoch = epoch_in(*decision);
      if (epoch && (epoch->finished || epoch->lost)) {
        throw InvalidArgument(concat("the job of the journal ", path,
                                     " has ended: ", epoch->finished ? "its last step was counted" : kStateIsLost,
                                     "; give another job a journal of its own"));
      }
      keys[decision->key] = decision->value;
    } else if (is_event(line, number, text)) {
      keys[event_key(number)] = text;
      last_event = number;
      last_host = std::max(last_host, host_number(text));
    }
  }
  keys[kEventsEndKey] = std::to_string(last_event);
  keys[event_key(last_event + 1)] = to_text(StoreRestored{});
  keys[kHostsKey] = std::to_string(last_host + kHostsWithoutMembers);
  return keys;
}

}  // namespace gradwire::membership
