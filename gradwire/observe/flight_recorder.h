// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The flight recorder: the last 256 calls of each group of this process, always on.
//
// Where the records lie: GRADWIRE_FLIGHT_RECORDER names a file (gradwire-run gives each rank one that lies in memory
// and outlives the rank, also after kill -9), "off" switches the recorder off, and without the variable the records lie
// in private memory, for a debugger. The file's folder is made. Where the file cannot be used, the records lie in
// private memory too, and a warning says why, but for a file that another process has locked: a rank's child has the
// rank's variable. Nor is there a warning where the name is that of a device or a pipe, such as /dev/null.
//
// Cost: a call writes one record of 128 bytes, reads the clock twice and makes two atomic changes. Nothing is locked.
// In a forked child nothing is recorded. No function here throws; where there is no room, a call is not recorded.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>

#include "gradwire/observe/flight_call.h"

namespace gradwire::observe {

namespace format {
struct Call;
struct Group;
}  // namespace format

// The arguments of a call.
struct CallArguments {
  CallKind kind = CallKind::none;        // what is called
  std::uint8_t dtype = 255;              // of DType; 255: another one, or none
  std::int32_t root = -1;                // the root, or the peer of a message; -1: none
  std::uint64_t count = 0;               // elements, of all tensors of this rank
  std::uint64_t bytes = 0;               // of the same
  std::uint64_t tag = 0;                 // iteration << 32 | bucket << 16 | stage << 8 | hook, as in CallTag
  std::int32_t message_tag = -1;         // of a message; -1: none
  const void* return_address = nullptr;  // where the caller goes on
  bool waits = true;                     // the caller goes on when the call has ended; false: an asynchronous call
  std::chrono::steady_clock::time_point called{};  // when; the epoch: now
};

// A record of a call. A plain value; copies are the same record. A default one records nothing. Any thread may use
// it; only the first call of ended() counts.
class FlightCall {
 public:
  FlightCall() noexcept = default;
  // The call has left the group's queue and runs.
  void started() const noexcept;
  // The call has ended, well where `error` is null. The first error of a process is noted in words.
  void ended(const std::exception_ptr& error) const noexcept;
  // The call goes on, and nobody will tell when it ends.
  void lost() const noexcept;
  explicit operator bool() const noexcept { return record_ != nullptr; }
  // "all_reduce (call 17 of group default, iteration 3 bucket 1 stage 0)": the words of diagnoses, and the number that
  // all ranks share. Empty where the call is not recorded.
  std::string name() const;

 private:
  friend class FlightGroup;
  friend class FlightWait;
  FlightCall(format::Call* record, std::uint64_t ticket) noexcept : record_(record), ticket_(ticket) {}
  void finish(Outcome outcome, std::uint64_t peers) const noexcept;
  void set_waiter(std::uint64_t waiter) const noexcept;
  bool may_change() const noexcept;

  format::Call* record_ = nullptr;
  std::uint64_t ticket_ = 0;
};

// While it exists, this thread waits for an asynchronous call, which may have ended. The line is that of the innermost
// CallerLine. Where several threads wait for one call, the last one to begin or to end counts.
class FlightWait {
 public:
  // This thread begins to wait for `call`; nothing is noted of a call that is not recorded.
  explicit FlightWait(FlightCall call) noexcept;
  ~FlightWait();
  FlightWait(const FlightWait&) = delete;
  FlightWait& operator=(const FlightWait&) = delete;

 private:
  const FlightCall call_;
};

// The records of one group. Not copyable. The destructor says that the group was closed, and keeps the records.
class FlightGroup {
 public:
  FlightGroup() noexcept = default;
  ~FlightGroup();
  FlightGroup(const FlightGroup&) = delete;
  FlightGroup& operator=(const FlightGroup&) = delete;

  // Takes a place in the recorder. `path` is the same on all ranks of the group and differs from the paths of the
  // process's other groups. Texts are cut to what has room. Not for two threads at once.
  void open(std::string_view path, std::string_view backend, std::string_view name, int rank, int size) noexcept;

  // Records that a call is made. Any thread may call this function once open() has returned. Before that nothing is
  // recorded.
  FlightCall begin(const CallArguments& arguments) noexcept;

 private:
  format::Group* group_ = nullptr;
};

// The call that this thread makes, for the parts of a group that run it. While an object exists, take_call() hands its
// call to whoever will call started() and ended(). Objects nest.
class CallInProgress {
 public:
  // This thread makes `call`.
  explicit CallInProgress(FlightCall call) noexcept;
  ~CallInProgress();
  CallInProgress(const CallInProgress&) = delete;
  CallInProgress& operator=(const CallInProgress&) = delete;
  // Whether take_call() has handed the call out.
  bool taken() const noexcept { return taken_; }

 private:
  friend FlightCall take_call() noexcept;
  FlightCall call_;
  CallInProgress* const outer_;
  bool taken_ = false;
};

// The call of the innermost CallInProgress of this thread, once; afterwards and without one, a FlightCall that records
// nothing.
FlightCall take_call() noexcept;

// The source line for the calls that this thread makes while the object exists, in place of their return addresses: for
// languages whose frames are not the processor's, and for calls that gradwire makes on behalf of a caller. `key` is the
// same whenever the line is, and `describe(context)` returns "file:line (function)"; it is called for the first call
// from the line only.
class CallerLine {
 public:
  // Returns "file:line (function)" of the line that `context` stands for.
  using Describe = std::string (*)(const void* context);
  // The line with this key, which is new or was given before.
  CallerLine(std::uint64_t key, Describe describe, const void* context) noexcept;
  // The line with this number, which caller_line() returned on another thread; for 0, this object changes nothing.
  explicit CallerLine(std::uint32_t number) noexcept;
  // The place to which a function returns, where the thread has no line yet.
  explicit CallerLine(const void* return_address) noexcept;
  ~CallerLine();
  CallerLine(const CallerLine&) = delete;
  CallerLine& operator=(const CallerLine&) = delete;

 private:
  const std::uint32_t outer_;
};

// The number of the line that the innermost CallerLine of this thread gives to calls; 0: there is none. For work that
// goes on on another thread.
std::uint32_t caller_line() noexcept;

// Notes a failure in words. The first 8 notes of a process are kept.
void note_failure(NoteKind kind, std::string_view text) noexcept;

// Whether the calls of this process are recorded. Opens the memory of the records where nobody has yet.
bool records_calls() noexcept;

// The memory of the records of this process, in the layout of docs/format/flight_recorder.md. Empty where nothing is
// recorded. Valid until the end of the process.
std::span<const std::byte> flight_memory() noexcept;

// The number of bytes of such a memory. A file for GRADWIRE_FLIGHT_RECORDER has at least so many when it is used.
std::size_t flight_memory_bytes() noexcept;

// The number of bytes of a file that keeps the records of earlier processes, too: see read_earlier_processes().
std::size_t flight_file_bytes() noexcept;

}  // namespace gradwire::observe
