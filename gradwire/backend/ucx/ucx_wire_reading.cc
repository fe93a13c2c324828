// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The notes that come, and the peers that go. Bytes of a stranger are dropped; what bears a peer's token and makes no
// sense is a bug, and breaks the wire.
#include <algorithm>
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
  const bool local = hand_on_local(sink);
  const bool held = hand_on_held(sink);
  // While the sink refuses frames nothing more is taken, so that the peers are held up. They hear of this rank still.
  if (held_ > 0) return look_after_peers() || held || local;
  return progress(&sink) || held || local;
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
  if (is_gone(from) || envelope.number < from.received) return;
  moved_ = true;
  if (!std::exchange(from.here, true)) attention_ = true;
  if (from.endpoint == nullptr) from.connect_due = attention_ = true;
  if (liveness_) liveness_->heard(envelope.source);
  if (envelope.number > from.received) {
    from.early.try_emplace(envelope.number, Kept{envelope, {payload.begin(), payload.end()}});
    return;
  }
  take(from, envelope, payload);
  while (!from.early.empty() && from.early.begin()->first == from.received) {
    const Kept next = std::move(from.early.begin()->second);
    from.early.erase(from.early.begin());
    take(from, next.envelope, next.payload);
  }
}

void UcxWire::take(Peer& from, const Envelope& envelope, std::span<const std::byte> payload) {
  ++from.received;
  switch (envelope.note) {
    case Note::frame:
      if (messages::payload_bytes(envelope.frame) != payload.size()) break;
      return take_frame(from, envelope.frame, payload);
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
      return take_loss(from, envelope.frame, payload);
  }
  throw InternalError(concat("backend ucx: a frame of rank ", envelope.source, " makes no sense"));
}

// What is said of this rank itself comes too late, or is wrong.
void UcxWire::take_loss(const Peer& from, const messages::Frame& frame, std::span<const std::byte> payload) {
  const std::size_t index = frame.id;
  if (index >= peers_.size() || index == static_cast<std::size_t>(rank_)) return;
  std::string why(reinterpret_cast<const char*>(payload.data()), payload.size());
  constexpr std::string_view kSaid = "as rank ";
  if (!why.starts_with(kSaid)) why = concat(kSaid, &from - peers_.data(), " found, ", why);
  Peer& lost = peers_[index];
  if (lost.left) return;
  pass_on(lost, why);
  if (std::exchange(lost.is_refused, false)) lost.why_lost.clear();  // it had not left
  lose(lost, std::move(why));
}

void UcxWire::take_frame(Peer& from, const messages::Frame& frame, std::span<const std::byte> payload) {
  const int rank = static_cast<int>(&from - peers_.data());
  if (sink_ != nullptr && from.held.empty() && sink_->on_frame(rank, frame, {payload, {}})) return;
  from.held.push_back({{.frame = frame}, {payload.begin(), payload.end()}});
  ++held_;
}

bool UcxWire::hand_on_held(FrameSink& sink) {
  if (held_ == 0) return false;
  bool moved = false;
  for (std::size_t index = 0; index < peers_.size(); ++index) {
    std::list<Kept>& held = peers_[index].held;
    while (!held.empty() &&
           sink.on_frame(static_cast<int>(index), held.front().envelope.frame, {held.front().payload, {}})) {
      held.pop_front();
      --held_;
      moved = true;
    }
  }
  return moved;
}

bool UcxWire::hand_on_local(FrameSink& sink) {
  bool moved = false;
  while (!local_.empty() && sink.on_frame(rank_, local_.front().envelope.frame, {local_.front().payload, {}})) {
    local_.pop_front();
    moved = true;
  }
  return moved;
}

// --- peers that go -------------------------------------------------------------------------------------------------

// May be called by UCX on a thread of its own.
void UcxWire::on_failure(void* argument, ucp_ep_h, ucs_status_t status) {
  Peer& of = *static_cast<Peer*>(argument);
  of.failure.store(status, std::memory_order_release);
  of.wire->attention_.store(true, std::memory_order_release);
}

void UcxWire::lose(Peer& lost, std::string why) {
  if (is_gone(lost)) return;
  lost.why_lost = std::move(why);
  moved_ = attention_ = lost_some_ = true;
  if (lost.is_partner) pass_on(lost, lost.why_lost);
}

void UcxWire::pass_on(Peer& lost, const std::string& why) {
  if (losses_.add(static_cast<std::size_t>(&lost - peers_.data()), why)) attention_ = true;
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
    if (held_ > 0 || (peers_[index].is_partner && !peers_[index].here)) continue;
    lose(peers_[index], concat("nothing has been heard of it for ", silence_.count(), " ms"));
  }
}

bool UcxWire::look_after_peers() {
  if (liveness_ && Liveness::Clock::now() >= liveness_->next_tick()) look_for_silence();
  std::erase_if(closing_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
  if (!attention_.exchange(false)) return false;
  for (Peer& each : peers_) {
    if (std::exchange(each.connect_due, false) && each.endpoint == nullptr && !is_gone(each)) {
      connect(static_cast<std::size_t>(&each - peers_.data()));
    }
    const int failure = each.failure.load(std::memory_order_acquire);
    if (failure != UCS_OK) {
      if (!is_gone(each)) each.is_refused = !each.is_partner && !each.here;
      const char* const status = ucs_status_string(static_cast<ucs_status_t>(failure));
      lose(each, each.here ? concat("its connection was closed (", status, ")")
                           : concat("it took no connection (", status, "): it has ended, or there is no way to it ",
                                    "from this host (look at GRADWIRE_INTERFACE)"));
      each.answer_due = each.goodbye_due = false;  // there is nobody to hear it
    }
    if (!each.why_lost.empty() || failure != UCS_OK) close_endpoint(each);
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
  liveness_.emplace(peers_.size(), std::move(watched), silence_, Liveness::Clock::now());
}

void UcxWire::close_door() {
  const MutexLock lock(mutex_);
  if (worker_ != nullptr) worker_->close_door();
}

std::optional<UcxWire::Absence> UcxWire::absence(int rank) const {
  const MutexLock lock(mutex_);
  return absence(peers_[static_cast<std::size_t>(rank)]);
}

std::optional<UcxWire::Absence> UcxWire::absence_of_awaited(int rank) {
  const MutexLock lock(mutex_);
  await(static_cast<std::size_t>(rank));
  return absence(peer(rank));
}

void UcxWire::await(std::size_t index) {
  const Peer& of = peers_[index];
  if (of.is_partner || of.endpoint == nullptr || !liveness_) return;
  liveness_->await(index, Liveness::Clock::now());
}

std::optional<UcxWire::Absence> UcxWire::absence(const Peer& of) const {
  if (!of.held.empty() || !is_gone(of)) return std::nullopt;
  return Absence{of.left || of.is_refused, of.why_lost, of.options.host};
}

}  // namespace gradwire::ucx
