// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What UCX has of a connection with one peer.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "gradwire/backend/ucx/note_internal.h"

namespace gradwire::ucx {

// This rank's end of the connection. UCX knows its place from connect() on, for as long as the worker lives. Used by
// one thread at a time, but for UCX's own threads, which may find the connection broken.
class Endpoint {
 public:
  // Begins to connect, and does not block. When UCX finds the connection broken, `attention` is set, and then failure()
  // says why. Called once.
  ucs_status_t connect(ucp_worker_h worker, const std::string& address, std::atomic<bool>& attention);
  // Whether connect() has succeeded and close() has not been called.
  bool exists() const noexcept { return endpoint_ != nullptr; }
  ucp_ep_h get() const noexcept { return endpoint_; }
  // UCX takes the note now and needs neither memory any more, or does not take it (UCS_ERR_NO_RESOURCE).
  ucs_status_t send_at_once(const Envelope& envelope, std::span<const std::byte> payload) const;
  // UCS_OK while UCX has found nothing wrong. Says the same after close().
  ucs_status_t failure() const noexcept { return failure_.load(std::memory_order_acquire); }
  // Drops what is under way. Returns UCX's request for ClosingEndpoints; null: there is nothing to wait for.
  void* close() noexcept;

 private:
  static void on_failure(void* self, ucp_ep_h endpoint, ucs_status_t status);

  ucp_ep_h endpoint_ = nullptr;
  std::atomic<ucs_status_t> failure_{UCS_OK};
  std::atomic<bool>* attention_ = nullptr;
};

// The endpoints that UCX has not closed yet. Used by one thread at a time.
class ClosingEndpoints {
 public:
  // After this add() has the memory for so many more.
  void reserve(std::size_t more) { requests_.reserve(requests_.size() + more); }
  // `request`: what Endpoint::close() returned.
  void add(void* request) {
    if (request != nullptr) requests_.push_back(request);
  }
  // Releases those that are closed.
  void sweep() noexcept;
  // Moves the worker until all are closed. UCX ends what it has of a closed endpoint by itself; no peer is asked.
  void finish(ucp_worker_h worker) noexcept;

 private:
  std::vector<void*> requests_;  // UCX's
};

}  // namespace gradwire::ucx
