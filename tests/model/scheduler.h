// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Cooperative threads that run one at a time and hand over at points where others could notice them. Who goes on is a
// choice of the explorer's; so is whether a thread stops for ever there.
//
// The clock wakes only those that may wait for it: who waits for a dead rank, and once who has a deadline; at any time,
// as far as the others can tell. When nobody can go on and no clock runs for those that sleep, they sleep for ever.
#pragma once

#include <ucontext.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/explorer.h"
#include "tests/model/memory.h"

namespace gradwire::model {

struct ScheduleOptions {
  int crashes = 0;       // how many ranks may die
  int spurious = 0;      // how many sleeps may end for no reason
  int preemptions = -1;  // how often a thread that could go on gives way; -1: without bound
};

class Scheduler {
 public:
  Scheduler(Explorer& explorer, Memory& memory, ScheduleOptions options);

  // Before run(). A rank has one thread or several; a deadline passes when its thread has slept until then.
  int add_thread(int rank, std::function<void()> body, bool has_deadline = false);
  // Returns when all threads are at their end, or the run is cut short. False: it was cut short.
  bool run();

  // Of the running thread.
  int current() const noexcept { return current_; }
  int rank() const noexcept { return running().rank; }
  // Before everything that other threads can notice.
  void point();
  // No point is needed between what the thread did last and what it does next. So after a load that is not sequentially
  // consistent: could it be delayed to then, it might return the same and nobody would notice.
  void stay() noexcept { running().stays = true; }
  // After it: what it returned. Threads are deterministic but for that.
  void observed(std::uint64_t value) noexcept { running().history = mix(running().history, value + 1); }
  // All that the rest of the running thread depends on is `state` (and memory): what else it observed, it has
  // forgotten. Saves telling apart states that differ in the way there only.
  void forget_all_but(std::uint64_t state) noexcept { running().history = mix(0x5eed, state); }
  // Until wake(word). `awaited` is the rank that is to wake it.
  void sleep(int word, int awaited);
  void wake(int word) noexcept;
  void block_while(const bool& held);  // gives way until `held` is false
  bool has_deadline_passed() const noexcept { return running().has_deadline && running().ticks > 0; }

  bool is_dead(int rank) const noexcept;
  int thread_of(int rank) const noexcept;

 private:
  enum class State : std::uint8_t { ready, asleep, blocked, done, dead };
  struct Thread {
    int rank;
    std::function<void()> body;
    bool has_deadline;
    ucontext_t context{};
    State state = State::ready;
    int word = -1;
    int awaited = -1;
    const bool* held = nullptr;
    bool stays = false;
    std::uint8_t ticks = 0;
    std::uint64_t history = 0;
  };
  struct Option {
    enum class Kind : std::uint8_t { run, wake, tick, crash } kind;
    int thread;
  };
  static constexpr int kNobody = -1;

  Thread& running() noexcept { return threads_[static_cast<std::size_t>(current_)]; }
  const Thread& running() const noexcept { return threads_[static_cast<std::size_t>(current_)]; }
  static bool is_over(const Thread& t) noexcept { return t.state == State::done || t.state == State::dead; }
  static bool can_run(const Thread& t) noexcept {
    return t.state == State::ready || (t.state == State::blocked && !*t.held);
  }
  int pick();  // who goes on; kNobody: the run is over
  void list_options();
  void take(const Option& option);
  void switch_to(int next);
  void report_sleepers();
  std::uint64_t hash() const noexcept;
  static void enter();

  Explorer& explorer_;
  Memory& memory_;
  ScheduleOptions left_;
  std::vector<Thread> threads_;
  std::vector<Option> options_;
  ucontext_t main_{};
  int current_ = kNobody;
  int points_ = 0;
  bool finished_ = false;
};

}  // namespace gradwire::model
