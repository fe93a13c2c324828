// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The layout of a file of the step recorder. docs/format/recorder.md specifies the layout.
//
// The file is mapped, and others read it while its process writes, and after its process was killed. So each part says
// whether it is whole.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "gradwire/observe/flight_format_internal.h"

namespace gradwire::observe::record_format {

using format::Text;
using format::Word;

inline constexpr std::uint64_t kMagic = 0x3130434552575247;  // "GRWREC01" in memory
inline constexpr std::size_t kRecords = 32768;
inline constexpr std::size_t kRows = 2048;  // of the course; an even number
inline constexpr std::size_t kNames = 48;

enum class RecordKind : std::uint64_t { step = 1, bucket = 2, call = 3, wait = 4, loss = 5, choice = 6, averages = 7 };

// The details of a record of the kind `choice`: what the hook "auto" measured or chose.
enum class ChoiceKind : std::uint64_t { hook_measured = 1, shape_measured = 2, chosen = 3 };

// Something that has ended.
struct Record {
  enum : std::size_t {
    state,  // ticket + 1, written last; 0 while the record is written
    kind,   // RecordKind | kind of the call << 8 | (lane + 1) << 16 | number of the name << 32
    begin,  // nanoseconds of CLOCK_MONOTONIC, as the next
    end,
    step,
    place,  // (bucket + 1) << 32 | thread id; the upper half is 0 outside of buckets
    bytes,
    sent,
    first,  // the rest depends on the kind
    second,
    third,
    fourth,
    size,
  };
  std::array<Word, size> words;
};
static_assert(sizeof(Record) == 96);

// Sums over steps: a row of the course, or the whole run.
struct Sums {
  enum : std::size_t {
    first_step,
    steps,
    begin,  // of the first step
    end,    // of the last
    whole,
    forward,
    backward,
    wait,
    rest,
    compute,
    communication,
    hook_wait,
    hook,
    sent,
    call_bytes,
    // The bits of the last loss that was told, as a double; of a row of the course, of the last one that is not finite,
    // if there is one. kNoLoss where none was told.
    loss,
    size,
  };
  std::array<Word, size> words;
};
static_assert(sizeof(Sums) == 128);

// The word of a loss that was not told: a NaN that no told loss has.
constexpr std::uint64_t kNoLoss = 0x7ff8000000000000;
// The word of a loss that was told, which may be a NaN too.
inline std::uint64_t word_of_loss(double loss) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(loss);
  return bits == kNoLoss ? bits + 1 : bits;
}

enum class Phase : std::uint64_t { none = 0, forward = 1, backward = 2, wait = 3, rest = 4 };

struct File {
  Word magic;  // written last
  Word pid;
  Word ranks;      // rank << 32 | world size
  Word monotonic;  // nanoseconds of CLOCK_MONOTONIC and of the wall clock at one moment
  Word wall;
  Word tickets;  // the next ticket; record number ticket % kRecords is its place
  Word lost;     // events for which there was no memory
  Word names;    // how many names are written
  Word phase;    // Phase of the thread that trains
  Word phase_begin;
  Word step;           // the number of the step under way
  Word version;        // of the totals and the course; odd while they change
  Word table;          // the table that holds the course: 0 or 1
  Word rows;           // its rows
  Word steps_per_row;  // the last row may hold fewer
  Word run;            // stable_hash() of GRADWIRE_RUN_ID; 0: not known
  Sums totals;
  Text<64> host;
  Text<192> program;
  std::array<Text<64>, kNames> hook_names;
  std::array<std::byte, 8192 - 16 * sizeof(Word) - sizeof(Sums) - 256 - kNames * 64> more;
  std::array<std::array<Sums, kRows>, 2> tables;
  std::array<Record, kRecords> records;
};
static_assert(offsetof(File, tables) == 8192);
static_assert(offsetof(File, records) == 8192 + 2 * 2048 * 128);

inline constexpr std::size_t kFileBytes = sizeof(File);

}  // namespace gradwire::observe::record_format
