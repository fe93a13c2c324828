// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/trace.h"

namespace gradwire::trace {
namespace internal {

std::atomic<Sink> sink{nullptr};

namespace {
std::atomic<void*> sink_context{nullptr};
}

void emit(const char* name, int rank, std::uint64_t sequence) noexcept {
  const Sink current = sink.load(std::memory_order_acquire);
  if (current != nullptr) current(sink_context.load(std::memory_order_relaxed), Event{name, rank, sequence});
}

}  // namespace internal

void set_sink(Sink sink, void* context) noexcept {
  internal::sink.store(nullptr, std::memory_order_release);
  internal::sink_context.store(context, std::memory_order_relaxed);
  internal::sink.store(sink, std::memory_order_release);
}

}  // namespace gradwire::trace
