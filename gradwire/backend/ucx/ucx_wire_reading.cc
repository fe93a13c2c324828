// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The notes that come, and the peers that go. Bytes of a stranger are dropped; what bears a peer's token and makes no
// sense is a bug, and breaks the wire.
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "gradwire/backend/ucx/ucx_wire_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"

namespace gradwire::ucx {

using messages::FrameSink;

bool UcxWire::read(FrameSink& sink) {
  const MutexLock lock(mutex_);
  if (worker_ == nullptr) return false;
  bool handed_on = false;
  while (local_.hand_on_first(rank_, sink)) handed_on = true;
  if (held_.hand_on(sink)) handed_on = true;
  // While the sink refuses frames nothing more is taken, so that the peers are held up. They hear of this rank still.
  return (held_.empty() ? progress(&sink) : look_after_peers()) || handed_on;
}

bool UcxWire::advance() {
  const MutexLock lock(mutex_);
  return worker_ != nullptr && progress(nullptr);
}

bool UcxWire::progress(FrameSink* sink) {
  moved_ = false;
  const std::uint64_t given_back = copies_.given_back();
  sink_ = sink;
  const bool worked = ucp_worker_progress(worker_->get()) != 0;
  sink_ = nullptr;
  if (error_ != nullptr) std::rethrow_exception(error_);
  const bool peers_moved = look_after_peers();
  return worked || moved_ || peers_moved || copies_.given_back() != given_back;
}

// Called by UCX in ucp_worker_progress(), under the lock. No exception may pass through UCX.
ucs_status_t UcxWire::on_active_message(void* argument, const void* header, std::size_t header_bytes, void* data,
                                        std::size_t bytes,
                                        const ucp_am_recv_param_t* param) GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
  UcxWire& wire = *static_cast<UcxWire*>(argument);
  // gradwire asks for no rendezvous.
  if (wire.error_ != nullptr || header_bytes != sizeof(Envelope)) return UCS_OK;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
  Envelope envelope;
  std::memcpy(&envelope, header, sizeof(envelope));
  try {
    wire.arrive(envelope, {static_cast<const std::byte*>(data), bytes});
  } catch (const std::bad_alloc&) {
    wire.error_ = std::make_exception_ptr(ResourceError("backend ucx: no memory for a frame that has come"));
  } catch (...) {
    wire.error_ = std::current_exception();
  }
  return UCS_OK;
}

void UcxWire::arrive(const Envelope& envelope, std::span<const std::byte> payload) {
  const bool is_known = envelope.source < peers_.size() && envelope.source != static_cast<std::uint32_t>(rank_) &&
                        !peers_[envelope.source].options.address.empty();  // else it has no token yet
  if (!is_known || !same_token(envelope.token, peers_[envelope.source].options.receives)) {
    log::info("ucx: dropped what came without a token of this group");
    return;
  }
  Peer& from = peers_[envelope.source];
  if (from.is_gone() || from.order.is_past(envelope.number)) return;
  moved_ = true;
  if (!std::exchange(from.here, true)) attention_ = true;
  if (!from.endpoint.exists()) from.connect_due = attention_ = true;
  if (liveness_) liveness_->heard(envelope.source);
  if (!from.order.take_turn(envelope, payload)) return;
  take(envelope.source, envelope, payload);
  while (const auto next = from.order.take_next()) take(envelope.source, next->envelope, next->payload);
}

void UcxWire::take(std::size_t index, const Envelope& envelope, std::span<const std::byte> payload) {
  Peer& from = peers_[index];
  switch (envelope.note) {
    case Note::frame:
      if (messages::payload_bytes(envelope.frame) != payload.size()) break;
      return take_frame(index, envelope.frame, payload);
    case Note::beat:
      return;
    case Note::ping:
      from.beat_due = attention_ = true;
      return;
    case Note::goodbye:
      from.left = from.answer_due = attention_ = true;
      return;
    case Note::goodbye_seen:
      from.has_all = true;
      return;
    case Note::lost:
      if (envelope.frame.bytes != payload.size()) break;
      return take_loss(index, envelope.frame, payload);
  }
  throw InternalError(concat("backend ucx: a frame of rank ", envelope.source, " makes no sense"));
}

// What is said of this rank itself comes too late, or is wrong.
void UcxWire::take_loss(std::size_t teller, const messages::Frame& frame, std::span<const std::byte> payload) {
  const std::size_t index = frame.id;
  if (index >= peers_.size() || index == static_cast<std::size_t>(rank_)) return;
  std::string why(reinterpret_cast<const char*>(payload.data()), payload.size());
  constexpr std::string_view kSaid = "as rank ";
  if (!why.starts_with(kSaid)) why = concat(kSaid, teller, " found, ", why);
  Peer& lost = peers_[index];
  if (lost.left) return;
  if (losses_.add(index, why)) attention_ = true;
  if (std::exchange(lost.is_refused, false)) lost.why_lost.clear();  // it had not left
  lose(index, std::move(why));
}

void UcxWire::take_frame(std::size_t index, const messages::Frame& frame, std::span<const std::byte> payload) {
  const bool taken =
      sink_ != nullptr && !held_.has_of(index) && sink_->on_frame(static_cast<int>(index), frame, {payload, {}});
  if (!taken) held_.add(index, frame, payload);
}

// --- peers that go -------------------------------------------------------------------------------------------------

void UcxWire::lose(std::size_t index, std::string why) {
  Peer& lost = peers_[index];
  if (lost.is_gone()) return;
  lost.why_lost = std::move(why);
  moved_ = attention_ = lost_some_ = true;
  if (lost.is_partner) losses_.add(index, lost.why_lost);
}

void UcxWire::look_for_silence() {
  const Liveness::Findings findings = liveness_->tick(Liveness::Clock::now());
  for (const std::size_t index : findings.to_beat) {
    if (peers_[index].is_partner) peers_[index].beat_due = attention_ = true;
  }
  for (const std::size_t index : findings.unheard) {
    if (!peers_[index].is_partner) peers_[index].ping_due = attention_ = true;
  }
  for (const std::size_t index : findings.silent) {
    // Frames that nobody here takes may be followed by signs of life that were not read. A partner that has not been
    // heard of may not have begun.
    if (!held_.empty() || (peers_[index].is_partner && !peers_[index].here)) continue;
    lose(index, concat("nothing has been heard of it for ", silence_.count(), " ms"));
  }
}

bool UcxWire::look_after_peers() {
  if (liveness_ && Liveness::Clock::now() >= liveness_->next_tick()) look_for_silence();
  closing_.sweep();
  if (!attention_.exchange(false)) return false;
  for (std::size_t index = 0; index < peers_.size(); ++index) {
    Peer& each = peers_[index];
    if (std::exchange(each.connect_due, false) && !each.endpoint.exists() && !each.is_gone()) connect(index);
    const ucs_status_t failure = each.endpoint.failure();
    if (failure != UCS_OK) {
      if (!each.is_gone()) each.is_refused = !each.is_partner && !each.here;
      const char* const status = ucs_status_string(failure);
      lose(index, each.here ? concat("its connection was closed (", status, ")")
                            : concat("it took no connection (", status, "): it has ended, or there is no way to it ",
                                     "from this host (look at GRADWIRE_INTERFACE)"));
      each.answer_due = each.goodbye_due = false;  // there is nobody to hear it
    }
    if (!each.why_lost.empty() || failure != UCS_OK) close_endpoint(index);
  }
  return send_dues();
}

std::vector<int> UcxWire::unheard() const {
  const MutexLock lock(mutex_);
  std::vector<int> ranks;
  for (std::size_t index = 0; index < peers_.size(); ++index) {
    if (peers_[index].is_partner && !peers_[index].here) ranks.push_back(static_cast<int>(index));
  }
  return ranks;
}

void UcxWire::watch() {
  const MutexLock lock(mutex_);
  std::vector<std::size_t> watched;
  for (std::size_t index = 0; index < peers_.size(); ++index) {
    if (peers_[index].is_partner) watched.push_back(index);
  }
  liveness_.emplace(peers_.size(), std::move(watched), Liveness::Times{silence_, shortest_silence_},
                    Liveness::Clock::now());
}

void UcxWire::close_door() {
  const MutexLock lock(mutex_);
  if (worker_ != nullptr) worker_->close_door();
}

std::optional<UcxWire::Absence> UcxWire::absence(int rank) const {
  const MutexLock lock(mutex_);
  return absence_of(static_cast<std::size_t>(rank));
}

std::optional<UcxWire::Absence> UcxWire::absence_of_awaited(int rank) {
  const MutexLock lock(mutex_);
  await(static_cast<std::size_t>(rank));
  return absence_of(static_cast<std::size_t>(rank));
}

void UcxWire::await(std::size_t index) {
  const Peer& of = peers_[index];
  if (of.is_partner || !of.endpoint.exists() || !liveness_) return;
  liveness_->await(index, Liveness::Clock::now());
}

std::optional<UcxWire::Absence> UcxWire::absence_of(std::size_t index) const {
  const Peer& of = peers_[index];
  if (held_.has_of(index) || !of.is_gone()) return std::nullopt;
  return Absence{of.left || of.is_refused, of.why_lost, of.options.host};
}

}  // namespace gradwire::ucx
