// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The layout of a flight recorder's memory. docs/format/flight_recorder.md specifies the layout.
//
// The memory is shared with a process that reads while this one writes, and that still reads after this one was killed.
// So a record is written in an order in which every prefix can be told from a whole record.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gradwire::observe::format {

inline constexpr std::uint64_t kMagic = 0x313054484c465747;  // "GWFLHT01" in memory
inline constexpr std::size_t kCalls = 256;                   // of each group
inline constexpr std::size_t kGroups = 64;
inline constexpr std::size_t kSites = 512;
inline constexpr std::size_t kNotes = 8;
inline constexpr std::size_t kLongPaths = 4;
inline constexpr std::size_t kEarlier = 4;  // processes whose records a file keeps beside those of the last one

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8, "processes share these words");

// Text that fills an array of bytes, with zeros behind.
template <std::size_t Bytes>
using Text = std::array<char, Bytes>;

// The state of a record. A record in `ending` holds all but the end.
enum class Phase : std::uint64_t { empty = 0, writing = 1, pending = 2, ending = 3, ended = 4 };

// The word `waiter` of an asynchronous call for which no thread waits.
inline constexpr std::uint64_t kNobody = ~std::uint64_t{0};

// One call. Word 0 is (ticket << 3) | phase; the others are written in the phases `writing` and `ending` only.
struct Call {
  enum : std::size_t {
    state,
    sequence,  // 0 for a message
    called,    // nanoseconds of CLOCK_MONOTONIC, as the next two
    started,   // 0: the call is queued
    end_time,
    count,
    bytes,
    tag,        // iteration << 32 | bucket << 16 | stage << 8 | hook
    site,       // site << 32 | thread
    arguments,  // root << 32 | kind << 24 | dtype << 16 | outcome << 8
    peers,      // bit r: the error of the call names rank r
    refused,    // collectives of the group that were refused before this call was made
    waiter,     // site << 32 | thread of who waits for the call; kNobody; 0: not known
    message,    // tag of a message + 1; 0: no message, or not known
    used = message + 1,
    size = 16,
  };
  std::array<Word, size> words;
};
static_assert(sizeof(Call) == 128);

enum class GroupState : std::uint64_t { empty = 0, open = 1, closed = 2 };

struct Group {
  Word state;
  Word tickets;      // the next ticket; record number ticket % 256 is its place
  Word collectives;  // how many of them were no messages
  Word members;      // rank << 32 | size
  Word opened;
  Word closed;
  Text<64> path;
  Text<16> backend;
  Text<64> name;
  Word refused;  // collectives that ended with Outcome::refused
  std::array<std::byte, 56> reserved;
  std::array<Call, kCalls> calls;
};
static_assert(sizeof(Group) == 256 + kCalls * sizeof(Call));

// A place in a program from which calls are made. `state` is 0 until the rest is written, and n + 1 where the module's
// path is the nth of the long ones, and `text` has the end of the path only.
struct Site {
  Word state;
  Word offset;        // of the return address in the module; 0 where `text` is "file:line (function)"
  Text<176> text;     // the module's path
  Text<64> function;  // the nearest exported symbol before the address, as readable_symbol() writes it; may be empty
};
static_assert(sizeof(Site) == 256);

// A failure, in words. `state` is 0 until the rest is written.
struct Note {
  Word state;
  Word kind;
  Word time;
  Text<488> text;
};
static_assert(sizeof(Note) == 512);

struct File {
  Word magic;  // written last
  Word pid;
  Word ranks;      // RANK << 32 | WORLD_SIZE of the environment, else as tell_ranks() tells; all ones: not known
  Word monotonic;  // nanoseconds of CLOCK_MONOTONIC and of the wall clock at one moment
  Word wall;
  Word sites_used;
  Word lost_groups;  // groups for which there was no room
  Word lost_calls;   // calls for which there was no room: all 256 calls of their group were under way
  Word generation;   // grows when a process clears or copies the records of another one; odd meanwhile
  std::array<std::byte, 24> reserved;
  std::array<Text<1000>, kLongPaths> long_paths;  // of modules, that a Site has no room for; empty: not used
  std::array<Note, kNotes> notes;
  std::array<Site, kSites> sites;
  std::array<Group, kGroups> groups;
};
static_assert(offsetof(File, sites) == 8192);

inline constexpr std::size_t kFileBytes = sizeof(File);
// A file of this size has room for the records of earlier processes behind those of the last one.
inline constexpr std::size_t kLongFileBytes = (1 + kEarlier) * kFileBytes;

}  // namespace gradwire::observe::format
