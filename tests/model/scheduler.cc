// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/scheduler.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace gradwire::model {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr int kMostPoints = 5000;  // of one run; beyond that somebody goes round in circles

std::byte* stack_of(std::size_t thread) {
  static std::array<std::unique_ptr<std::byte[]>, kMaxThreads> stacks;
  if (stacks[thread] == nullptr) stacks[thread] = std::make_unique<std::byte[]>(kStackBytes);
  return stacks[thread].get();
}

Scheduler* starting = nullptr;  // makecontext() passes no pointers

}  // namespace

Scheduler::Scheduler(Explorer& explorer, Memory& memory, ScheduleOptions options)
    : explorer_(explorer), memory_(memory), left_(options) {
  threads_.reserve(kMaxThreads);
}

int Scheduler::add_thread(int rank, std::function<void()> body, bool has_deadline) {
  threads_.push_back({rank, std::move(body), has_deadline});
  const std::size_t number = threads_.size() - 1;
  ucontext_t& context = threads_.back().context;
  ::getcontext(&context);
  context.uc_stack.ss_sp = stack_of(number);
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  ::makecontext(&context, &Scheduler::enter, 0);
  return static_cast<int>(number);
}

void Scheduler::enter() {
  Scheduler& self = *starting;
  self.observed(0);  // it has begun
  self.running().body();
  self.running().state = State::done;
  self.switch_to(self.pick());
}

bool Scheduler::run() {
  starting = this;
  const int first = pick();
  if (first != kNobody) {
    current_ = first;
    ::swapcontext(&main_, &running().context);
  }
  return finished_;
}

void Scheduler::switch_to(int next) {
  const int before = std::exchange(current_, next);
  if (before == next) return;
  ucontext_t& from = threads_[static_cast<std::size_t>(before)].context;
  ::swapcontext(&from, next == kNobody ? &main_ : &running().context);
}

void Scheduler::point() {
  if (std::exchange(running().stays, false)) return;
  switch_to(pick());
}

void Scheduler::sleep(int word, int awaited) {
  Thread& self = running();
  self.state = State::asleep;
  self.word = word;
  self.awaited = awaited;
  switch_to(pick());
  self.word = self.awaited = -1;
  observed(0);
}

void Scheduler::wake(int word) noexcept {
  for (Thread& thread : threads_) {
    if (thread.state == State::asleep && thread.word == word) thread.state = State::ready;
  }
}

void Scheduler::block_while(const bool& held) {
  Thread& self = running();
  self.state = State::blocked;
  self.held = &held;
  switch_to(pick());
  self.state = State::ready;
  self.held = nullptr;
}

int Scheduler::pick() {
  for (;;) {
    if (explorer_.has_violation() && !explorer_.tracing()) return kNobody;
    if (!explorer_.reached([this] { return hash(); })) return kNobody;
    if (++points_ > kMostPoints) {
      explorer_.violated("no end in sight: somebody goes round in circles");
      return kNobody;
    }
    if (std::all_of(threads_.begin(), threads_.end(), is_over)) {
      finished_ = true;
      return kNobody;
    }
    list_options();
    if (options_.empty()) {
      report_sleepers();
      return kNobody;
    }
    const Option taken = options_[static_cast<std::size_t>(explorer_.choose(static_cast<int>(options_.size())))];
    take(taken);
    if (taken.kind != Option::Kind::crash) return taken.thread;
  }
}

void Scheduler::list_options() {
  options_.clear();
  const auto count = static_cast<int>(threads_.size());
  const auto at = [&](int i) -> Thread& { return threads_[static_cast<std::size_t>(i)]; };
  const bool stays = current_ != kNobody && can_run(running());
  if (stays) options_.push_back({Option::Kind::run, current_});
  const bool may_change = !stays || left_.preemptions != 0;
  for (int i = 0; may_change && i < count; ++i) {
    if (i != current_ && can_run(at(i))) options_.push_back({Option::Kind::run, i});
  }
  const bool all_wait = options_.empty();
  for (int i = 0; i < count; ++i) {
    const Thread& thread = at(i);
    if (thread.state != State::asleep || !may_change) continue;
    const bool its_deadline = thread.has_deadline && thread.ticks == 0;
    if (its_deadline || (thread.awaited >= 0 && is_dead(thread.awaited))) {
      options_.push_back({Option::Kind::tick, i});
    } else if (!all_wait && left_.spurious > 0) {
      options_.push_back({Option::Kind::wake, i});
    }
  }
  if (options_.empty()) return;  // a death must not be what gets the others going
  for (int i = 0; left_.crashes > 0 && i < count; ++i) {
    if (!is_over(at(i))) options_.push_back({Option::Kind::crash, i});
  }
}

void Scheduler::take(const Option& option) {
  Thread& thread = threads_[static_cast<std::size_t>(option.thread)];
  switch (option.kind) {
    case Option::Kind::run:
      if (current_ != kNobody && option.thread != current_ && can_run(running())) --left_.preemptions;
      break;
    case Option::Kind::wake:
      --left_.spurious;
      thread.state = State::ready;
      break;
    case Option::Kind::tick:
      ++thread.ticks;
      thread.state = State::ready;
      break;
    case Option::Kind::crash:
      --left_.crashes;
      for (Thread& other : threads_) {
        if (other.rank == thread.rank && !is_over(other)) other.state = State::dead;
      }
      break;
  }
  if (explorer_.tracing() && option.kind != Option::Kind::run) {
    const std::array<const char*, 4> names{"", " wakes for no reason", ": its time is over", " DIES"};
    explorer_.trace("rank " + std::to_string(thread.rank) + names[static_cast<std::size_t>(option.kind)]);
  }
}

void Scheduler::report_sleepers() {
  std::string who;
  for (const Thread& thread : threads_) {
    if (is_over(thread)) continue;
    who += (who.empty() ? "rank " : ", rank ") + std::to_string(thread.rank);
    if (thread.awaited >= 0) who += " (waits for rank " + std::to_string(thread.awaited) + ")";
  }
  explorer_.violated("asleep for ever: " + who);
}

bool Scheduler::is_dead(int rank) const noexcept {
  return std::any_of(threads_.begin(), threads_.end(),
                     [&](const Thread& t) { return t.rank == rank && t.state == State::dead; });
}

int Scheduler::thread_of(int rank) const noexcept {
  const auto found = std::find_if(threads_.begin(), threads_.end(), [&](const Thread& t) { return t.rank == rank; });
  return static_cast<int>(found - threads_.begin());
}

std::uint64_t Scheduler::hash() const noexcept {
  std::array<Memory::Stage, kMaxThreads> stages{};
  std::uint64_t sum = mix(static_cast<std::uint64_t>(left_.crashes + 1), static_cast<std::uint64_t>(left_.spurious));
  if (left_.preemptions >= 0) {  // only then it matters who runs
    sum = mix(sum, static_cast<std::uint64_t>(left_.preemptions) << 8 | static_cast<std::uint8_t>(current_));
  }
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    const Thread& t = threads_[i];
    stages[i] = t.state == State::done   ? Memory::Stage::done
                : t.state == State::dead ? Memory::Stage::dead
                                         : Memory::Stage::alive;
    sum = mix(mix(sum, t.history), static_cast<std::uint64_t>(t.state) << 16 |
                                       static_cast<std::uint64_t>(static_cast<std::uint8_t>(t.word)) << 8 | t.ticks);
  }
  return mix(sum, memory_.hash(stages));
}

}  // namespace gradwire::model
