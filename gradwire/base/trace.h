// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Trace points: named places in the life of a call where a sink may look on (a profiler, a test that injects a fault).
// Without a sink a trace point costs one relaxed load.
#pragma once

#include <atomic>
#include <cstdint>

namespace gradwire::trace {

struct Event {
  const char* name;        // a literal such as "all_reduce.entry"; docs/trace_points.md lists them
  int rank;                // the rank within the group, or -1
  std::uint64_t sequence;  // the sequence number of the call on its channel, or 0
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
void emit(const char* name, int rank, std::uint64_t sequence) noexcept;
}  // namespace internal

inline void point(const char* name, int rank = -1, std::uint64_t sequence = 0) noexcept {
  if (internal::sink.load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
    internal::emit(name, rank, sequence);
  }
}

}  // namespace gradwire::trace
