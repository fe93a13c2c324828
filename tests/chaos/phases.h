// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A rank that stops dead in a chosen phase of its life, by a signal that it raises on itself: the fault that the chaos
// tests inject.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>

#include "gradwire/base/trace.h"

namespace gradwire::testing {

enum class Phase {
  rendezvous,  // before the ranks have connected, just after, or at the first collective of an injector that was there
               // before
  entry,       // a collective was entered, its arguments not yet published
  reduce,      // about to combine, others' memory in use
  exit,        // its work is done, not yet said
  between,     // between two calls
};
inline constexpr Phase kPhases[] = {Phase::rendezvous, Phase::entry, Phase::reduce, Phase::exit, Phase::between};
const char* name_of(Phase phase) noexcept;

// While it lives, raises `signal` on this thread's process when the trace points of `phase` have been passed
// `occurrence` times (0: at the first). Phase::between has no trace point: the test calls between_calls(). Raising is
// the same as an outside kill -9 at exactly that moment.
class FaultInjector {
 public:
  FaultInjector(Phase phase, int occurrence, int signal);
  ~FaultInjector();
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;

  void between_calls() noexcept;

  // Called just before the signal is raised; set it before the first trace point is passed.
  std::function<void()> on_strike;

 private:
  static void on_event(void* context, const trace::Event& event) noexcept;
  void pass() noexcept;

  const Phase phase_;
  const int signal_;
  std::atomic<int> left_;
};

}  // namespace gradwire::testing
