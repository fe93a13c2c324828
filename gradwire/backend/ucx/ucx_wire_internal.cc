// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The wire itself. The notes that go are in ucx_wire_writing.cc, those that come in ucx_wire_reading.cc.
#include "gradwire/backend/ucx/ucx_wire_internal.h"

#include <algorithm>
#include <utility>

#include "gradwire/backend/ucx/active_message_internal.h"
#include "gradwire/base/strings.h"

namespace gradwire::ucx {
namespace {

// See open(). Enough for a connection whose first packets are lost.
constexpr Milliseconds kOpening{5000};

}  // namespace

UcxWire::UcxWire(std::unique_ptr<Worker> worker, Options options)
    : rank_(options.rank),
      silence_(options.silence),
      shortest_silence_(options.shortest_silence.count() > 0 ? options.shortest_silence : options.silence),
      worker_(std::move(worker)),
      peers_(options.peers.size()),
      losses_(options.peers.size(), options.partners.empty()),
      copies_(options.peers.size()),
      held_(options.peers.size()) {
  const bool is_full_mesh = options.partners.empty();
  const MutexLock lock(mutex_);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kActiveMessage;
  handler.cb = &UcxWire::on_active_message;
  handler.arg = this;
  require_ok(ucp_worker_set_am_recv_handler(worker_->get(), &handler), "ucp_worker_set_am_recv_handler");
  for (std::size_t index = 0; index < peers_.size(); ++index) {
    peers_[index].options = std::move(options.peers[index]);
    peers_[index].is_partner = is_full_mesh && index != static_cast<std::size_t>(rank_);
  }
  for (const int partner : options.partners) peer(partner).is_partner = true;
  for (std::size_t index = 0; index < peers_.size(); ++index) {
    if (peers_[index].is_partner) connect(index);
  }
}

UcxWire::~UcxWire() { close(); }

// Begins to connect. The first word follows (open()), by which the peer sees that this rank knows the token.
void UcxWire::connect(std::size_t index) {
  Peer& to = peers_[index];
  const ucs_status_t status = to.endpoint.connect(worker_->get(), to.options.address, attention_);
  if (status != UCS_OK) {
    to.is_refused = !to.is_partner;
    return lose(index, concat("there is no way to it from this host (", ucs_status_string(status),
                              "): look at GRADWIRE_INTERFACE"));
  }
  to.open_by = Deadline::after(kOpening);
  to.beat_due = true;
  to.goodbye_due = is_leaving_;  // it has connected to a rank that leaves
  attention_ = true;
}

void UcxWire::introduce(int rank, PeerOptions options) {
  const MutexLock lock(mutex_);
  if (peer(rank).options.address.empty()) peer(rank).options = std::move(options);
}

Milliseconds UcxWire::silence() const {
  const MutexLock lock(mutex_);
  return silence_;
}

void UcxWire::extend_silence(Milliseconds silence) {
  const MutexLock lock(mutex_);
  silence_ = std::max(silence_, silence);
  if (liveness_) liveness_->extend_silence(silence);
}

bool UcxWire::is_partner(int rank) const noexcept {
  return rank == rank_ || peers_[static_cast<std::size_t>(rank)].is_partner;
}

bool UcxWire::is_joined(int rank) const noexcept {
  const MutexLock lock(mutex_);
  const Peer& of = peers_[static_cast<std::size_t>(rank)];
  return of.endpoint.exists() || of.connect_due;
}

// --- waiting -------------------------------------------------------------------------------------------------------

void UcxWire::sleep(std::uint32_t seen, std::chrono::microseconds limit) noexcept {
  int arrivals = -1;  // readable when something has come
  {
    const MutexLock lock(mutex_);
    if (bell_.number() != seen) return;
    // With frames that nobody takes, what comes is left where it is.
    if (worker_ != nullptr && held_.empty()) {
      if (ucp_worker_arm(worker_->get()) != UCS_OK) return;  // something has come meanwhile
      arrivals = worker_->event_fd();
    }
    if (liveness_) {
      const auto left = liveness_->next_tick() - Liveness::Clock::now();
      limit = std::clamp(std::chrono::ceil<std::chrono::microseconds>(left), std::chrono::microseconds(0), limit);
    }
  }
  bell_.wait(arrivals, limit);
}

// --- the end -------------------------------------------------------------------------------------------------------

void UcxWire::close_endpoint(std::size_t index) noexcept {
  if (liveness_) liveness_->forget(index);
  closing_.add(peers_[index].endpoint.close());
}

void UcxWire::close() noexcept {
  if (!owner_.is_current()) return;
  const MutexLock lock(mutex_);
  if (worker_ == nullptr) return;
  closing_.reserve(peers_.size());
  for (std::size_t index = 0; index < peers_.size(); ++index) close_endpoint(index);
  closing_.finish(worker_->get());
  worker_.reset();
}

}  // namespace gradwire::ucx
