// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/node_store.h"

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/record_keys.h"
#include "launch/store_access.h"

namespace gradwire::launch {
namespace {

constexpr Milliseconds kLongestMoment{200};

[[noreturn]] void refuse(const std::string& sentence) { throw LaunchError(kHostsFailedExit, sentence); }

}  // namespace

// Tries again while the time that a node may be silent has not passed.
template <class Call>
auto NodeStore::ask(Call call) {
  for (;;) {
    std::string reason;
    try {
      auto result = call();
      heard_ = Deadline::Clock::now();
      return result;
    } catch (const StoreError& problem) {
      reason = problem.what();
    } catch (const TimeoutError& problem) {
      reason = problem.what();
    }
    if (Deadline::Clock::now() - heard_ >= options_.heartbeat_timeout) throw NodeZeroLost(reason);
    interruption_.pause(moment_);
  }
}

NodeStore::NodeStore(const NodeCoordinatorOptions& options, const NodeRecord& self, Interruption& interruption)
    : options_(options),
      launcher_(self.launcher),
      interruption_(interruption),
      moment_(std::clamp(options.heartbeat_timeout / 10, Milliseconds(10), kLongestMoment)) {
  if (options_.node == 0) {
    serve();
  } else {
    connect();
  }
  heard_ = Deadline::Clock::now();
  store_->set_timeout(options_.heartbeat_timeout);
  if (options_.node == 0) {
    put(kRoundKey, "0");
    put(kJobKey, encode(JobRecord{kLauncherProtocol, options_.version, options_.job_id, options_.nodes}));
  }
  check_job();
  take_place(self);
}

void NodeStore::serve() {
  const TcpStoreOptions server{.host = options_.host,
                               .port = options_.port,
                               .is_server = true,
                               .timeout = options_.heartbeat_timeout,
                               .secret = options_.secret};
  store_ = serve_store(server, [this](Milliseconds time) { interruption_.pause(time); },
                       {.not_served = {concat("node 0 cannot serve the rendezvous at ", options_.address()),
                                       "; does another job, or an earlier one, run with this --rendezvous?"},
                        .unreachable = {concat("node 0 does not reach itself at ", options_.address()),
                                        "; --rendezvous must name an address of node 0's own"}});
}

void NodeStore::connect() {
  // Node 0 writes the key as soon as it serves.
  store_ = find_store({.host = options_.host, .port = options_.port, .secret = options_.secret}, kJobKey,
                      options_.rendezvous_timeout, [this] { interruption_.check(); },
                      {.not_let_in = {concat("node ", options_.node, " cannot join the rendezvous"), ""},
                       .not_found = {concat("node ", options_.node, " did not find node 0 at ", options_.address()),
                                     "; is it started, and does a firewall let that port through?"}});
}

void NodeStore::check_job() {
  const JobRecord job = decode_job(get(kJobKey));
  if (job.protocol != kLauncherProtocol || job.version != options_.version) {
    refuse(concat("node 0 runs gradwire ", job.version, " (launcher protocol ", job.protocol, "), node ", options_.node,
                  " gradwire ", options_.version, " (launcher protocol ", kLauncherProtocol,
                  "); install one version on all hosts"));
  }
  if (job.job_id != options_.job_id) {
    refuse(concat("the rendezvous at ", options_.address(), " belongs to job '", job.job_id, "', not to job '",
                  options_.job_id, "'; give each job a --rendezvous of its own"));
  }
  if (job.nodes != options_.nodes) {
    refuse(concat("node 0 says --nnodes ", job.nodes, ", node ", options_.node, " says --nnodes ", options_.nodes));
  }
}

void NodeStore::take_place(const NodeRecord& self) {
  const std::string place = place_key(options_.node);
  const std::string mine = encode(NodeRecord{self.host, self.launcher, self.pid, 0, 0});
  std::string holder = ask([&] { return store_->compare_set(place, "", mine); });
  if (holder != mine && !is_alive(decode_node(holder))) {
    holder = ask([&] { return store_->compare_set(place, holder, mine); });
  }
  if (holder == mine) return;
  const NodeRecord other = decode_node(holder);
  refuse(concat("node ", options_.node, " is there already: gradwire-run on ", other.host, ", process ", other.pid,
                "; is this a second job with the same --rendezvous, or a --node-rank given twice?"));
}

// Whether a launcher's beats go on. One that has just died may have been heard of a moment ago: takes heartbeat_timeout
// and more.
bool NodeStore::is_alive(const NodeRecord& other) {
  const auto count = [&] { return ask([&] { return store_->add(beat_key(other.launcher), 0); }); };
  std::int64_t known = count();
  const Deadline look = Deadline::after(options_.heartbeat_timeout);
  Deadline silent = look;
  for (;;) {
    interruption_.pause(moment_);
    const std::int64_t now = count();
    if (now != known && look.expired()) return true;
    if (now != known) silent = Deadline::after(options_.heartbeat_timeout);
    known = now;
    if (silent.expired()) return false;
  }
}

void NodeStore::beat() {
  // A call that is made again counts once more, and never less.
  const std::int64_t count = ask([&] { return store_->add(beat_key(launcher_), 1); });
  if (count <= beats_) throw NodeZeroLost("another gradwire-run has taken its place", /*was_replaced=*/true);
  beats_ = count;
}

std::vector<std::int64_t> NodeStore::beats(const Plan& plan) {
  std::vector<std::int64_t> counts;
  for (const NodeRecord& node : plan.nodes) {
    counts.push_back(ask([&] { return store_->add(beat_key(node.launcher), 0); }));
  }
  return counts;
}

bool NodeStore::has_come(int node) { return has(place_key(node)); }

bool NodeStore::has(const std::string& key) {
  return ask([&] { return store_->check(std::span(&key, 1)); });
}

void NodeStore::put(const std::string& key, const std::string& value) {
  ask([&] {
    store_->set(key, value);
    return true;
  });
}

std::string NodeStore::get(const std::string& key) {
  return ask([&] { return store_->get(key); });
}

void NodeStore::wait_a_moment(const std::string& key) {
  try {
    store_->wait(std::span(&key, 1), moment_);
  } catch (const TimeoutError&) {
    // Not there yet, or nobody answers: the next beat tells.
  } catch (const StoreError&) {
    interruption_.pause(moment_);
  }
}

}  // namespace gradwire::launch
