// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Cooperative threads. One thread runs at a time, and switches happen before each action that other threads can notice.
// The explorer chooses which thread continues, and whether a thread dies at this point.
//
// The clock wakes only a thread that waits for a dead rank, and once a thread with a deadline; this may happen at any
// time. When no thread can continue and the clock wakes no sleeping thread, the sleeping threads sleep for ever.
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
  int spurious = 0;      // how many sleeps may end without a wake-up
  int preemptions = -1;  // how many switches away from a thread that could continue; -1: no bound
};

class Scheduler {
 public:
  Scheduler(Explorer& explorer, Memory& memory, ScheduleOptions options);

  // Adds a thread; call before run(). A rank has one or more threads. A deadline passes when its thread has slept until
  // then.
  int add_thread(int rank, std::function<void()> body, bool has_deadline = false);
  // Returns when all threads have ended, or when the run was ended early. False: the run was ended early.
  bool run();

  // The functions below are for the running thread.
  int current() const noexcept { return current_; }
  int rank() const noexcept { return running().rank; }
  // Call before every action that other threads can notice.
  void point();
  // Skips the switch between the thread's last action and its next one. For a load that is not sequentially consistent:
  // if the load were delayed to the next action, it could return the same value, and no thread could tell.
  void stay() noexcept { running().stays = true; }
  // Call after an action, with its result. Threads are deterministic except for these results.
  void observed(std::uint64_t value) noexcept { running().history = mix(running().history, value + 1); }
  // Declares that the rest of the running thread depends only on `state` and memory, not on earlier results. So states
  // that differ only in the path to them count as one state.
  void forget_all_but(std::uint64_t state) noexcept { running().history = mix(0x5eed, state); }
  // Sleeps until wake(word). `awaited` is the rank that must wake this thread.
  void sleep(int word, int awaited);
  void wake(int word) noexcept;
  void block_while(const bool& held);  // lets other threads run until `held` is false
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
  int pick();  // the thread that continues; kNobody: the run is over
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
