// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a host comes into an elastic job that another host's launcher holds.
#pragma once

#include <memory>
#include <string>

#include "gradwire/store/store.h"
#include "launch/options.h"
#include "launch/signals.h"

namespace gradwire::launch {

// What a host gets as it enters a job.
struct ElasticEntry {
  std::shared_ptr<Store> store;  // the job's part of it
  std::string job_id = {};       // ElasticServer::job_id()
  std::string run_id = {};       // ElasticServer::run_id()
  int first_rank = 0;  // the number of the host's first rank: those of all launchers have numbers of their own
};

// Enters the job at the address of `node` with `ranks` ranks; tries for its rendezvous_timeout. Throws LaunchError:
// nobody answers there, the secret is wrong, the job runs another version of gradwire or has another id than `node`, no
// elastic job is there, a signal came. Throws what the store throws.
ElasticEntry enter_elastic_job(const NodeOptions& node, const std::string& secret, int ranks, SignalQueue& signals);

}  // namespace gradwire::launch
