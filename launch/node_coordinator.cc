// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/node_coordinator.h"

#include <unistd.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/process.h"
#include "gradwire/base/strings.h"
#include "launch/hearing.h"
#include "launch/judgement.h"
#include "launch/launch_error.h"
#include "launch/node_mailbox.h"
#include "launch/node_store.h"
#include "launch/rank_environment.h"
#include "launch/steps_exchange.h"

namespace gradwire::launch {
// All but the constructor, the destructor, mailbox() and steps() runs on the thread.
class NodeCoordinator::Impl final {
  using Phase = Position::Phase;

 public:
  explicit Impl(NodeCoordinatorOptions options)
      : options_(std::move(options)),
        steps_(options_.node, options_.nodes),
        position_(first_position(options_, {own_host_name(), random_job_id(), ::getpid(), options_.ranks, 0})) {
    thread_ = Thread("gw-coordinator", [this] { run(); });
  }
  ~Impl() { mailbox_.stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  NodeMailbox& mailbox() noexcept { return mailbox_; }
  StepsExchange& steps() noexcept { return steps_; }

 private:
  void run() noexcept {
    try {
      converse();
    } catch (const Stopped&) {
    } catch (const LaunchError& problem) {
      mailbox_.publish(Failure{problem.exit_code(), problem.what()});
    } catch (const std::exception& problem) {
      mailbox_.publish(Failure{kLaunchFailedExit, concat("cannot reach the other hosts: ", problem.what())});
    }
  }

  // Hears, decides and acts until nothing is left to do.
  void converse() {
    std::optional<Lost> lost;
    while (position_.phase != Phase::over) {
      Heard heard = lost ? hear_own_host() : hear();
      if (lost) heard.lost = std::exchange(lost, std::nullopt);
      if (heard.lost) store_.reset();
      Decision decision = decide(options_, position_, heard);
      position_ = std::move(decision.position);
      mailbox_.set_in_attempt(position_.plan.has_value());
      try {
        for (Action& action : decision.actions) std::visit([this](auto& what) { act(what); }, action);
        if (!decision.wait_for.empty()) store_->wait_a_moment(decision.wait_for);
      } catch (const NodeZeroLost& problem) {
        lost = Lost{problem.what(), problem.was_replaced()};
      }
    }
  }

  Heard hear_own_host() {
    const bool is_orphaned = position_.phase == Phase::orphaned;
    NodeMailbox::Orders orders = is_orphaned ? mailbox_.wait_for_own_end() : mailbox_.orders();
    Heard heard;
    heard.now = Deadline::Clock::now();
    heard.rank_failed = orders.rank_failed;
    heard.interrupted = orders.interrupted;
    heard.own_end = std::move(orders.own_end);
    heard.leaving = std::move(orders.leaving);
    return heard;
  }

  Heard hear() {
    Heard heard = hear_own_host();
    if (position_.phase == Phase::orphaned) return heard;
    try {
      if (store_ == nullptr) store_ = std::make_unique<NodeStore>(options_, position_.self, mailbox_);
      if (position_.phase != Phase::leaving) store_->beat();
      if (position_.phase == Phase::running && position_.plan->watched) steps_.exchange(*store_, position_.round);
      hear_store(options_, position_, *store_, heard);
    } catch (const NodeZeroLost& problem) {
      heard.lost = Lost{problem.what(), problem.was_replaced()};
    } catch (const LaunchError& problem) {
      if (store_ == nullptr) throw;  // refused at the door: there is nobody to tell
      heard.problem = Failure{problem.exit_code(), problem.what()};
    }
    heard.now = Deadline::Clock::now();
    return heard;
  }

  void act(const PutRecord& put) { store_->put(put.key, put.value); }
  void act(const StopRanks&) { mailbox_.raise_alarm(); }
  void act(Tell& tell) { mailbox_.publish(std::move(tell.event)); }
  void act(const BeginAttempt&) {
    mailbox_.begin_attempt();
    steps_.clear();
    mailbox_.publish(*position_.plan);
  }

  const NodeCoordinatorOptions options_;
  NodeMailbox mailbox_;
  StepsExchange steps_;
  Position position_;
  std::unique_ptr<NodeStore> store_;  // null before the first and after node 0 was lost
  Thread thread_;                     // the last: it uses the others until it is joined
};

NodeCoordinator::NodeCoordinator(NodeCoordinatorOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

NodeCoordinator::~NodeCoordinator() = default;

int NodeCoordinator::event_fd() const noexcept { return impl_->mailbox().event_fd(); }

std::optional<NodeEvent> NodeCoordinator::next() { return impl_->mailbox().next(); }

int NodeCoordinator::alarm_fd() const noexcept { return impl_->mailbox().alarm_fd(); }

void NodeCoordinator::rank_failed() { impl_->mailbox().rank_failed(); }

void NodeCoordinator::interrupted() { impl_->mailbox().interrupted(); }

void NodeCoordinator::ranks_ended(const NodeEnd& end) { impl_->mailbox().ranks_ended(end); }

void NodeCoordinator::leave(const NodeEnd& why) { impl_->mailbox().leave(why); }

void NodeCoordinator::tell_steps(std::string lines) { impl_->steps().tell(std::move(lines)); }

std::vector<std::string> NodeCoordinator::told_steps() const { return impl_->steps().told(); }

}  // namespace gradwire::launch
