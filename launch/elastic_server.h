// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The store of an elastic job over several hosts, as the launcher that holds the job serves it.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "gradwire/membership/host_watch.h"
#include "gradwire/store/store.h"
#include "launch/options.h"
#include "launch/signals.h"

namespace gradwire::launch {

// The store of members, coordinator and launchers, which lives as long as the object. For one thread.
class ElasticServer final {
 public:
  // Serves at the address of `node` a store that has `contents` from the beginning: nothing for a new job, else
  // membership::restored_store(). The ranks of hosts that join get numbers from `next_rank` on. Throws LaunchError: the
  // port is in use, the address is not this host's.
  ElasticServer(const NodeOptions& node, const std::string& secret, int next_rank,
                const std::map<std::string, std::string>& contents = {});
  // The job's part of the store.
  const std::shared_ptr<Store>& store() const noexcept { return store_; }
  // The value of GRADWIRE_JOB_ID on all hosts: that of `node`, else a random one.
  const std::string& job_id() const noexcept { return job_id_; }
  // The value of GRADWIRE_RUN_ID on all hosts of a new job. A job that goes on has that of its hosts (JoinedHost).
  const std::string& run_id() const noexcept { return run_id_; }
  // What other hosts --join: "HOST:PORT".
  std::string address() const;
  // Where the members find the store: the value of GRADWIRE_ELASTIC.
  std::string place() const;
  // Whether a host that joined still takes part. Never throws.
  bool has_hosts() noexcept;
  // Tells the hosts that the job has ended, and why. Call wait_for_hosts() afterwards.
  void end(const std::string& why) noexcept;
  // Waits until the hosts have left, up to 10 s and up to the heartbeat timeout. A signal that ends the job ends the
  // wait.
  void wait_for_hosts(SignalQueue& signals) noexcept;

 private:
  const NodeOptions& node_;
  std::shared_ptr<Store> store_;
  const std::string job_id_;
  const std::string run_id_;
  membership::HostList hosts_;
};

// The command with which a host joins the job at `address`, for users. With a secret it names the option for the file.
std::string join_command(const std::string& address, const std::string& secret);

}  // namespace gradwire::launch
