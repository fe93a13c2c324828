// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The words in which the flight recorder speaks of calls.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace gradwire::observe {

// The method of a group. The numbers are written to files and never change.
enum class CallKind : std::uint8_t {
  none = 0,
  barrier = 1,
  broadcast = 2,
  all_reduce = 3,
  reduce = 4,
  all_gather = 5,
  all_gather_into_tensor = 6,
  gather = 7,
  scatter = 8,
  reduce_scatter = 9,
  reduce_scatter_tensor = 10,
  all_to_all = 11,
  all_to_all_single = 12,
  monitored_barrier = 13,
  dup = 14,
  split = 15,
  allocate = 16,
  send = 17,
  recv = 18,
  recv_anysource = 19,
};

inline constexpr int kCallKinds = 20;  // the number of kinds, `none` included

// "all_reduce". "none" for a number that is no kind.
std::string_view name_of(CallKind kind) noexcept;
// The inverse; CallKind::none for an unknown name.
CallKind call_kind_from_name(std::string_view name) noexcept;

// Whether the kind is a message between two ranks, which has no place in the order of the collectives.
constexpr bool is_message(CallKind kind) noexcept { return kind >= CallKind::send; }

// "iteration 3 bucket 1 stage 0", of iteration << 32 | bucket << 16 | stage << 8 | hook.
std::string words_of_tag(std::uint64_t tag);

// How a call ended. The numbers are written to files and never change.
enum class Outcome : std::uint8_t {
  none = 0,  // the call has not ended
  good = 1,
  mismatch = 2,  // MismatchError
  peer = 3,      // PeerError
  timeout = 4,   // TimeoutError
  aborted = 5,   // AbortedError
  resource = 6,  // ResourceError, std::bad_alloc
  refused = 7,   // InvalidArgument, UnsupportedError: nothing was communicated
  other = 8,     // any other error
  unknown = 9,   // the Work of the call does not tell when it ends
};

inline constexpr int kOutcomes = 10;  // the number of outcomes

// "mismatch". "none" for a number that is no outcome.
std::string_view name_of(Outcome outcome) noexcept;
// The inverse; Outcome::none for an unknown name.
Outcome outcome_from_name(std::string_view name) noexcept;

// How a call with this error ended, and the ranks below 64 that the error names: bit r for rank r.
struct ErrorSummary {
  Outcome outcome = Outcome::good;  // `good` without an error
  std::uint64_t peers = 0;          // the ranks
};
// `error` may be null: the call ended well.
ErrorSummary summary_of(const std::exception_ptr& error) noexcept;

// What a note in the recorder speaks of. The numbers are written to files and never change.
enum class NoteKind : std::uint8_t {
  call_failed = 1,  // the first call of a group that ended with an error
  hook_failed = 2,  // a hook of DDP threw an exception of its own
};

}  // namespace gradwire::observe
