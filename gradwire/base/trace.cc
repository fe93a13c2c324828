// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/base/trace.h"

#include <pthread.h>

namespace gradwire::trace {
namespace internal {

std::atomic<Sink> sink{nullptr};

namespace {

std::atomic<void*> sink_context{nullptr};  // changes only while no thread may call a sink
std::atomic<int> emitting{0};              // how many threads are in emit()
std::atomic<bool> changing{false};         // a set_sink() is under way
thread_local int depth = 0;                // how often this thread is in emit(): a sink may pass a trace point

// Of the threads in emit() and set_sink(), a forked child has the one that forked or none.
void forget_other_threads() noexcept {
  emitting.store(depth, std::memory_order_relaxed);
  changing.store(false, std::memory_order_relaxed);
}

// One set_sink() at a time.
class Turn {
 public:
  Turn() noexcept {
    static const int registered = ::pthread_atfork(nullptr, nullptr, forget_other_threads);
    static_cast<void>(registered);
    while (changing.exchange(true, std::memory_order_acquire)) changing.wait(true, std::memory_order_relaxed);
  }
  ~Turn() {
    changing.store(false, std::memory_order_release);
    changing.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
};

void wait_for_other_threads() noexcept {
  for (int busy = 0; (busy = emitting.load(std::memory_order_seq_cst)) != 0;) emitting.wait(busy);
}

}  // namespace

void emit(const char* name, int rank, std::uint64_t sequence, const Details& details) noexcept {
  ++depth;
  // Sequentially consistent, as in set_sink(): either this thread sees that the sink is gone, or set_sink() sees it.
  emitting.fetch_add(1, std::memory_order_seq_cst);
  const Sink current = sink.load(std::memory_order_seq_cst);
  if (current != nullptr) current(sink_context.load(std::memory_order_relaxed), Event{name, rank, sequence, details});
  --depth;
  if (emitting.fetch_sub(1, std::memory_order_release) == 1) emitting.notify_all();
}

}  // namespace internal

void set_sink(Sink sink, void* context) noexcept {
  const internal::Turn turn;
  internal::sink.store(nullptr, std::memory_order_seq_cst);
  internal::wait_for_other_threads();
  internal::sink_context.store(context, std::memory_order_relaxed);
  internal::sink.store(sink, std::memory_order_seq_cst);
}

}  // namespace gradwire::trace
