// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a flight recorder held, as plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/observe/flight_call.h"

namespace gradwire::observe {

// A place in a program from which calls were made: an address in a module, or a line.
struct CallerPlace {
  std::string module;        // the path of the program or library; empty for a line
  std::uint64_t offset = 0;  // of the return address in the module
  std::string function;      // the nearest exported symbol before the address, in words; may be empty
  std::string line;          // "train.py:41 (main)"; empty where it is not known
};

// Whether a thread of the rank waits for a call that has not ended: in the call itself, or in wait() of its Work. A
// wait for the future of a Work is not noted.
enum class Waited : std::uint8_t { not_known, no, yes };
// "no". "" for Waited::not_known.
std::string_view name_of(Waited waited) noexcept;
// The inverse; Waited::not_known for any other text.
Waited waited_from_name(std::string_view name) noexcept;

// Times are nanoseconds of CLOCK_MONOTONIC of the host; 0: not yet.
struct CallRow {
  std::uint64_t ticket = 0;    // grows with each call of the group on this rank
  std::uint64_t sequence = 0;  // the how-many-th collective of the group, from 1; 0 for a message
  std::uint64_t refused = 0;   // so many collectives of the group were refused before this call
  CallKind kind = CallKind::none;
  std::uint8_t dtype = 255;  // of DType; 255: another one, or none
  std::int32_t root = -1;    // the root, or the peer of a message; -1: none
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::uint64_t tag = 0;          // iteration << 32 | bucket << 16 | stage << 8 | hook
  std::int32_t message_tag = -1;  // of a message; -1: none, or not known
  std::int64_t called = 0;
  std::int64_t started = 0;  // when the call left the group's queue; 0 also where the group does not tell
  std::int64_t ended = 0;
  Outcome outcome = Outcome::none;
  std::uint64_t peers = 0;  // bit r: the error of the call names rank r
  std::uint64_t thread = 0;
  CallerPlace place;
  Waited waited = Waited::not_known;
  CallerPlace wait_place;  // from which wait() was called; known for Python alone
};

// GroupTable::backend of a group whose ranks change (ElasticGroup). Each of its calls is also one of the group that it
// goes to, and what its rank, size and path are on one rank need not be so on the others: a diagnosis leaves it out.
inline constexpr std::string_view kChangingRanks = "changing ranks";

struct GroupTable {
  std::string path;  // the same on all ranks of the group
  std::string backend;
  std::string name;
  int rank = 0;
  int size = 1;
  bool closed = false;
  std::uint64_t next_ticket = 0;
  std::vector<CallRow> calls;  // the last ones, in the order of the calls
};

// What a rank noted beside its calls.
struct NoteRow {
  NoteKind kind = NoteKind::call_failed;  // what the note speaks of
  std::int64_t time = 0;                  // nanoseconds of CLOCK_MONOTONIC
  std::string text;                       // the error in words
};

// What was seen of a rank's process from outside. The launcher fills it in.
struct ProcessView {
  bool seen = false;  // the fields below up to `system_call` were looked at while the rank ran
  char state = '?';   // of /proc/PID/stat: R runs, S sleeps, D waits for a disk, T is stopped
  double busy = 0;    // processor seconds per second since the look before
  // In which the main thread waits ("read"), or where the main thread waits for another thread, a lane of DDP. Empty
  // where that is not known.
  std::string system_call;
  bool has_ended = false;
  bool by_signal = false;      // the fields from here on hold when has_ended
  int code = 0;                // the exit code, or the number of the signal
  int order = -1;              // 0 for the first rank that ended badly, 1 for any other; -1: it ended well
  bool by_launcher = false;    // the launcher had asked the rank to end
  bool out_of_memory = false;  // the kernel killed processes of the job because memory ran out
  std::vector<std::string> last_lines = {};  // of the rank's stderr
};

// Whether the thread of `system_call` waits for data, in a system call for input or output. Other threads may compute
// meanwhile, such as those that read samples ahead. A thread that waits for another thread of its process is in no such
// call.
bool waits_for_data(const ProcessView& process) noexcept;

// Whether the process has ended with an error or by a signal, and not because the launcher had asked it to.
bool ended_badly(const ProcessView& process) noexcept;

// One rank of a job.
struct RankTable {
  int rank = -1;         // among all ranks of the job; -1: not known
  int world = -1;        // how many ranks the job has
  std::string run = {};  // GRADWIRE_RUN_ID, as the launcher has it; empty: not known
  int pid = 0;
  std::int64_t started = 0;      // when the recorder was made, in nanoseconds of CLOCK_MONOTONIC
  std::int64_t wall_offset = 0;  // a wall clock time is a monotonic one plus this, in nanoseconds
  std::uint64_t lost_calls = 0;
  std::uint64_t lost_groups = 0;
  std::vector<GroupTable> groups;
  std::vector<NoteRow> notes;
  ProcessView process;
};

// The number of the call among the collectives of its group that communicated, from 1: the number that all ranks share
// and that errors show. 0 for a message.
inline std::uint64_t number_of(const CallRow& call) noexcept {
  return call.sequence > call.refused ? call.sequence - call.refused : call.sequence;
}

// Reads the memory of a flight recorder, also while it is written. Nothing for memory that holds no recorder, or one of
// another version, or that a new process clears at this moment. Any bytes are fine: what is not a whole record is left
// out.
std::optional<RankTable> read_flight_memory(std::span<const std::byte> memory);

// The tables of the processes that recorded in the same file before, the oldest first: up to four. Empty where the
// memory is not as long as flight_file_bytes().
std::vector<RankTable> read_earlier_processes(std::span<const std::byte> memory);

}  // namespace gradwire::observe
