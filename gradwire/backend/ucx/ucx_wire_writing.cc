// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The notes that go: straight from the user's buffer where UCX takes them at once, else from a copy.
#include <algorithm>
#include <new>

#include "gradwire/backend/ucx/ucx_wire_internal.h"
#include "gradwire/base/strings.h"

namespace gradwire::ucx {
namespace {

// Of a message that goes in pieces. Measured: with notes of 128 KiB and more 1 MiB takes 1.8 times as long.
constexpr std::size_t kLargestPiece = (std::size_t{64} << 10) - 512;
constexpr std::size_t kWindow = 8;  // notes to one peer of which UCX has copies at a time

}  // namespace

using messages::Frame;

// Says a first word once UCX's connection is there, and nothing before. What UCX 1.13 has to send to a peer while it
// connects goes behind a message of its own; where the peer dies just then, UCX ends this process (an assertion on
// wireup_ep->pending_count). A second word takes another way through UCX, on which the message of its own goes at once.
// The peer's UCX answers that message, and the answer must not wait for a connection that the peer still makes: where
// this rank dies just then, UCX ends the peer (an assertion in ucp_request_send_state_ff()). So the second word comes
// when the peer has been heard of, and frames follow the second word.
// Returns whether anything was said.
bool UcxWire::open(std::size_t index) {
  Peer& to = peers_[index];
  bool said = false;
  if (to.opening == Opening::connecting) {
    const ucs_status_t status = to.endpoint.send_at_once(next_envelope(to, Note::beat, {}), {});
    if (status == UCS_ERR_NO_RESOURCE) {
      if (to.open_by.expired()) {
        // A transport that sends nothing so long at once: what follows goes the usual way.
        to.opening = Opening::open;
        moved_ = true;
      }
      return false;
    }
    note_sent(index, status);
    if (!to.why_lost.empty()) return false;
    to.opening = Opening::greeted;
    said = moved_ = true;
  }
  if (!to.here) return said;
  to.opening = Opening::open;
  moved_ = true;
  to.beat_due = !send_copy(index, next_envelope(to, Note::beat, {}), {}, UCP_OP_ATTR_FLAG_NO_IMM_CMPL);
  return true;
}

std::size_t UcxWire::max_payload() const noexcept { return kLargestPiece - sizeof(Envelope); }

bool UcxWire::write(int destination, const Frame& frame, std::span<const std::byte> payload) {
  const MutexLock lock(mutex_);
  const std::size_t index = static_cast<std::size_t>(destination);
  Peer& to = peers_[index];
  if (worker_ == nullptr || to.is_gone()) return true;
  try {
    if (destination != rank_) {
      if (!to.endpoint.exists()) connect(index);
      if (to.is_gone()) return true;
      if (to.opening != Opening::open || copies_.under_way_to(index) >= kWindow) return false;
      return send(index, Note::frame, frame, payload);
    }
    if (local_.size() >= kWindow) return false;
    local_.add(frame, payload);
    return true;
  } catch (const std::bad_alloc&) {
    return false;  // tried again later
  }
}

Envelope UcxWire::next_envelope(const Peer& to, Note note, const Frame& frame) const {
  return {to.options.sends, to.sent, static_cast<std::uint32_t>(rank_), note, frame};
}

// Throws std::bad_alloc.
bool UcxWire::send(std::size_t index, Note note, const Frame& frame, std::span<const std::byte> payload) {
  Peer& to = peers_[index];
  const Envelope envelope = next_envelope(to, note, frame);
  if (copies_.under_way_to(index) == 0) {
    const ucs_status_t status = to.endpoint.send_at_once(envelope, payload);
    if (status != UCS_ERR_NO_RESOURCE) {
      to.longest_at_once = std::max(to.longest_at_once, payload.size());
      return note_sent(index, status);
    }
    if (payload.size() <= to.longest_at_once) return false;  // there is no room just now
  }
  return send_copy(index, envelope, payload, 0);
}

// `flags` are UCP_OP_ATTR_FLAG_*. Throws std::bad_alloc.
bool UcxWire::send_copy(std::size_t index, const Envelope& envelope, std::span<const std::byte> payload,
                        std::uint32_t flags) {
  return note_sent(index, copies_.send(peers_[index].endpoint.get(), index, envelope, payload, flags));
}

bool UcxWire::note_sent(std::size_t index, ucs_status_t status) {
  if (status == UCS_ERR_NO_MEMORY) return false;
  if (status != UCS_OK) {
    lose(index, concat("its connection failed (", ucs_status_string(status), ")"));
    return true;
  }
  ++peers_[index].sent;
  if (liveness_) liveness_->wrote(index);
  return true;
}

// What is to be said beside frames. It may pass the window, as there is little of it.
bool UcxWire::send_dues() {
  bool said = false;
  for (std::size_t index = 0; index < peers_.size(); ++index) {
    Peer& to = peers_[index];
    if (!to.endpoint.exists() || !to.why_lost.empty()) continue;
    try {
      if (to.opening != Opening::open) {
        if (open(index)) said = true;
        // What comes of a greeted peer has this looked for again.
        if (to.opening == Opening::connecting) attention_ = true;
        if (to.opening != Opening::open) continue;
      }
      if (to.beat_due && give_sign_of_life(index, Note::beat)) to.beat_due = false, said = true;
      if (to.ping_due && give_sign_of_life(index, Note::ping)) to.ping_due = false, said = true;
      if (to.answer_due && send(index, Note::goodbye_seen, {}, {})) to.answer_due = false, said = true;
      if (tell_loss(index)) said = true;
      if (to.goodbye_due && send(index, Note::goodbye, {}, {})) to.goodbye_due = false, said = true;
    } catch (const std::bad_alloc&) {  // it stays due
    }
    if (to.beat_due || to.ping_due || to.answer_due || to.goodbye_due ||
        (to.is_partner && losses_.next_for(index) != nullptr)) {
      attention_ = true;
    }
  }
  return said;
}

// A beat is of no use to a peer that takes nothing: what is under way is a sign of life, too.
bool UcxWire::give_sign_of_life(std::size_t index, Note note) {
  return copies_.under_way_to(index) > 0 || send(index, note, {}, {});
}

// A partner that takes nothing is not told more.
bool UcxWire::tell_loss(std::size_t index) {
  const LossNews::Loss* const loss = losses_.next_for(index);
  if (!peers_[index].is_partner || loss == nullptr || copies_.under_way_to(index) >= 2 * kWindow) return false;
  Frame frame;
  frame.id = loss->lost;
  frame.bytes = loss->why.size();
  if (!send(index, Note::lost, frame, std::as_bytes(std::span(loss->why)))) return false;
  losses_.told(index);
  return true;
}

bool UcxWire::idle() const {
  const MutexLock lock(mutex_);
  return copies_.empty() && local_.empty();
}

void UcxWire::say_goodbye() {
  const MutexLock lock(mutex_);
  is_leaving_ = true;
  for (Peer& to : peers_) to.goodbye_due = to.endpoint.exists() && !to.is_gone();
  send_dues();
  attention_ = true;
}

bool UcxWire::may_go() {
  const MutexLock lock(mutex_);
  bool may = true;
  for (std::size_t index = 0; index < peers_.size(); ++index) {
    const Peer& each = peers_[index];
    if (!each.endpoint.exists() || each.has_all || (each.is_gone() && !each.answer_due)) continue;
    may = false;
    await(index);
  }
  return may;
}

}  // namespace gradwire::ucx
