// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A host of an elastic job other than the coordinator's, as its launcher serves it: the coordinator cannot see the
// processes of another host, so the host's launcher vouches for them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/watched_time.h"
#include "gradwire/membership/event_log.h"
#include "gradwire/membership/job_course.h"
#include "gradwire/store/store.h"

namespace gradwire::membership {

// One thread at a time uses the object. All methods throw what the store throws.
class HostWatch final {
 public:
  // Joins the job in `store` as a host. Throws InvalidArgument for a null store.
  explicit HostWatch(std::shared_ptr<Store> store);

  // The name of this host in the job, which its members give to Member::Member().
  const std::string& host() const noexcept { return host_; }

  // Tells the coordinator that this host is there. The coordinator takes the members of a host from which it hears
  // nothing for CoordinatorOptions::host_timeout for dead.
  void beat();
  // Reports the members of this host whose processes have ended. Costs a look at each process, and once a second, or
  // when a known member has ended, a few requests to the store. With `has_news`, looks into the store in any case: a
  // process has ended that may have joined within the last second.
  // Reads a long log in parts: while has_read_all() is false, it reports nobody, and the next look goes on.
  void look_for_the_dead(bool has_news = false);
  bool has_read_all() const noexcept { return has_read_all_; }
  // This host leaves the job and ends its processes. Their deaths are told as one loss of the host (Died::host).
  void gives_up() noexcept { gives_up_ = true; }
  // How the job goes, as far as this object has read.
  const JobCourse& course() const noexcept { return course_; }
  // Why members of this host had to leave the job: of one of them, as part of a sentence, "member 4 had to leave,
  // because it and member 2 do not reach each other". Nothing where none had to, where one did because it was slow (the
  // coordinator says that), and before look_for_the_dead() has read that it has left.
  const std::optional<std::string>& why_dropped() const noexcept { return why_dropped_; }
  // Why the launcher that holds the store ended the job; nothing while the job goes on.
  std::optional<std::string> ended();
  // Tells that no process of this host will come again.
  void leave();

 private:
  // Reads the events that are new; all of them when the job has another store.
  void follow();
  // Asks why the members that have left did so.
  void look_up_drops();

  const std::shared_ptr<Store> store_;
  EventLog log_;
  Deadline next_follow_ = Deadline::after(Milliseconds(0));
  std::string host_;
  std::string store_name_;  // the value of kStoreKey
  std::int64_t next_event_;
  bool has_read_all_ = true;  // of the events that there were
  bool gives_up_ = false;     // gives_up() was called
  JobCourse course_;
  std::map<std::int64_t, std::string> alive_;  // the identities of this host's members, by number
  std::vector<std::int64_t> left_;             // members of this host, until why_dropped_ has been asked for
  std::optional<std::string> why_dropped_;
};

// Whether hosts are heard of (HostWatch::beat()), for who holds the store. Time in which this process stood still does
// not count as silence (WatchedTime). Not thread-safe.
class HostBeats final {
 public:
  // Looks for the beats of `hosts`, and returns those that have been silent for longer than `timeout`, as far as
  // earlier looks can tell. A host whose beat was never heard is none of them at its first look. Look at least four
  // times in `timeout`. Throws what the store throws.
  std::vector<std::string> silent(Store& store, const std::vector<std::string>& hosts, Milliseconds timeout);
  // How often the host was heard of at the last look.
  std::int64_t count(const std::string& host) const { return heard_.at(host).count; }

 private:
  struct Heard {
    std::int64_t count = -1;
    WatchedTime::Duration time{};
  };
  WatchedTime time_;
  std::map<std::string, Heard> heard_;
};

// For the launcher that holds the store: the launchers that have joined, and whether each has left.
class HostList final {
 public:
  // Shares the ownership of `store`.
  explicit HostList(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  // The hosts that have joined and have neither left nor been silent for `timeout` (HostWatch::beat()), as far as
  // earlier calls can tell. Throws what the store throws.
  std::size_t present(Milliseconds timeout);

 private:
  const std::shared_ptr<Store> store_;
  HostBeats beats_;
};

}  // namespace gradwire::membership
