// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/coordinator.h"

#include <unistd.h>

#include <deque>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/stored_number.h"
#include "launch/judgement.h"
#include "launch/launch_error.h"
#include "launch/meeting.h"
#include "launch/rank_environment.h"
#include "launch/record_keys.h"
#include "launch/wakeup.h"

namespace gradwire::launch {
namespace {

// The destructor calls.
struct Stopped {};

// How often node 0 asks for the steps of the others.
constexpr Milliseconds kStepsTime{1000};

std::string own_host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "unknown host";
}

}  // namespace

// All but the constructor, the destructor and what is marked so runs on the thread.
class Coordinator::Impl final : public Interruption {
  using Phase = Position::Phase;

 public:
  explicit Impl(CoordinatorOptions options)
      : options_(std::move(options)),
        position_(first_position(options_, {own_host_name(), random_job_id(), ::getpid(), options_.ranks, 0})) {
    thread_ = Thread("gw-coordinator", [this] { run(); });
  }

  ~Impl() override {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }

  int event_fd() const noexcept { return events_ready_.fd(); }  // any thread
  int alarm_fd() const noexcept { return alarm_.fd(); }         // any thread

  std::optional<Event> next() {  // any thread
    MutexLock lock(mutex_);
    if (events_.empty()) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    if (events_.empty()) events_ready_.clear();
    return event;
  }

  void ranks_ended(const NodeEnd& end) {  // any thread
    MutexLock lock(mutex_);
    own_end_ = end;
    changed_.notify_all();
  }

  void leave(const NodeEnd& why) {  // any thread
    MutexLock lock(mutex_);
    leaving_ = why;
    changed_.notify_all();
  }

  void tell_steps(std::string lines) {  // any thread
    MutexLock lock(mutex_);
    own_steps_ = std::move(lines);
  }

  std::vector<std::string> told_steps() {  // any thread
    MutexLock lock(mutex_);
    return told_steps_;
  }

 private:
  // Interruption
  void check() override { pause(Milliseconds::zero()); }
  void pause(Milliseconds time) override {
    const Deadline end = Deadline::after(time);
    MutexLock lock(mutex_);
    while (!called_away() && !end.expired()) changed_.wait_until(lock, end.point());
    if (stop_) throw Stopped();
    if (called_away()) throw LaunchError(leaving_->exit_code, leaving_->what);
  }
  // Who leaves during an attempt does so by its verdict.
  bool called_away() const GRADWIRE_REQUIRES(mutex_) { return stop_ || (leaving_ && !in_attempt_); }

  void run() noexcept {
    try {
      converse();
    } catch (const Stopped&) {
    } catch (const LaunchError& problem) {
      publish(Failure{problem.exit_code(), problem.what()});
    } catch (const std::exception& problem) {
      publish(Failure{kLaunchFailedExit, concat("cannot reach the other hosts: ", problem.what())});
    }
  }

  // Hears, decides and acts until nothing is left to do.
  void converse() {
    std::optional<Lost> lost;
    while (position_.phase != Phase::over) {
      Heard heard = lost ? hear_own_host() : hear();
      if (lost) heard.lost = std::exchange(lost, std::nullopt);
      if (heard.lost) meeting_.reset();
      Decision decision = decide(options_, position_, heard);
      set_position(std::move(decision.position));
      try {
        for (Action& action : decision.actions) std::visit([this](auto& what) { act(what); }, action);
        if (!decision.wait_for.empty()) meeting_->wait_a_moment(decision.wait_for);
      } catch (const NodeZeroLost& problem) {
        lost = Lost{problem.what(), problem.was_replaced()};
      }
    }
  }

  void set_position(Position position) {
    position_ = std::move(position);
    MutexLock lock(mutex_);
    in_attempt_ = position_.plan.has_value();
  }

  Heard hear_own_host() {
    Heard heard;
    MutexLock lock(mutex_);
    while (!stop_ && position_.phase == Phase::orphaned && !own_end_) changed_.wait(lock);
    if (stop_) throw Stopped();
    heard.now = Deadline::Clock::now();
    heard.own_end = own_end_;
    heard.leaving = leaving_;
    return heard;
  }

  Heard hear() {
    Heard heard = hear_own_host();
    if (position_.phase == Phase::orphaned) return heard;
    try {
      if (meeting_ == nullptr) meeting_ = std::make_unique<Meeting>(options_, position_.self, *this);
      hear_store(heard);
    } catch (const NodeZeroLost& problem) {
      heard.lost = Lost{problem.what(), problem.was_replaced()};
    } catch (const LaunchError& problem) {
      if (meeting_ == nullptr) throw;  // refused at the door: there is nobody to tell
      heard.problem = Failure{problem.exit_code(), problem.what()};
    }
    heard.now = Deadline::Clock::now();
    return heard;
  }

  // What the phase asks for.
  void hear_store(Heard& heard) {
    if (position_.phase == Phase::leaving) return hear_who_stays(heard);
    meeting_->beat();
    if (position_.phase == Phase::running) return hear_attempt(heard);
    if (meeting_->has(kQuitKey)) heard.quit = decode_end(meeting_->get(kQuitKey));
    if (options_.node == 0) return hear_who_joins(heard);
    heard.round = static_cast<int>(stored_number(kRoundKey, meeting_->get(kRoundKey)));
    if (meeting_->has(plan_key(heard.round))) heard.plan = decode_plan(meeting_->get(plan_key(heard.round)));
  }

  void hear_who_joins(Heard& heard) {
    for (int node = 1; node < options_.nodes; ++node) {
      if (!meeting_->has(join_key(position_.round, node))) heard.absent.push_back(node);
    }
    if (!heard.absent.empty()) return;
    for (int node = 1; node < options_.nodes; ++node) {
      heard.joined.push_back(decode_node(meeting_->get(join_key(position_.round, node))));
    }
    if (options_.master_port == 0) heard.free_port = find_free_port(PortScope::all_interfaces);
  }

  void hear_attempt(Heard& heard) {
    const int round = position_.round;
    if (position_.plan->watched) exchange_steps(round);
    heard.over = position_.over || meeting_->has(over_key(round));
    if (options_.node != 0) {
      if (meeting_->has(next_key(round))) heard.next = decode_verdict(meeting_->get(next_key(round)));
      return;
    }
    heard.beats = meeting_->beats(*position_.plan);
    heard.ends.resize(heard.beats.size());
    for (int node = 0; node < options_.nodes; ++node) {
      const auto& known = position_.ends[node];
      if (known && known->kind != NodeEnd::Kind::good) continue;  // one that ended well may still be interrupted
      const std::string key = end_key(round, node);
      if (meeting_->has(key)) heard.ends[node] = decode_end(meeting_->get(key));
    }
  }

  // In an attempt that is watched. Each time that a launcher hears the store, which is five times a second or more
  // often, the other nodes put what is new; node 0 asks for it once in kStepsTime.
  void exchange_steps(int round) {
    if (options_.node != 0) {
      std::string lines;
      {
        MutexLock lock(mutex_);
        lines.swap(own_steps_);
      }
      if (!lines.empty()) meeting_->put(steps_key(round, options_.node), lines);
      return;
    }
    if (!next_steps_.expired()) return;
    next_steps_ = Deadline::after(kStepsTime);
    std::vector<std::string> told(static_cast<std::size_t>(options_.nodes));
    for (int node = 1; node < options_.nodes; ++node) {
      const std::string key = steps_key(round, node);
      if (meeting_->has(key)) told[static_cast<std::size_t>(node)] = meeting_->get(key);
    }
    MutexLock lock(mutex_);
    told_steps_ = std::move(told);
  }

  void hear_who_stays(Heard& heard) {
    if (options_.node != 0) return;
    for (int node = 1; node < options_.nodes; ++node) {
      if (meeting_->has_come(node) && !meeting_->has(bye_key(node))) heard.staying.push_back(node);
    }
  }

  void act(const Put& put) { meeting_->put(put.key, put.value); }
  void act(const StopRanks&) { alarm_.raise(); }
  void act(Tell& tell) { publish(std::move(tell.event)); }
  void act(const BeginAttempt&) {
    alarm_.clear();
    {
      MutexLock lock(mutex_);
      own_end_.reset();
      own_steps_.clear();
      told_steps_.clear();
    }
    publish(*position_.plan);
  }

  void publish(Event event) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    events_ready_.raise();
  }

  const CoordinatorOptions options_;
  Wakeup events_ready_;
  Wakeup alarm_;
  Position position_;
  Deadline next_steps_ = Deadline::after(Milliseconds::zero());
  std::unique_ptr<Meeting> meeting_;  // null before the first and after node 0 was lost

  Mutex mutex_;
  ConditionVariable changed_;
  bool stop_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool in_attempt_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::optional<NodeEnd> own_end_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<NodeEnd> leaving_ GRADWIRE_GUARDED_BY(mutex_);
  std::deque<Event> events_ GRADWIRE_GUARDED_BY(mutex_);
  std::string own_steps_ GRADWIRE_GUARDED_BY(mutex_);                // not yet in the store
  std::vector<std::string> told_steps_ GRADWIRE_GUARDED_BY(mutex_);  // by node
  Thread thread_;                                                    // the last: it uses the others until it is joined
};

Coordinator::Coordinator(CoordinatorOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Coordinator::~Coordinator() = default;

int Coordinator::event_fd() const noexcept { return impl_->event_fd(); }

std::optional<Event> Coordinator::next() { return impl_->next(); }

int Coordinator::alarm_fd() const noexcept { return impl_->alarm_fd(); }

void Coordinator::ranks_ended(const NodeEnd& end) { impl_->ranks_ended(end); }

void Coordinator::leave(const NodeEnd& why) { impl_->leave(why); }

void Coordinator::tell_steps(std::string lines) { impl_->tell_steps(std::move(lines)); }

std::vector<std::string> Coordinator::told_steps() const { return impl_->told_steps(); }

}  // namespace gradwire::launch
