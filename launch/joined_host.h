// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A host that has joined an elastic job which another host's launcher holds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/base/process.h"
#include "gradwire/membership/host_watch.h"
#include "gradwire/membership/records.h"
#include "launch/elastic_entry.h"
#include "launch/host_mailbox.h"
#include "launch/options.h"
#include "launch/signals.h"
#include "launch/wakeup.h"

namespace gradwire::launch {

// This host in a job that another host's launcher holds. A thread of its own says that this host is there, and reports
// the members of this host that die.
class JoinedHost final {
 public:
  // Enters the job as enter_elastic_job() does, and throws what that throws.
  JoinedHost(const NodeOptions& node, const std::string& secret, int ranks, SignalQueue& signals);
  ~JoinedHost();
  JoinedHost(const JoinedHost&) = delete;
  JoinedHost& operator=(const JoinedHost&) = delete;

  std::string place() const;
  // ElasticServer::job_id() and run_id().
  const std::string& job_id() const noexcept { return job_.job_id; }
  const std::string& run_id() const noexcept { return job_.run_id; }
  // The number of this host's first rank: the ranks of all launchers of the job have numbers of their own.
  int first_rank() const noexcept { return job_.first_rank; }
  // The name of this host in the job: the value of GRADWIRE_ELASTIC_HOST.
  const std::string& name() const noexcept { return name_; }
  // Readable once this host's ranks have to stop: the job has ended, or its store has not answered for the heartbeat
  // timeout.
  int alarm_fd() const noexcept { return alarm_.fd(); }
  // Asks the job's store now, and returns whether the job goes on. Blocks until the store answers or its time limit
  // passes.
  bool answers() { return mailbox_.answers(); }
  // An epoch of the job, as the coordinator decided it, where that is known here. Else has it asked for, so that a
  // later call may know. Does not block.
  std::optional<membership::Epoch> epoch(std::int64_t number) { return mailbox_.epoch(number); }
  // How the job goes, as far as this host has read its log. Does not block.
  membership::JobCourse course() { return mailbox_.course(); }
  // A process of this host has ended: looks now whether it was a member. Does not block.
  void on_death() { mailbox_.on_death(); }
  // This host leaves the job, and its launcher ends the ranks: HostWatch::gives_up(). Does not block.
  void gives_up() { mailbox_.gives_up(); }
  // No process of this host will come again. Ends the thread, reports the last deaths, and returns why the ranks had to
  // stop; empty when they had not. Where the store does not answer, it waits a few seconds.
  std::string leave() noexcept;
  // As HostWatch::why_dropped(), once leave() has returned; empty for nothing.
  const std::string& why_dropped() const noexcept { return why_dropped_; }

 private:
  void run();
  // Says that this host is there, and returns why the ranks have to stop where the job has ended.
  std::string talk_to_the_store();
  std::optional<membership::Epoch> look_up(std::int64_t epoch) const;

  const NodeOptions& node_;
  const ElasticEntry job_;
  std::unique_ptr<membership::HostWatch> watch_;  // the thread's until it has ended; null once this host has left
  const std::string name_;
  std::string why_dropped_;  // leave() sets it
  HostMailbox mailbox_;
  Wakeup alarm_;
  bool is_silent_ = false;  // the thread's until it has ended: the store has not answered
  Thread thread_;           // the last: it uses the others until it is joined
};

}  // namespace gradwire::launch
