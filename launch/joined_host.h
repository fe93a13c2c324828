// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A host that has joined an elastic job which another host's launcher holds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/membership/host_watch.h"
#include "gradwire/membership/records.h"
#include "gradwire/store/store.h"
#include "launch/options.h"
#include "launch/signals.h"
#include "launch/wakeup.h"

namespace gradwire::launch {

// This host in a job that another host's launcher holds. A thread of its own says that this host is there, and reports
// the members of this host that die.
class JoinedHost final {
 public:
  // Joins the job at the address of `node` with `ranks` ranks; tries for its rendezvous_timeout. Throws LaunchError:
  // nobody answers there, the secret is wrong, the job runs another version of gradwire or has another id than `node`,
  // no elastic job is there, a signal came.
  JoinedHost(const NodeOptions& node, const std::string& secret, int ranks, SignalQueue& signals);
  ~JoinedHost();
  JoinedHost(const JoinedHost&) = delete;
  JoinedHost& operator=(const JoinedHost&) = delete;

  std::string place() const;
  // ElasticServer::job_id() and run_id().
  const std::string& job_id() const noexcept { return job_id_; }
  const std::string& run_id() const noexcept { return run_id_; }
  // The number of this host's first rank: the ranks of all launchers of the job have numbers of their own.
  int first_rank() const noexcept { return first_rank_; }
  // The name of this host in the job: the value of GRADWIRE_ELASTIC_HOST.
  const std::string& name() const noexcept { return watch_->host(); }
  // Readable once this host's ranks have to stop: the job has ended, or its store has not answered for the heartbeat
  // timeout.
  int alarm_fd() const noexcept { return alarm_.fd(); }
  // Asks the job's store now, and returns whether the job goes on. Blocks until the store answers or its time limit
  // passes.
  bool answers();
  // An epoch of the job, as the coordinator decided it, where that is known here. Else has it asked for, so that a
  // later call may know. Does not block.
  std::optional<membership::Epoch> epoch(std::int64_t number);
  // How the job goes, as far as this host has read its log. Does not block.
  membership::JobCourse course();
  // A process of this host has ended: looks now whether it was a member. Does not block.
  void on_death();
  // This host leaves the job, and its launcher ends the ranks: HostWatch::gives_up(). Does not block.
  void gives_up();
  // No process of this host will come again. Ends the thread, reports the last deaths, and returns why the ranks had to
  // stop; empty when they had not. Where the store does not answer, it waits a few seconds.
  std::string leave() noexcept;
  // As HostWatch::why_dropped(), once leave() has returned; empty for nothing.
  const std::string& why_dropped() const noexcept { return why_dropped_; }

 private:
  void run();
  void tell_of_silence(const std::string& problem, Milliseconds silence, bool& told) const;
  // Says that this host is there, and looks whether the job has ended.
  void talk_to_the_store();
  std::optional<membership::Epoch> look_up(std::int64_t epoch) const;

  const NodeOptions& node_;
  std::shared_ptr<Store> store_;
  std::string job_id_;
  std::string run_id_;
  int first_rank_ = 0;
  std::unique_ptr<membership::HostWatch> watch_;
  std::string why_dropped_;  // leave() sets it
  Wakeup alarm_;
  Mutex mutex_;
  ConditionVariable changed_;
  bool stop_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool has_death_ GRADWIRE_GUARDED_BY(mutex_) = false;         // on_death() was called since the last look
  bool gives_up_ GRADWIRE_GUARDED_BY(mutex_) = false;          // gives_up() was called
  std::int64_t asked_ GRADWIRE_GUARDED_BY(mutex_) = 0;         // how many calls of answers() have begun
  std::int64_t answered_ GRADWIRE_GUARDED_BY(mutex_) = 0;      // how many of them the newest talk to the store answers
  bool talked_well_ GRADWIRE_GUARDED_BY(mutex_) = false;       // the newest talk to the store
  std::int64_t wanted_epoch_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // by epoch(), until it is known; 0: none
  std::optional<membership::Epoch> known_epoch_ GRADWIRE_GUARDED_BY(mutex_);
  membership::JobCourse course_ GRADWIRE_GUARDED_BY(mutex_);
  std::string reason_ GRADWIRE_GUARDED_BY(mutex_);
  bool silent_ GRADWIRE_GUARDED_BY(mutex_) = false;  // the store has not answered
  Thread thread_;                                    // the last: it uses the others until it is joined
};

}  // namespace gradwire::launch
