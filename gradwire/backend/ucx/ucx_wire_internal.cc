// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The wire itself and the notes that go. Those that come are in ucx_wire_reading.cc.
#include "gradwire/backend/ucx/ucx_wire_internal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <new>
#include <type_traits>
#include <utility>

#include "gradwire/backend/ucx/active_message_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::ucx {
namespace {

using messages::Frame;

// Of a message that goes in pieces. Measured: with notes of 128 KiB and more 1 MiB takes 1.8 times as long.
constexpr std::size_t kLargestPiece = (std::size_t{64} << 10) - 512;
constexpr std::size_t kWindow = 8;  // notes to one peer of which UCX has copies at a time
constexpr std::size_t kSpareSendings = 64;
constexpr Milliseconds kOpening{1000};  // see open()

UniqueFd make_event() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) throw ResourceError(concat("backend ucx: no eventfd: ", std::strerror(errno)));
  return event;
}

// UCX takes the note now and needs neither memory any more (null), or does not take it (UCS_ERR_NO_RESOURCE).
void* send_at_once(ucp_ep_h endpoint, const auto& envelope, std::span<const std::byte> payload) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
  return ucp_am_send_nbx(endpoint, kActiveMessage, &envelope, sizeof(envelope), payload.data(), payload.size(), &param);
}

}  // namespace

UcxWire::UcxWire(std::unique_ptr<Worker> worker, Options options)
    : rank_(options.rank),
      silence_(options.silence),
      wake_(make_event()),
      worker_(std::move(worker)),
      peers_(options.peers.size()),
      is_full_mesh_(options.partners.empty()) {
  static_assert(std::is_trivially_copyable_v<Envelope>);
  const MutexLock lock(mutex_);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kActiveMessage;
  handler.cb = &UcxWire::on_active_message;
  handler.arg = this;
  require_ok(ucp_worker_set_am_recv_handler(worker_->get(), &handler), "ucp_worker_set_am_recv_handler");
  for (std::size_t index = 0; index < peers_.size(); ++index) {
    peers_[index].wire = this;
    peers_[index].options = std::move(options.peers[index]);
    peers_[index].is_partner = is_full_mesh_ && index != static_cast<std::size_t>(rank_);
  }
  for (const int partner : options.partners) peer(partner).is_partner = true;
  for (std::size_t index = 0; index < peers_.size(); ++index) {
    if (peers_[index].is_partner) connect(index);
  }
}

UcxWire::~UcxWire() { close(); }

// Connects, and says a first word, by which the peer sees that this rank knows the token. A peer that cannot be reached
// at once is lost: it may be the first to have died.
void UcxWire::connect(std::size_t index) {
  Peer& to = peers_[index];
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(to.options.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxWire::on_failure;
  params.err_handler.arg = &to;
  const ucs_status_t status = ucp_ep_create(worker_->get(), &params, &to.endpoint);
  if (status != UCS_OK) {
    to.endpoint = nullptr;
    return lose(to, concat("there is no way to it from this host (", ucs_status_string(status),
                           "): look at GRADWIRE_INTERFACE"));
  }
  to.open_by = Deadline::after(kOpening);
  to.beat_due = true;
  attention_ = true;
}

// Says a first word once UCX's connection is there, and nothing before. What UCX 1.13 has to send to a peer while it
// connects goes behind a message of its own; where the peer dies just then, UCX ends this process (an assertion on
// wireup_ep->pending_count). A second word takes another way through UCX, on which the message of its own goes at once.
// Returns whether anything was said.
bool UcxWire::open(std::size_t index) {
  Peer& to = peers_[index];
  const Envelope first{to.options.sends, to.sent, static_cast<std::uint32_t>(rank_), Note::beat, {}};
  void* const request = send_at_once(to.endpoint, first, {});
  if (UCS_PTR_STATUS(request) == UCS_ERR_NO_RESOURCE) {
    if (to.open_by.expired()) {
      to.is_open = moved_ = true;  // a transport that sends nothing so long at once: what follows goes the usual way
    }
    return false;
  }
  note_sent(index, request);
  if (!to.why_lost.empty()) return false;
  to.is_open = moved_ = true;
  const Envelope second{to.options.sends, to.sent, static_cast<std::uint32_t>(rank_), Note::beat, {}};
  to.beat_due = !send_copy(index, second, {}, UCP_OP_ATTR_FLAG_NO_IMM_CMPL);
  return true;
}

void UcxWire::introduce(int rank, PeerOptions options) {
  const MutexLock lock(mutex_);
  if (peer(rank).options.address.empty()) peer(rank).options = std::move(options);
}

// Who connects hears of the peer's death, and is told when the peer ends a channel.
void UcxWire::expect(int rank) noexcept {
  if (rank == rank_) return;
  const MutexLock lock(mutex_);
  Peer& of = peer(rank);
  if (of.endpoint != nullptr || worker_ == nullptr || is_gone(of)) return;
  of.connect_due = true;
  attention_ = true;
}

bool UcxWire::is_joined(int rank) const noexcept {
  const MutexLock lock(mutex_);
  return peers_[static_cast<std::size_t>(rank)].endpoint != nullptr;
}

std::size_t UcxWire::max_payload() const noexcept { return kLargestPiece - sizeof(Envelope); }

// --- notes that go -------------------------------------------------------------------------------------------------

bool UcxWire::write(int destination, const Frame& frame, std::span<const std::byte> payload) {
  const MutexLock lock(mutex_);
  Peer& to = peer(destination);
  if (worker_ == nullptr || is_gone(to)) return true;
  try {
    if (destination != rank_) {
      if (to.endpoint == nullptr) connect(static_cast<std::size_t>(destination));
      if (is_gone(to)) return true;
      if (!to.is_open || to.in_flight >= kWindow) return false;
      return send(static_cast<std::size_t>(destination), Note::frame, frame, payload);
    }
    if (local_.size() >= kWindow) return false;
    local_.push_back({{.frame = frame}, {payload.begin(), payload.end()}});
    return true;
  } catch (const std::bad_alloc&) {
    return false;  // tried again later
  }
}

// Throws std::bad_alloc.
bool UcxWire::send(std::size_t index, Note note, const Frame& frame, std::span<const std::byte> payload) {
  Peer& to = peers_[index];
  const Envelope envelope{to.options.sends, to.sent, static_cast<std::uint32_t>(rank_), note, frame};
  if (to.in_flight == 0) {
    void* const request = send_at_once(to.endpoint, envelope, payload);
    if (UCS_PTR_STATUS(request) != UCS_ERR_NO_RESOURCE) {
      to.longest_at_once = std::max(to.longest_at_once, payload.size());
      return note_sent(index, request);
    }
    if (payload.size() <= to.longest_at_once) return false;  // there is no room just now
  }
  return send_copy(index, envelope, payload, 0);
}

// `flags` are UCP_OP_ATTR_FLAG_*. Throws std::bad_alloc.
bool UcxWire::send_copy(std::size_t index, const Envelope& envelope, std::span<const std::byte> payload,
                        std::uint32_t flags) {
  const std::size_t bytes = sizeof(envelope) + payload.size();
  Sending& sending = take_sending(bytes);
  sending.peer = index;
  std::memcpy(sending.memory.get(), &envelope, sizeof(envelope));
  if (!payload.empty()) std::memcpy(sending.memory.get() + sizeof(envelope), payload.data(), payload.size());
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | flags;
  param.cb.send = &UcxWire::on_sent;
  param.user_data = &sending;
  void* const request = ucp_am_send_nbx(peers_[index].endpoint, kActiveMessage, sending.memory.get(), sizeof(envelope),
                                        sending.memory.get() + sizeof(envelope), payload.size(), &param);
  const bool keeps = UCS_PTR_IS_PTR(request);
  if (!keeps) give_back(sending);
  if (keeps) ++peers_[index].in_flight;
  return note_sent(index, request);
}

bool UcxWire::note_sent(std::size_t index, void* sent) {
  Peer& to = peers_[index];
  const ucs_status_t status = UCS_PTR_IS_ERR(sent) ? UCS_PTR_STATUS(sent) : UCS_OK;
  if (status == UCS_ERR_NO_MEMORY) return false;
  if (status != UCS_OK) {
    lose(to, concat("its connection failed (", ucs_status_string(status), ")"));
    return true;
  }
  ++to.sent;
  if (liveness_) liveness_->wrote(index);
  return true;
}

UcxWire::Sending& UcxWire::take_sending(std::size_t bytes) {
  if (spare_.empty()) {
    spare_.emplace_back();
    spare_.back().wire = this;
    spare_.back().place = std::prev(spare_.end());
  }
  Sending& sending = spare_.back();
  if (sending.capacity < bytes) {
    sending.capacity = 0;
    sending.memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    sending.capacity = bytes;
  }
  under_way_.splice(under_way_.end(), spare_, sending.place);
  return sending;
}

void UcxWire::give_back(Sending& sending) noexcept {
  if (spare_.size() < kSpareSendings) {
    spare_.splice(spare_.end(), under_way_, sending.place);
  } else {
    under_way_.erase(sending.place);
  }
}

// Called by UCX in a call of this wire, which holds the lock.
void UcxWire::on_sent(void* request, ucs_status_t, void* argument) GRADWIRE_NO_THREAD_SAFETY_ANALYSIS {
  Sending& sending = *static_cast<Sending*>(argument);
  UcxWire& wire = *sending.wire;
  --wire.peers_[sending.peer].in_flight;
  wire.moved_ = true;  // there is room again
  wire.give_back(sending);
  ucp_request_free(request);
}

// What is to be said beside frames. It may pass the window, as there is little of it.
bool UcxWire::send_dues() {
  bool said = false;
  for (std::size_t index = 0; index < peers_.size(); ++index) {
    Peer& to = peers_[index];
    if (to.endpoint == nullptr || !to.why_lost.empty()) continue;
    try {
      if (!to.is_open) {
        if (open(index)) said = true;
        if (!to.is_open) {
          attention_ = true;
          continue;
        }
      }
      // A beat is of no use to a peer that takes nothing: what is in flight is a sign of life, too.
      if (to.beat_due && (to.in_flight > 0 || send(index, Note::beat, {}, {}))) to.beat_due = false, said = true;
      if (to.answer_due && send(index, Note::goodbye_seen, {}, {})) to.answer_due = false, said = true;
      if (tell_losses(index)) said = true;
      if (to.goodbye_due && send(index, Note::goodbye, {}, {})) to.goodbye_due = false, said = true;
    } catch (const std::bad_alloc&) {  // it stays due
    }
    if (to.beat_due || to.answer_due || to.goodbye_due || (to.is_partner && to.reported < losses_.size())) {
      attention_ = true;
    }
  }
  return said;
}

// A partner that takes nothing is not told more.
bool UcxWire::tell_losses(std::size_t index) {
  Peer& to = peers_[index];
  if (!to.is_partner || to.reported == losses_.size() || to.in_flight >= 2 * kWindow) return false;
  const LostPeer& loss = losses_[to.reported];
  Frame frame;
  frame.id = loss.index;
  frame.bytes = loss.why.size();
  if (!send(index, Note::lost, frame, std::as_bytes(std::span(loss.why)))) return false;
  ++to.reported;
  return true;
}

bool UcxWire::idle() const {
  const MutexLock lock(mutex_);
  return under_way_.empty() && local_.empty();
}

void UcxWire::say_goodbye() {
  const MutexLock lock(mutex_);
  for (Peer& to : peers_) to.goodbye_due = to.endpoint != nullptr && !is_gone(to);
  send_dues();
  attention_ = true;
}

bool UcxWire::may_go() const {
  const MutexLock lock(mutex_);
  return std::all_of(peers_.begin(), peers_.end(), [this](const Peer& each) {
    return each.endpoint == nullptr || each.has_all || (is_gone(each) && !each.answer_due);
  });
}

// --- waiting -------------------------------------------------------------------------------------------------------

void UcxWire::sleep(std::uint32_t seen, std::chrono::microseconds limit) noexcept {
  pollfd events[2] = {{wake_.get(), POLLIN, 0}, {-1, POLLIN, 0}};
  {
    const MutexLock lock(mutex_);
    if (bell_.load(std::memory_order_seq_cst) != seen) return;
    // With frames that nobody takes, what comes is left where it is.
    if (worker_ != nullptr && held_ == 0) {
      if (ucp_worker_arm(worker_->get()) != UCS_OK) return;  // something has come meanwhile
      events[1].fd = worker_->event_fd();
    }
    if (liveness_) {
      const auto left = liveness_->next_tick() - Liveness::Clock::now();
      limit = std::clamp(std::chrono::ceil<std::chrono::microseconds>(left), std::chrono::microseconds(0), limit);
    }
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const std::chrono::nanoseconds rest = limit - seconds;
  const timespec timeout{static_cast<std::time_t>(seconds.count()), static_cast<long>(rest.count())};
  ::ppoll(events, 2, &timeout, nullptr);
  std::uint64_t rings = 0;
  if ((events[0].revents & POLLIN) != 0) static_cast<void>(!::read(wake_.get(), &rings, sizeof(rings)));
}

void UcxWire::wake() noexcept {
  bell_.fetch_add(1, std::memory_order_seq_cst);
  const std::uint64_t ring = 1;
  static_cast<void>(!::write(wake_.get(), &ring, sizeof(ring)));
}

// --- the end -------------------------------------------------------------------------------------------------------

void UcxWire::close_endpoint(Peer& of) noexcept {
  if (of.endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* const request = ucp_ep_close_nbx(std::exchange(of.endpoint, nullptr), &param);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) closing_.push_back(request);
}

void UcxWire::close() noexcept {
  if (!owner_.is_current()) return;
  const MutexLock lock(mutex_);
  if (worker_ == nullptr) return;
  closing_.reserve(closing_.size() + peers_.size());
  for (Peer& each : peers_) close_endpoint(each);
  // UCX ends what it has of a closed endpoint by itself; no peer is asked.
  for (void* const request : closing_) {
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker_->get());
    ucp_request_free(request);
  }
  closing_.clear();
  worker_.reset();
}

}  // namespace gradwire::ucx
