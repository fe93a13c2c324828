// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/elastic_entry.h"

#include <algorithm>

#include "gradwire/base/address.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/job_store.h"
#include "launch/elastic_keys.h"
#include "launch/launch_error.h"
#include "launch/rank_environment.h"
#include "launch/store_access.h"

namespace gradwire::launch {
namespace {

// How long the store may take for an answer: the heartbeat timeout has room for several questions.
constexpr Milliseconds kLeastAnswerTime{1000};
constexpr Milliseconds kAnswerTime{3000};

std::shared_ptr<Store> connect(const NodeOptions& node, const std::string& secret, SignalQueue& signals) {
  const std::string address = host_and_port(node.host, node.port);
  const auto check = [&] {
    if (const auto signal = signals.next_that_ends())
      throw LaunchError(128 + *signal, "interrupted before the job was found");
  };
  auto store = membership::job_part(find_store(
      {.host = node.host, .port = node.port, .secret = secret}, membership::key_in_whole(kVersionKey),
      node.rendezvous_timeout, check,
      {.not_let_in = {concat("this host cannot join the job at ", address), ""},
       .not_found = {concat("no elastic job was found at ", address),
                     "; is it started with --elastic and --rendezvous, and does a firewall let that port through?"}}));
  // So that the thread notices in time that nobody answers, and leave() does not wait long for the thread.
  store->set_timeout(std::clamp(node.heartbeat_timeout / 3, kLeastAnswerTime, kAnswerTime));
  return store;
}

void require_same_version(const NodeOptions& node, const std::string& version) {
  if (version == GRADWIRE_VERSION) return;
  throw LaunchError(kHostsFailedExit,
                    concat("the job at ", host_and_port(node.host, node.port), " runs gradwire ", version,
                           ", and this host gradwire ", GRADWIRE_VERSION, "; install one version on all hosts"));
}

void require_same_job(const NodeOptions& node, const std::string& job_id) {
  if (node.job_id.empty() || node.job_id == job_id) return;
  throw LaunchError(kHostsFailedExit, concat("the job at ", host_and_port(node.host, node.port), " is '", job_id,
                                             "', and this host was started with --job-id ", node.job_id));
}

}  // namespace

ElasticEntry enter_elastic_job(const NodeOptions& node, const std::string& secret, int ranks, SignalQueue& signals) {
  ElasticEntry entry{.store = connect(node, secret, signals)};
  require_same_version(node, entry.store->get(kVersionKey));
  entry.job_id = entry.store->get(kIdKey);
  require_same_job(node, entry.job_id);
  entry.run_id = entry.store->compare_set(kRunKey, "", random_job_id());
  entry.first_rank = static_cast<int>(entry.store->add(kNextRankKey, ranks)) - ranks;
  return entry;
}

}  // namespace gradwire::launch
