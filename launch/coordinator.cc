// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/coordinator.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/meeting.h"
#include "launch/rank_environment.h"
#include "launch/wakeup.h"

namespace gradwire::launch {
namespace {

using Clock = Deadline::Clock;

// How long node 0 keeps serving for the others to read the last verdict.
constexpr Milliseconds kFarewellTime{3000};

// The destructor calls.
struct Stopped {};

std::string own_host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "unknown host";
}

std::string seconds(Milliseconds time) { return concat(static_cast<double>(time.count()) / 1000, " s"); }

}  // namespace

// All but the constructor, the destructor and what is marked so runs on the thread.
class Coordinator::Impl final : Interruption {
 public:
  explicit Impl(CoordinatorOptions options) : options_(std::move(options)) {
    self_ = {own_host_name(), random_job_id(), ::getpid(), options_.ranks, 0};
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
  bool called_away() const GRADWIRE_REQUIRES(mutex_) { return stop_ || (leaving_ && !plan_); }

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

  void converse() {
    for (;;) {
      try {
        Meeting meeting(options_, self_, *this);
        attempts(meeting);
        return;
      } catch (const NodeZeroLost& lost) {
        if (options_.node == 0) throw;
        survive(lost.what());
      }
    }
  }

  // From the first attempt to the last.
  void attempts(Meeting& meeting) {
    for (int round = 0;; ++round) {
      plan_.reset();
      try {
        plan_ = options_.node == 0 ? gather(meeting, round) : take_part(meeting);
      } catch (const LaunchError& problem) {
        if (ends_for_all() && !meeting.has(kQuitKey)) {
          meeting.put(kQuitKey, encode(NodeEnd{NodeEnd::Kind::final, problem.exit_code(), problem.what()}));
        }
        farewell(meeting, {});
        throw;
      }
      begin_attempt();
      const Verdict verdict = watch(meeting);
      self_.attempt = plan_->attempt + 1;
      if (verdict.kind == Verdict::Kind::restart) {
        publish(verdict);
        continue;
      }
      // Published at the end, because the launcher leaves then, and node 0's store with it.
      farewell(meeting, gone_);
      publish(verdict);
      return;
    }
  }

  // Whether the others would wait in vain for this node.
  bool ends_for_all() {
    MutexLock lock(mutex_);
    return options_.node == 0 || leaving_.has_value();
  }

  // What ends the wait for the others besides their coming.
  void check_waiting(Meeting& meeting) {
    check();
    meeting.beat();
    if (!meeting.has(kQuitKey)) return;
    const NodeEnd quit = decode_end(meeting.get(kQuitKey));
    throw LaunchError(quit.exit_code, quit.what);
  }

  [[noreturn]] void fail_to_gather(const std::vector<int>& absent) const {
    throw LaunchError(kHostsFailedExit,
                      concat(absent.size() == 1 ? "node " : "nodes ", join(absent), " of ", options_.nodes,
                             " had not joined after ", seconds(options_.rendezvous_timeout),
                             "; is gradwire-run started there, with the same --rendezvous and --nnodes?"));
  }

  // Node 0: waits for all others and tells them who holds which ranks.
  Plan gather(Meeting& meeting, int round) {
    const Deadline deadline = Deadline::after(options_.rendezvous_timeout);
    meeting.put(kRoundKey, std::to_string(round));
    for (;;) {
      check_waiting(meeting);
      std::vector<int> absent;
      for (int node = 1; node < options_.nodes; ++node) {
        if (!meeting.has(Meeting::key("join", round, node))) absent.push_back(node);
      }
      if (absent.empty()) break;
      if (deadline.expired()) fail_to_gather(absent);
      meeting.wait_a_moment(Meeting::key("join", round, absent.front()));
    }
    Plan plan{options_.job_id.empty() ? self_.launcher : options_.job_id,
              self_.attempt,
              options_.max_restarts,
              options_.master_port != 0 ? options_.master_port : find_free_port(PortScope::all_interfaces),
              {self_}};
    for (int node = 1; node < options_.nodes; ++node) {
      plan.nodes.push_back(decode_node(meeting.get(Meeting::key("join", round, node))));
      plan.attempt = std::max(plan.attempt, plan.nodes.back().attempt);
    }
    meeting.put(Meeting::key("plan", round), encode(plan));
    round_ = round;
    return plan;
  }

  // Any other node: joins the attempt that is being prepared, now or when the one that runs has ended.
  Plan take_part(Meeting& meeting) {
    const Deadline deadline = Deadline::after(options_.rendezvous_timeout);
    int joined = -1;
    for (;;) {
      check_waiting(meeting);
      const int round = std::stoi(meeting.get(kRoundKey));
      const std::string plan_key = Meeting::key("plan", round);
      if (meeting.has(plan_key)) {
        Plan plan = decode_plan(meeting.get(plan_key));
        const std::string attempt = concat(plan.nodes.at(0).launcher, "/", round);
        if (plan.nodes.at(options_.node).launcher == self_.launcher && attempt != last_attempt_) {
          round_ = round;
          last_attempt_ = attempt;
          return plan;
        }
        // The attempt that this node broke off when it lost node 0 may still wait for its end.
        if (attempt == last_attempt_) confess(meeting);
      } else if (joined != round) {
        meeting.put(Meeting::key("join", round, options_.node), encode(self_));
        joined = round;
      }
      if (deadline.expired()) {
        throw LaunchError(kHostsFailedExit,
                          concat("node ", options_.node, " waited ", seconds(options_.rendezvous_timeout), " for all ",
                                 options_.nodes, " nodes to join"));
      }
      meeting.wait_a_moment(plan_key);
    }
  }

  void confess(Meeting& meeting) {
    if (broken_off_.empty()) return;
    const NodeEnd end{NodeEnd::Kind::vanished, kHostLostExit, std::exchange(broken_off_, {})};
    meeting.put(Meeting::key("end", round_, options_.node), encode(end));
    meeting.put(Meeting::key("over", round_), "1");
  }

  void begin_attempt() {
    alarm_.clear();
    gone_.clear();
    reported_ = told_leaving_ = false;
    {
      MutexLock lock(mutex_);
      own_end_.reset();
    }
    publish(*plan_);
  }

  // What the others have said about the attempt, as node 0 sees it.
  struct Others {
    std::vector<std::int64_t> beats;
    std::vector<Clock::time_point> heard;
    std::vector<std::optional<NodeEnd>> ends;
  };

  Verdict watch(Meeting& meeting) {
    Others others{meeting.beats(), std::vector<Clock::time_point>(plan_->nodes.size(), Clock::now()),
                  std::vector<std::optional<NodeEnd>>(plan_->nodes.size())};
    const std::string over_key = Meeting::key("over", round_);
    const std::string next_key = Meeting::key("next", round_);
    bool over = false;
    for (;;) {
      check();
      meeting.beat();
      report(meeting);
      over = over || meeting.has(over_key);
      if (over && !reported_) alarm_.raise();
      if (options_.node == 0) {
        look_around(meeting, others);
        if (const auto verdict = judge_if_over(others)) {
          meeting.put(next_key, encode(*verdict));
          return *verdict;
        }
      } else if (meeting.has(next_key)) {
        alarm_.raise();
        if (reported_) return decode_verdict(meeting.get(next_key));
      }
      meeting.wait_a_moment(over || (reported_ && options_.node != 0) ? next_key : over_key);
    }
  }

  // Passes on what became of this host's ranks, as soon as that is known.
  void report(Meeting& meeting) {
    std::optional<NodeEnd> end;
    bool leaving = false;
    {
      MutexLock lock(mutex_);
      if (!own_end_) return;
      leaving = leaving_.has_value();
      end = leaving ? leaving_ : own_end_;
    }
    if (reported_ && (!leaving || told_leaving_)) return;
    reported_ = true;
    told_leaving_ = leaving;
    meeting.put(Meeting::key("end", round_, options_.node), encode(*end));
    if (end->kind != NodeEnd::Kind::good) meeting.put(Meeting::key("over", round_), "1");
  }

  // Node 0: who has ended, and who is silent.
  void look_around(Meeting& meeting, Others& others) {
    const auto beats = meeting.beats();
    const auto now = Clock::now();
    for (int node = 0; node < options_.nodes; ++node) {
      // One that ended well may still be interrupted.
      if (others.ends[node] && others.ends[node]->kind != NodeEnd::Kind::good) continue;
      const std::string end_key = Meeting::key("end", round_, node);
      if (meeting.has(end_key)) {
        others.ends[node] = decode_end(meeting.get(end_key));
      } else if (beats[node] != others.beats[node] || node == 0) {
        others.beats[node] = beats[node];
        others.heard[node] = now;
      } else if (now - others.heard[node] > options_.heartbeat_timeout) {
        others.ends[node] =
            NodeEnd{NodeEnd::Kind::vanished, kHostLostExit,
                    concat(plan_->name_of(node), " has not been heard of for ", seconds(options_.heartbeat_timeout),
                           ": the host, its network or its gradwire-run is gone")};
        gone_.push_back(node);
        meeting.put(end_key, encode(*others.ends[node]));
        meeting.put(Meeting::key("over", round_), "1");
      }
    }
  }

  std::optional<Verdict> judge_if_over(const Others& others) const {
    std::vector<NodeEnd> ends;
    for (const auto& end : others.ends) {
      if (!end) return std::nullopt;
      ends.push_back(*end);
    }
    return judge(*plan_, ends);
  }

  // Says that this node needs the store no more; node 0 waits for the others to say so, because it ends with it.
  void farewell(Meeting& meeting, const std::vector<int>& gone) {
    try {
      meeting.put(Meeting::key("bye", 0, options_.node), "1");
      if (options_.node != 0) return;
      const Deadline deadline = Deadline::after(std::min<Milliseconds>(kFarewellTime, options_.heartbeat_timeout));
      const auto beats = meeting.beats();
      for (int node = 1; node < options_.nodes; ++node) {
        const bool never_came = beats[node] == 0;
        if (never_came || std::find(gone.begin(), gone.end(), node) != gone.end()) continue;
        const std::string bye = Meeting::key("bye", 0, node);
        while (!meeting.has(bye) && !deadline.expired()) meeting.wait_a_moment(bye);
      }
    } catch (const NodeZeroLost&) {
      // It has gone already.
    }
  }

  // Node 0 is gone: this host's ranks are stopped, then, if restarts are left, node 0 is looked for again.
  void survive(const std::string& reason) {
    const std::string what = concat(plan_ ? plan_->name_of(0) : concat("node 0 at ", options_.host, ":", options_.port),
                                    " has not answered for ", seconds(options_.heartbeat_timeout), " (", reason,
                                    "): its host or its gradwire-run is gone, or the network between it and node ",
                                    options_.node, " (", self_.host, ")");
    if (!plan_) throw LaunchError(kHostLostExit, what);
    alarm_.raise();
    {
      MutexLock lock(mutex_);
      while (!stop_ && !own_end_) changed_.wait(lock);
      if (stop_) throw Stopped();
      if (leaving_ || own_end_->kind == NodeEnd::Kind::final) throw LaunchError(kHostLostExit, what);
    }
    const std::vector<NodeEnd> ends = {{NodeEnd::Kind::vanished, kHostLostExit, what}};
    const Verdict verdict = judge(*plan_, ends);
    if (verdict.kind != Verdict::Kind::restart) throw LaunchError(verdict.exit_code, verdict.what);
    self_.attempt = plan_->attempt + 1;
    broken_off_ = what;
    plan_.reset();
    publish(verdict);
  }

  void publish(Event event) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    events_ready_.raise();
  }

  const CoordinatorOptions options_;
  Wakeup events_ready_;
  Wakeup alarm_;
  NodeRecord self_;
  std::optional<Plan> plan_;  // of the attempt at hand
  int round_ = 0;             // its number in the store
  std::vector<int> gone_;     // nodes that vanished from it
  bool reported_ = false;     // the others know how it ended here
  bool told_leaving_ = false;
  std::string last_attempt_;  // the last in which this node took part: node 0's launcher and the round
  std::string broken_off_;    // why it left that one, if node 0 does not know

  Mutex mutex_;
  ConditionVariable changed_;
  bool stop_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::optional<NodeEnd> own_end_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<NodeEnd> leaving_ GRADWIRE_GUARDED_BY(mutex_);
  std::deque<Event> events_ GRADWIRE_GUARDED_BY(mutex_);
  Thread thread_;  // the last: it uses the others until it is joined
};

Coordinator::Coordinator(CoordinatorOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Coordinator::~Coordinator() = default;

int Coordinator::event_fd() const noexcept { return impl_->event_fd(); }

std::optional<Event> Coordinator::next() { return impl_->next(); }

int Coordinator::alarm_fd() const noexcept { return impl_->alarm_fd(); }

void Coordinator::ranks_ended(const NodeEnd& end) { impl_->ranks_ended(end); }

void Coordinator::leave(const NodeEnd& why) { impl_->leave(why); }

}  // namespace gradwire::launch
