// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/judgement.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/record_keys.h"

namespace gradwire::launch {
namespace {

using Phase = Position::Phase;

// How long node 0 keeps serving for the others to read the last verdict.
constexpr Milliseconds kFarewellTime{3000};
// A signal to all launchers reaches all of them within this time.
constexpr Milliseconds kInterruptionTime{3000};

// How long node 0 waits for the others before it says so.
constexpr Milliseconds kSilentTime{10000};

// One decision in the making.
class Ruling {
 public:
  Ruling(const NodeCoordinatorOptions& options, const Position& position, const Heard& heard)
      : options_(options), heard_(heard), made_{position, {}, {}}, at_(made_.position) {}

  Decision make() && {
    if (!at_.since) at_.since = heard_.now;
    if (heard_.lost) {
      lose_node_zero(*heard_.lost);
    } else {
      switch (at_.phase) {
        case Phase::gathering:
          gather();
          break;
        case Phase::joining:
          join();
          break;
        case Phase::running:
          watch();
          break;
        case Phase::orphaned:
          survive();
          break;
        case Phase::leaving:
          stay_for_others();
          break;
        case Phase::over:
          break;
      }
    }
    return std::move(made_);
  }

 private:
  bool is_node_zero() const { return options_.node == 0; }
  bool passed(Milliseconds time) const {
    return std::chrono::duration_cast<Milliseconds>(heard_.now - *at_.since) >= time;
  }
  void put(std::string key, std::string value) {
    made_.actions.emplace_back(PutRecord{std::move(key), std::move(value)});
  }
  void tell(NodeEvent event) { made_.actions.emplace_back(Tell{std::move(event)}); }
  void stop_ranks() { made_.actions.emplace_back(StopRanks{}); }
  void wait_for(std::string key) { made_.wait_for = std::move(key); }
  void enter(Phase phase) {
    at_.phase = phase;
    at_.since.reset();
    at_.told_waiting = false;
    at_.joined.reset();
  }

  void finish(NodeEvent outcome) {
    tell(std::move(outcome));
    enter(Phase::over);
  }

  // Says that this node needs the store no more. The user is told at the end, because the launcher ends then, and node
  // 0's store with it.
  void leave(NodeEvent outcome) {
    put(bye_key(options_.node), "1");
    at_.outcome = std::move(outcome);
    enter(Phase::leaving);
  }

  // Between attempts. The others hear of it where they would wait in vain.
  void fail(int exit_code, const std::string& what) {
    if ((is_node_zero() || heard_.leaving) && !heard_.quit) {
      put(kQuitKey, encode(NodeEnd{NodeEnd::Kind::final, exit_code, what}));
    }
    leave(Failure{exit_code, what});
  }

  // What ends the wait for the others besides their coming.
  bool breaks_off_waiting() {
    if (heard_.leaving) {
      fail(heard_.leaving->exit_code, heard_.leaving->what);
    } else if (heard_.quit) {
      fail(heard_.quit->exit_code, heard_.quit->what);
    } else if (heard_.problem) {
      fail(heard_.problem->exit_code, heard_.problem->what);
    }
    return at_.phase == Phase::leaving;
  }

  std::string absent_nodes() const {
    return concat(heard_.absent.size() == 1 ? "node " : "nodes ", gradwire::join(heard_.absent), " of ",
                  options_.nodes);
  }

  void gather() {
    if (breaks_off_waiting()) return;
    if (heard_.absent.empty()) {
      at_.plan = plan_of_all();
      put(plan_key(at_.round), encode(*at_.plan));
      return begin_attempt();
    }
    if (passed(options_.rendezvous_timeout)) {
      return fail(
          kHostsFailedExit,
          concat(absent_nodes(), " had not joined after ", seconds_text(options_.rendezvous_timeout),
                 "; is gradwire-run started there, with the same --rendezvous, --nnodes, --job-id and secret?"));
    }
    if (!at_.told_waiting && passed(std::min<Milliseconds>(kSilentTime, options_.rendezvous_timeout / 2))) {
      tell(Notice{concat("waiting for ", absent_nodes(), " to join")});
      at_.told_waiting = true;
    }
    wait_for(join_key(at_.round, heard_.absent.front()));
  }

  Plan plan_of_all() const {
    Plan plan{options_.job_id.empty() ? at_.self.launcher : options_.job_id,
              at_.self.attempt,
              options_.max_restarts,
              options_.master_port != 0 ? options_.master_port : heard_.free_port,
              {at_.self}};
    plan.watched = options_.watched;
    for (const NodeRecord& node : heard_.joined) {
      plan.nodes.push_back(node);
      plan.attempt = std::max(plan.attempt, node.attempt);
    }
    return plan;
  }

  void join() {
    if (breaks_off_waiting()) return;
    const std::string attempt = heard_.plan ? concat(heard_.plan->nodes.at(0).launcher, "/", heard_.round) : "";
    if (heard_.plan && attempt == at_.last_attempt) {
      admit_broken_off();
    } else if (heard_.plan && heard_.plan->nodes.at(options_.node).launcher == at_.self.launcher) {
      at_.round = heard_.round;
      at_.last_attempt = attempt;
      at_.plan = heard_.plan;
      return begin_attempt();
    } else if (!heard_.plan && at_.joined != heard_.round) {
      put(join_key(heard_.round, options_.node), encode(at_.self));
      at_.joined = heard_.round;
    }
    if (passed(options_.rendezvous_timeout)) {
      return fail(kHostsFailedExit,
                  concat("node ", options_.node, " waited ", seconds_text(options_.rendezvous_timeout), " for all ",
                         options_.nodes, " nodes to join"));
    }
    wait_for(heard_.plan ? next_key(heard_.round) : plan_key(heard_.round));
  }

  // Node 0 is there again, and may still wait for the end of the attempt that this node broke off.
  void admit_broken_off() {
    if (at_.broken_off.empty()) return;
    const NodeEnd end{NodeEnd::Kind::vanished, kHostLostExit, std::exchange(at_.broken_off, {})};
    put(end_key(heard_.round, options_.node), encode(end));
    put(over_key(heard_.round), "1");
  }

  void begin_attempt() {
    at_.over = at_.reported = at_.told_leaving = false;
    at_.interruption_heard_at.reset();
    at_.beats.clear();
    at_.heard_at.clear();
    at_.watched = {};
    at_.ends.assign(at_.plan->nodes.size(), std::nullopt);
    at_.gone.clear();
    made_.actions.emplace_back(BeginAttempt{});
    enter(Phase::running);
  }

  void watch() {
    if (heard_.problem) {
      stop_ranks();
      return finish(*heard_.problem);
    }
    report();
    // The ranks of this host may take long to end, and the others are not to wait for that.
    if (heard_.rank_failed && !at_.reported && !at_.over && !heard_.over) put(over_key(at_.round), "1");
    at_.over = at_.over || heard_.over || is_over_by_interruption();
    if (at_.over && !at_.reported) stop_ranks();
    if (is_node_zero()) {
      look_at_nodes();
      if (const auto verdict = verdict_on_all()) {
        put(next_key(at_.round), encode(*verdict));
        return conclude(*verdict);
      }
    } else if (heard_.next) {
      stop_ranks();
      if (at_.reported) return conclude(*heard_.next);
    }
    const bool knows_of_over = at_.over || heard_.over_by_interruption;
    wait_for(knows_of_over || (at_.reported && !is_node_zero()) ? next_key(at_.round) : over_key(at_.round));
  }

  // Another host was interrupted, and its ranks have ended well. Those of this host may take their time, to save a
  // checkpoint, where this host was interrupted too, which its launcher may notice a little later.
  bool is_over_by_interruption() {
    if (!heard_.over_by_interruption || heard_.interrupted) return false;
    if (!at_.interruption_heard_at) at_.interruption_heard_at = heard_.now;
    return heard_.now - *at_.interruption_heard_at > kInterruptionTime;
  }

  // Passes on what became of this host's ranks, as soon as that is known, and that this launcher was told to leave.
  void report() {
    if (!heard_.own_end || (at_.reported && (!heard_.leaving || at_.told_leaving))) return;
    const NodeEnd& end = heard_.leaving ? *heard_.leaving : *heard_.own_end;
    at_.reported = true;
    at_.told_leaving = heard_.leaving.has_value();
    at_.ends[options_.node] = end;
    put(end_key(at_.round, options_.node), encode(end));
    if (end.kind == NodeEnd::Kind::good) return;
    const bool by_interruption = heard_.interrupted && !heard_.rank_failed && end.kind == NodeEnd::Kind::final;
    if (!by_interruption) return put(over_key(at_.round), "1");
    if (!at_.over && !heard_.over && !heard_.over_by_interruption) put(over_key(at_.round), kOverByInterruption);
  }

  void look_at_nodes() {
    // The store is in this process. A look comes after a tenth of heartbeat_timeout.
    const auto now = at_.watched.look(heard_.now, WatchedTime::Duration(options_.heartbeat_timeout) / 4);
    if (at_.beats.empty()) {
      at_.beats = heard_.beats;
      at_.heard_at.assign(heard_.beats.size(), now);
    }
    for (std::size_t node = 0; node < at_.ends.size(); ++node) {
      // One that ended well may still be interrupted.
      if (at_.ends[node] && at_.ends[node]->kind != NodeEnd::Kind::good) continue;
      if (heard_.ends[node]) {
        at_.ends[node] = heard_.ends[node];
      } else if (node != 0) {
        look_at_beats(static_cast<int>(node), now);
      }
    }
  }

  void look_at_beats(int node, WatchedTime::Duration now) {
    if (heard_.beats[node] != at_.beats[node]) {
      at_.beats[node] = heard_.beats[node];
      at_.heard_at[node] = now;
    } else if (now - at_.heard_at[node] > options_.heartbeat_timeout) {
      at_.ends[node] = NodeEnd{
          NodeEnd::Kind::vanished, kHostLostExit,
          concat(at_.plan->name_of(node), " has not been heard of for ", seconds_text(options_.heartbeat_timeout),
                 ": the host, its network or its gradwire-run is gone")};
      at_.gone.push_back(node);
      put(end_key(at_.round, node), encode(*at_.ends[node]));
      put(over_key(at_.round), "1");
    }
  }

  std::optional<Verdict> verdict_on_all() const {
    std::vector<NodeEnd> ends;
    for (const auto& end : at_.ends) {
      if (!end) return std::nullopt;
      ends.push_back(*end);
    }
    return judge(*at_.plan, ends);
  }

  void conclude(const Verdict& verdict) {
    if (verdict.kind != Verdict::Kind::restart) return leave(verdict);
    start_again(verdict);
  }

  void start_again(const Verdict& verdict) {
    tell(verdict);
    at_.self.attempt = at_.plan->attempt + 1;
    at_.plan.reset();
    if (is_node_zero()) put(kRoundKey, std::to_string(++at_.round));
    enter(is_node_zero() ? Phase::gathering : Phase::joining);
  }

  // Node 0 ends with its store, so it waits for the others to say that they have read the last verdict.
  void stay_for_others() {
    for (const int node : heard_.staying) {
      if (std::find(at_.gone.begin(), at_.gone.end(), node) != at_.gone.end()) continue;
      if (passed(std::min<Milliseconds>(kFarewellTime, options_.heartbeat_timeout))) break;
      return wait_for(bye_key(node));
    }
    finish(*at_.outcome);
  }

  void lose_node_zero(const Lost& lost) {
    if (at_.phase == Phase::leaving) return finish(*at_.outcome);
    if (at_.phase == Phase::over) return;
    if (is_node_zero()) {
      if (at_.plan) stop_ranks();
      return finish(Failure{kLaunchFailedExit, concat("cannot reach the other hosts: ", lost.reason)});
    }
    const std::string who = at_.plan ? at_.plan->name_of(0) : concat("node 0 at ", options_.address());
    const std::string what =
        lost.was_replaced
            ? concat(who, " has ended: ", lost.reason)
            : concat(who, " has not answered for ", seconds_text(options_.heartbeat_timeout), " (", lost.reason,
                     "): its host or its gradwire-run is gone, or the network between it and node ", options_.node,
                     " (", at_.self.host, ")");
    if (!at_.plan) return finish(Failure{kHostLostExit, what});
    at_.broken_off = what;
    stop_ranks();
    enter(Phase::orphaned);
  }

  // This host's ranks are stopped; then, if restarts are left, node 0 is looked for again.
  void survive() {
    if (!heard_.own_end) return;
    if (heard_.leaving || heard_.own_end->kind == NodeEnd::Kind::final) {
      return finish(Failure{kHostLostExit, at_.broken_off});
    }
    const Verdict verdict = judge(*at_.plan, {{NodeEnd::Kind::vanished, kHostLostExit, at_.broken_off}});
    if (verdict.kind != Verdict::Kind::restart) return finish(Failure{verdict.exit_code, verdict.what});
    start_again(verdict);
  }

  const NodeCoordinatorOptions& options_;
  const Heard& heard_;
  Decision made_;
  Position& at_;
};

}  // namespace

std::string seconds_text(Milliseconds time) { return concat(static_cast<double>(time.count()) / 1000, " s"); }

Position first_position(const NodeCoordinatorOptions& options, const NodeRecord& self) {
  Position position;
  position.phase = options.node == 0 ? Phase::gathering : Phase::joining;
  position.self = self;
  return position;
}

Decision decide(const NodeCoordinatorOptions& options, const Position& position, const Heard& heard) {
  return Ruling(options, position, heard).make();
}

}  // namespace gradwire::launch
