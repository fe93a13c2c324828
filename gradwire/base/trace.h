// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Trace points: named places in the life of a call where a sink may look on (a profiler, a test that injects a fault).
// Without a sink a trace point costs one relaxed load.
#pragma once

#include <atomic>
#include <cstdint>

namespace gradwire::trace {

// What a point says beyond its place; docs/trace_points.md has the meaning at each point.
struct Details {
  std::uint64_t kind = 0;      // a number, such as that of an observe::CallKind
  std::uint64_t bytes = 0;     // of the tensors
  std::uint64_t sent = 0;      // bytes that this rank sends
  int lane = -1;               // the lane of DDP; -1: none
  const char* word = nullptr;  // a name, valid while the sink runs; may be null
};

struct Event {
  const char* name;        // a literal such as "all_reduce.entry"; docs/trace_points.md lists them
  int rank;                // the rank within the group, or -1
  std::uint64_t sequence;  // the sequence number of the call on its channel, or 0
  Details details = {};
};

// Called on the thread that passes the point, possibly from several threads at once. Must not throw, and must not call
// set_sink().
using Sink = void (*)(void* context, const Event& event) noexcept;

// Installs a sink for the process; nullptr takes the sink away. Returns when no thread is in the old sink any more, so
// that the old sink's context may go then; the caller keeps `context` alive until the next set_sink() has returned. Any
// thread may call, several at once too; a forked child may take its parent's sink away.
void set_sink(Sink sink, void* context) noexcept;

namespace internal {
extern std::atomic<Sink> sink;
void emit(const char* name, int rank, std::uint64_t sequence, const Details& details) noexcept;
}  // namespace internal

// Whether there is a sink. For details that cost something to find.
inline bool watched() noexcept { return internal::sink.load(std::memory_order_relaxed) != nullptr; }

// The thread passes the point `name`.
inline void point(const char* name, int rank = -1, std::uint64_t sequence = 0, const Details& details = {}) noexcept {
  if (watched()) [[unlikely]]
    internal::emit(name, rank, sequence, details);
}

}  // namespace gradwire::trace
