// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A client's connection to a TcpStore's server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/base/wait_report.h"
#include "gradwire/store/tcp_store_protocol_internal.h"

namespace gradwire::store_internal {

// One connection, one request at a time. Not thread-safe. After an exception the connection cannot be used again.
class TcpStoreConnection final {
 public:
  enum class Retry { yes, no };

  // Connects and exchanges hellos, and proofs of the shared `secret` unless it is empty. Retry::yes tries again, with
  // growing pauses, while no program listens there. Throws TimeoutError at `deadline`; StoreError when the other side
  // is no server of this version, when the secrets differ or, with Retry::no, when no program listens.
  // With Retry::yes it reports that it waits, as `reports` says.
  TcpStoreConnection(const std::string& host, std::uint16_t port, const std::string& secret, Deadline deadline,
                     Retry retry, WaitReport::Periods reports = {});
  ~TcpStoreConnection();
  TcpStoreConnection(const TcpStoreConnection&) = delete;
  TcpStoreConnection& operator=(const TcpStoreConnection&) = delete;

  // Sends a request and waits for its reply. Throws StoreError as soon as the connection breaks, TimeoutError at
  // `deadline`.
  Reply exchange(const Request& request, Deadline deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire::store_internal
