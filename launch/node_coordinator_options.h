// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a launcher of a job over several hosts is told of the job.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "gradwire/base/address.h"

namespace gradwire::launch {

struct NodeCoordinatorOptions {
  int nodes = 1;
  int node = 0;
  int ranks = 1;     // of this host
  std::string host;  // where node 0 serves the store
  std::uint16_t port = 0;
  std::string job_id;  // the user's name for the job; empty: not named
  std::string secret;
  std::string version;            // gradwire's
  int max_restarts = 0;           // node 0's value counts
  std::uint16_t master_port = 0;  // node 0's value counts; 0: any free port
  bool watched = false;           // node 0's value counts; see Plan
  std::chrono::milliseconds rendezvous_timeout{};
  std::chrono::milliseconds heartbeat_timeout{};

  // "HOST:PORT" of node 0's store.
  std::string address() const { return host_and_port(host, port); }
};

}  // namespace gradwire::launch
