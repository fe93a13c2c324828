// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The journal of the coordinator: a file with all events and decisions of a job. docs/format/membership.md has the
// format.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/os_handles.h"
#include "gradwire/membership/job_course.h"
#include "gradwire/membership/roster.h"

namespace gradwire::membership {

// A record is on the disk when append() returns, so a coordinator that is killed loses no decision that it published.
// A record that was only half written when the process was killed or the disk became full is cut off, or completed when
// its event is whole. Not thread-safe.
class Journal {
 public:
  // Opens the file, or makes it, and locks it until the destructor. Throws InvalidArgument when another coordinator has
  // the file open, when the file belongs to a job with other `options`, and when the file is no journal (it stays as it
  // is then); StoreError when the system refuses the file, and when the file holds decisions that do not follow from
  // its events.
  Journal(const std::string& path, const RosterOptions& options);

  // What the events in the file add up to.
  const Roster& roster() const noexcept { return roster_; }
  // The number of the last event in the file; 0 when there is none.
  std::int64_t last_event() const noexcept { return last_event_; }
  // Whether that event is `event`.
  bool last_event_is(const std::string& event) const;
  // The decisions that followed from the last event.
  const std::vector<Put>& last_decisions() const noexcept { return last_decisions_; }

  // Applies event `number`, which follows the last one, and writes the event and the decisions that follow from it.
  // Returns the decisions. A text that is no event changes nothing but that whoever wrote it is refused. Throws
  // StoreError, and leaves the file as it was, when the disk is full.
  const std::vector<Put>& append(std::int64_t number, const std::string& event);
  // Whether the last write failed because the disk is full, or the user may have no more of it.
  bool is_full() const noexcept { return is_full_; }

 private:
  void read(const std::string& path);
  // Checks the decisions that the file has after its last event from line `index` on, and writes those that it lacks.
  void complete_decisions(const std::vector<std::string>& lines, std::size_t index);
  void write(const std::string& text);

  const std::string path_;
  UniqueFd file_;
  std::optional<off_t> cut_at_;  // a part of a record lies behind this, which could not be removed
  Roster roster_;
  bool is_full_ = false;
  std::int64_t last_event_ = 0;
  std::string last_text_;
  std::vector<Put> last_decisions_;
};

// Whether the journal at `path` holds anything yet. A coordinator that is killed as it begins leaves an empty file, or
// one with a part of a line. Throws StoreError when the file is there and cannot be read.
bool has_begun(const std::string& path);

// Returns the epoch with this number, as the journal at `path` has it; nothing where the journal has no such epoch yet.
// Throws StoreError when the file cannot be read or is no journal.
std::optional<Epoch> epoch_in_journal(const std::string& path, std::int64_t number);

// Returns how the job of the journal at `path` goes. Throws StoreError when the file cannot be read or is no journal.
JobCourse course_in_journal(const std::string& path);

// Returns the epochs that the journal at `path` tells of, in order. A program that does the steps with these numbers of
// ranks, and loses nobody, ends with the same parameters. Throws StoreError when the file cannot be read, is no
// journal, or was written by an older gradwire.
std::vector<PlayedEpoch> read_membership_log(const std::string& path);

// Returns what the store of the job held of the events and decisions in the journal at `path`, by key, and one event
// more: StoreRestored. For a store that takes the place of one that is gone; its coordinator goes on with this journal.
// Events that the coordinator had not read yet are missing; those who wrote them notice that, and write them again.
// Throws StoreError when the file cannot be read or is no journal; InvalidArgument, with the reason, when the job has
// ended.
std::map<std::string, std::string> restored_store(const std::string& path);

}  // namespace gradwire::membership
