// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/elastic_server.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "gradwire/base/address.h"
#include "gradwire/base/deadline.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/job_store.h"
#include "gradwire/membership/records.h"
#include "launch/elastic_keys.h"
#include "launch/rank_environment.h"
#include "launch/store_access.h"

namespace gradwire::launch {
namespace {

constexpr Milliseconds kMoment{50};
// How long the hosts have to leave once the job has ended; less with a short heartbeat timeout.
constexpr Milliseconds kHostsLeaveTime{10000};

std::string address_of(const NodeOptions& node) { return host_and_port(node.host, node.port); }

std::shared_ptr<Store> serve(const NodeOptions& node, const std::string& secret,
                             const std::map<std::string, std::string>& contents) {
  TcpStoreOptions options{
      .host = node.host, .port = node.port, .is_server = true, .timeout = node.heartbeat_timeout, .secret = secret};
  for (const auto& [key, value] : contents) options.contents[membership::key_in_whole(key)] = value;
  // Before anybody can ask.
  options.contents[membership::key_in_whole(membership::kStoreKey)] = random_job_id();
  return membership::job_part(
      serve_store(options, [](Milliseconds time) { std::this_thread::sleep_for(time); },
                  {.not_served = {concat("the store of the elastic job cannot be served at ", address_of(node)),
                                  "; does another job, or an earlier one, serve this address?"},
                   .unreachable = {concat("this host does not reach itself at ", address_of(node)),
                                   "; the address must be one of this host's own"}}));
}

}  // namespace

ElasticServer::ElasticServer(const NodeOptions& node, const std::string& secret, int next_rank,
                             const std::map<std::string, std::string>& contents)
    : node_(node),
      store_(serve(node, secret, contents)),
      job_id_(job_id_or_random(node.job_id)),
      run_id_(random_job_id()),
      hosts_(store_) {
  store_->set(kIdKey, job_id_);
  // A job that goes on from its journal is the run that its hosts know, and tell (JoinedHost::talk_to_the_store()).
  if (contents.empty()) store_->set(kRunKey, run_id_);
  store_->set(kNextRankKey, std::to_string(next_rank));
  store_->set(kVersionKey, GRADWIRE_VERSION);
}

std::string ElasticServer::address() const { return address_of(node_); }

std::string ElasticServer::place() const { return membership::job_place(node_.host, node_.port); }

bool ElasticServer::has_hosts() noexcept {
  try {
    return hosts_.present(node_.heartbeat_timeout) > 0;
  } catch (const std::exception&) {
    return false;  // the store is this process's own, so there is nobody left to serve
  }
}

void ElasticServer::end(const std::string& why) noexcept {
  try {
    store_->set(membership::kEndedKey, why);
  } catch (const std::exception&) {
    // The hosts notice that the store is gone.
  }
}

void ElasticServer::wait_for_hosts(SignalQueue& signals) noexcept {
  const Deadline patience = Deadline::after(std::min(node_.heartbeat_timeout, kHostsLeaveTime));
  while (has_hosts() && !patience.expired() && !signals.next_that_ends()) std::this_thread::sleep_for(kMoment);
}

std::string join_command(const std::string& address, const std::string& secret) {
  return concat("gradwire-run --join ", address, secret.empty() ? "" : " --secret-file FILE", " -n N PROGRAM");
}

}  // namespace gradwire::launch
