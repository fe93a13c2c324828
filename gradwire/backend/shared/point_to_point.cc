// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/point_to_point_internal.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "gradwire/backend/shared/futex_internal.h"
#include "gradwire/backend/shared/message_ring_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::shared {
namespace {

constexpr std::size_t kAllRings = std::size_t{4}
                                  << 20;  // bytes of all rings together, as long as that leaves each enough
constexpr std::size_t kSmallestRing = std::size_t{4} << 10;
constexpr std::size_t kLargestRing = std::size_t{256} << 10;
constexpr std::size_t kPage = 4096;
// With work under way the thread looks for dead peers this often; idle, it only waits for its bell.
constexpr Milliseconds kSlice{20};
constexpr Milliseconds kIdle{1000};
constexpr auto kSpinTime = std::chrono::microseconds(30);

std::size_t ring_capacity(int size) noexcept {
  const auto pairs = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  return std::clamp(std::bit_floor(kAllRings / pairs), kSmallestRing, kLargestRing);
}

std::size_t ring_bytes(int size) noexcept { return sizeof(RingHeader) + ring_capacity(size); }

}  // namespace

std::size_t point_to_point_stride(int size) noexcept {
  const std::size_t bytes = kPage + static_cast<std::size_t>(size) * ring_bytes(size);
  return (bytes + kPage - 1) / kPage * kPage;
}

// One send or receive. Guarded by the lock of the state.
class PointToPoint::Message {
 public:
  enum class Direction { send, receive };
  Direction direction;
  std::uint64_t channel;
  int peer;  // or kAnySource
  std::uint32_t tag;
  std::byte* data;
  std::size_t bytes;
  std::uint64_t id = 0;
  std::size_t moved = 0;     // bytes of the payload written or read so far
  std::size_t incoming = 0;  // a receive's: the size of the message that was matched
  bool done = false;
  std::exception_ptr error = nullptr;
  Request::Status status = {};
};

class PointToPoint::State : public std::enable_shared_from_this<PointToPoint::State> {
 public:
  State(std::shared_ptr<World> world, Region region);

  void add_channel(std::uint64_t channel, FailureOf failure_of);
  void end_channel(std::uint64_t channel, std::exception_ptr reason);
  void remove_channel(std::uint64_t channel);
  std::shared_ptr<Message> post(Message message);
  Request::Status wait(const std::shared_ptr<Message>& message, Deadline deadline);
  bool done(const std::shared_ptr<Message>& message);
  void cancel(const std::shared_ptr<Message>& message, std::exception_ptr reason);
  void stop();

 private:
  using MessagePtr = std::shared_ptr<Message>;
  struct Unexpected {
    int source;
    Frame frame;
    std::vector<std::byte> payload;
  };
  struct Outgoing {
    Frame frame;
    MessagePtr message;  // where the payload of `message` and `piece` frames comes from
  };

  Ring incoming(int source) const { return ring(world_->rank(), source); }
  Ring outgoing(int destination) const { return ring(destination, world_->rank()); }
  Ring ring(int reader, int writer) const;
  Bell& bell(int rank) const { return *reinterpret_cast<Bell*>(region_.part(rank)); }
  void ring_bell(int rank) const;

  bool progress() GRADWIRE_REQUIRES(mutex_);
  bool read_from(int source) GRADWIRE_REQUIRES(mutex_);
  bool write_to(int destination) GRADWIRE_REQUIRES(mutex_);
  void on_message(int source, const Frame& frame, Ring& ring) GRADWIRE_REQUIRES(mutex_);
  void on_offer(int source, const Frame& frame) GRADWIRE_REQUIRES(mutex_);
  void on_accept(int source, const Frame& frame) GRADWIRE_REQUIRES(mutex_);
  void on_piece(int source, const Frame& frame, Ring& ring) GRADWIRE_REQUIRES(mutex_);
  void on_cancel(int source, const Frame& frame) GRADWIRE_REQUIRES(mutex_);
  MessagePtr match_posted(int source, const Frame& frame) GRADWIRE_REQUIRES(mutex_);
  bool match_unexpected(const MessagePtr& receive) GRADWIRE_REQUIRES(mutex_);
  void accept(const MessagePtr& receive, int source, const Frame& offer) GRADWIRE_REQUIRES(mutex_);
  bool begin_receive(const MessagePtr& receive, int source, std::size_t bytes) GRADWIRE_REQUIRES(mutex_);
  void finish(const MessagePtr& message, std::exception_ptr error) GRADWIRE_REQUIRES(mutex_);
  void forget(const MessagePtr& message, std::exception_ptr reason) GRADWIRE_REQUIRES(mutex_);
  void fail_unreachable() GRADWIRE_REQUIRES(mutex_);
  std::exception_ptr why_unreachable(const Message& message) GRADWIRE_REQUIRES(mutex_);
  std::exception_ptr why_gone(std::uint64_t channel, int peer) GRADWIRE_REQUIRES(mutex_);
  std::vector<MessagePtr> pending() GRADWIRE_REQUIRES(mutex_);
  void ensure_thread() GRADWIRE_REQUIRES(mutex_);
  void run();

  const std::shared_ptr<World> world_;
  const Region region_;
  const std::size_t capacity_;
  const std::size_t small_;  // messages up to this size go at once

  Mutex mutex_;
  ConditionVariable changed_;
  std::uint64_t next_id_ GRADWIRE_GUARDED_BY(mutex_) = 1;
  std::vector<std::deque<Outgoing>> outgoing_ GRADWIRE_GUARDED_BY(mutex_);   // by destination
  std::map<std::uint64_t, MessagePtr> offered_ GRADWIRE_GUARDED_BY(mutex_);  // sends that wait for accept
  std::deque<MessagePtr> posted_ GRADWIRE_GUARDED_BY(mutex_);                // receives without a message
  std::map<std::pair<int, std::uint64_t>, MessagePtr> accepted_ GRADWIRE_GUARDED_BY(mutex_);  // receives of large ones
  std::deque<Unexpected> unexpected_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<std::uint64_t, FailureOf> channels_ GRADWIRE_GUARDED_BY(mutex_);
  std::set<std::uint64_t> removed_ GRADWIRE_GUARDED_BY(mutex_);
  std::vector<bool> touched_ GRADWIRE_GUARDED_BY(mutex_);  // peers whose bell is to ring
  bool stopping_ GRADWIRE_GUARDED_BY(mutex_) = false;
  Thread thread_ GRADWIRE_GUARDED_BY(mutex_);
};

PointToPoint::State::State(std::shared_ptr<World> world, Region region)
    : world_(std::move(world)),
      region_(std::move(region)),
      capacity_(ring_capacity(world_->size())),
      small_(capacity_ / 4),
      outgoing_(static_cast<std::size_t>(world_->size())),
      touched_(static_cast<std::size_t>(world_->size()), false) {}

Ring PointToPoint::State::ring(int reader, int writer) const {
  std::byte* begin = region_.part(reader) + kPage + static_cast<std::size_t>(writer) * ring_bytes(world_->size());
  return {reinterpret_cast<RingHeader*>(begin), begin + sizeof(RingHeader), capacity_};
}

void PointToPoint::State::ring_bell(int rank) const {
  Bell& other = bell(rank);
  other.rings.fetch_add(1, std::memory_order_seq_cst);
  if (other.sleeping.load(std::memory_order_seq_cst) != 0) futex_wake_all(other.rings);
}

// --- channels ------------------------------------------------------------------------------------------------------

void PointToPoint::State::add_channel(std::uint64_t channel, FailureOf failure_of) {
  const MutexLock lock(mutex_);
  channels_[channel] = std::move(failure_of);
}

void PointToPoint::State::end_channel(std::uint64_t channel, std::exception_ptr reason) {
  const MutexLock lock(mutex_);
  for (const MessagePtr& message : pending()) {
    if (message->channel == channel) forget(message, reason);
  }
}

void PointToPoint::State::remove_channel(std::uint64_t channel) {
  end_channel(channel, std::make_exception_ptr(AbortedError(
                           concat("point to point on rank ", world_->rank(), ": the group was destroyed meanwhile"))));
  const MutexLock lock(mutex_);
  channels_.erase(channel);
  removed_.insert(channel);
  std::erase_if(unexpected_, [&](const Unexpected& message) { return message.frame.channel == channel; });
}

// --- requests ------------------------------------------------------------------------------------------------------

std::shared_ptr<PointToPoint::Message> PointToPoint::State::post(Message description) {
  auto message = std::make_shared<Message>(std::move(description));
  const MutexLock lock(mutex_);
  if (message->direction == Message::Direction::send) {
    Frame frame{Frame::Kind::message, message->tag, message->channel, 0, message->bytes};
    if (message->bytes > small_) {
      frame.kind = Frame::Kind::offer;
      frame.id = message->id = next_id_++;
      offered_[message->id] = message;
    }
    outgoing_[static_cast<std::size_t>(message->peer)].push_back({frame, message});
  } else if (!match_unexpected(message)) {
    posted_.push_back(message);
  }
  progress();
  if (!message->done) {
    ensure_thread();
    ring_bell(world_->rank());
  }
  return message;
}

Request::Status PointToPoint::State::wait(const MessagePtr& message, Deadline deadline) {
  const auto spin_until = Deadline::Clock::now() + kSpinTime;
  while (world_->may_spin() && Deadline::Clock::now() < spin_until) {
    {
      const MutexLock lock(mutex_);
      progress();
      if (message->done) break;
    }
    spin_pause();
  }
  MutexLock lock(mutex_);
  while (!message->done) {
    if (deadline.expired()) {
      const bool send = message->direction == Message::Direction::send;
      const std::vector<int> peers = message->peer == kAnySource ? std::vector<int>{} : std::vector<int>{message->peer};
      forget(message, std::make_exception_ptr(TimeoutError(
                          concat(send ? "send" : "receive", " on rank ", world_->rank(), " of ", world_->size(),
                                 send ? " to " : " from ", peers.empty() ? std::string("any rank") : name_ranks(peers),
                                 ", tag ", message->tag, ", ", message->bytes, " bytes: the deadline passed"),
                          peers)));
      break;
    }
    if (interrupt_check() != nullptr) {
      if (interrupt_check()()) {
        forget(message, std::make_exception_ptr(AbortedError("the wait for a message was interrupted on this rank")));
        break;
      }
      changed_.wait_until(lock, deadline.earlier(Deadline::after(kSlice)).point());
    } else if (deadline.point() == Deadline::never().point()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, deadline.point());
    }
  }
  if (message->error) std::rethrow_exception(message->error);
  return message->status;
}

bool PointToPoint::State::done(const MessagePtr& message) {
  const MutexLock lock(mutex_);
  if (!message->done) progress();
  return message->done;
}

void PointToPoint::State::cancel(const MessagePtr& message, std::exception_ptr reason) {
  const MutexLock lock(mutex_);
  if (!message->done) forget(message, reason);
}

void PointToPoint::State::finish(const MessagePtr& message, std::exception_ptr error) {
  message->done = true;
  message->error = error;
  changed_.notify_all();
}

// Takes an unfinished message out of everything that knows it, so that its buffer is its owner's again.
void PointToPoint::State::forget(const MessagePtr& message, std::exception_ptr reason) {
  if (message->done) return;
  if (message->direction == Message::Direction::send) {
    auto& queue = outgoing_[static_cast<std::size_t>(message->peer)];
    std::erase_if(queue, [&](const Outgoing& out) { return out.message == message; });
    offered_.erase(message->id);
    if (message->moved != 0) {
      queue.push_back({{Frame::Kind::cancel, message->tag, message->channel, message->id, 0}, nullptr});
      progress();
    }
  } else {
    std::erase(posted_, message);
    // An accepted message goes on coming; on_piece() drops what nobody has a buffer for.
    std::erase_if(accepted_, [&](const auto& entry) { return entry.second == message; });
  }
  finish(message, reason);
}

std::vector<std::shared_ptr<PointToPoint::Message>> PointToPoint::State::pending() {
  std::vector<MessagePtr> all(posted_.begin(), posted_.end());
  for (const auto& [key, message] : accepted_) all.push_back(message);
  for (const auto& [key, message] : offered_) all.push_back(message);
  for (const auto& queue : outgoing_) {
    for (const Outgoing& out : queue) {
      if (out.message != nullptr) all.push_back(out.message);
    }
  }
  return all;
}

// --- moving frames -------------------------------------------------------------------------------------------------

bool PointToPoint::State::progress() {
  bool moved = false;
  for (int peer = 0; peer < world_->size(); ++peer) {
    moved = read_from(peer) || moved;
    moved = write_to(peer) || moved;
  }
  for (std::size_t peer = 0; peer < touched_.size(); ++peer) {
    if (!touched_[peer]) continue;
    touched_[peer] = false;
    ring_bell(static_cast<int>(peer));
  }
  return moved;
}

bool PointToPoint::State::read_from(int source) {
  Ring ring = incoming(source);
  bool moved = false;
  for (Frame frame{}; ring.peek(frame); moved = true) {
    switch (frame.kind) {
      case Frame::Kind::message:
        on_message(source, frame, ring);
        break;
      case Frame::Kind::piece:
        on_piece(source, frame, ring);
        break;
      case Frame::Kind::offer:
        ring.take(nullptr, 0, 0);
        on_offer(source, frame);
        break;
      case Frame::Kind::accept:
        ring.take(nullptr, 0, 0);
        on_accept(source, frame);
        break;
      case Frame::Kind::cancel:
        ring.take(nullptr, 0, 0);
        on_cancel(source, frame);
        break;
    }
    touched_[static_cast<std::size_t>(source)] = true;  // there is room again
  }
  return moved;
}

bool PointToPoint::State::write_to(int destination) {
  auto& queue = outgoing_[static_cast<std::size_t>(destination)];
  Ring ring = outgoing(destination);
  bool moved = false;
  while (!queue.empty()) {
    Outgoing& out = queue.front();
    Frame frame = out.frame;
    const std::byte* payload = nullptr;
    if (frame.kind == Frame::Kind::message) {
      payload = out.message->data;
    } else if (frame.kind == Frame::Kind::piece) {
      frame.bytes = std::min<std::uint64_t>(small_, out.message->bytes - out.message->moved);
      payload = out.message->data + out.message->moved;
    }
    if (!ring.write(frame, payload, payload == nullptr ? 0 : frame.bytes)) break;
    touched_[static_cast<std::size_t>(destination)] = true;
    moved = true;
    if (frame.kind == Frame::Kind::piece) {
      out.message->moved += frame.bytes;
      if (out.message->moved < out.message->bytes) {
        // To the end of the queue, so that others' frames pass between the pieces.
        queue.push_back(std::move(out));
        queue.pop_front();
        continue;
      }
    }
    const MessagePtr message = out.message;
    queue.pop_front();
    if (message != nullptr && frame.kind != Frame::Kind::offer) finish(message, nullptr);
  }
  return moved;
}

bool PointToPoint::State::begin_receive(const MessagePtr& receive, int source, std::size_t bytes) {
  receive->peer = source;
  receive->incoming = bytes;
  receive->status = {source, bytes};
  if (bytes <= receive->bytes) return true;
  finish(receive, std::make_exception_ptr(MismatchError(concat(
                      "receive on rank ", world_->rank(), " of ", world_->size(), " from rank ", source, ", tag ",
                      receive->tag, ": the message has ", bytes, " bytes, the buffer ", receive->bytes))));
  return false;
}

std::shared_ptr<PointToPoint::Message> PointToPoint::State::match_posted(int source, const Frame& frame) {
  const auto match = std::find_if(posted_.begin(), posted_.end(), [&](const MessagePtr& receive) {
    return receive->channel == frame.channel && receive->tag == frame.tag &&
           (receive->peer == kAnySource || receive->peer == source);
  });
  if (match == posted_.end()) return nullptr;
  MessagePtr receive = *match;
  posted_.erase(match);
  return receive;
}

void PointToPoint::State::on_message(int source, const Frame& frame, Ring& ring) {
  const MessagePtr receive = match_posted(source, frame);
  if (receive != nullptr && begin_receive(receive, source, frame.bytes)) {
    ring.take(receive->data, frame.bytes, frame.bytes);
    finish(receive, nullptr);
    return;
  }
  if (receive != nullptr || removed_.contains(frame.channel)) {
    ring.take(nullptr, 0, frame.bytes);
    return;
  }
  Unexpected kept{source, frame, std::vector<std::byte>(frame.bytes)};
  ring.take(kept.payload.data(), frame.bytes, frame.bytes);
  unexpected_.push_back(std::move(kept));
}

void PointToPoint::State::on_offer(int source, const Frame& frame) {
  if (const MessagePtr receive = match_posted(source, frame)) {
    accept(receive, source, frame);
  } else if (!removed_.contains(frame.channel)) {
    unexpected_.push_back({source, frame, {}});
  }
}

bool PointToPoint::State::match_unexpected(const MessagePtr& receive) {
  const auto match = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Unexpected& message) {
    return receive->channel == message.frame.channel && receive->tag == message.frame.tag &&
           (receive->peer == kAnySource || receive->peer == message.source);
  });
  if (match == unexpected_.end()) return false;
  const Unexpected message = std::move(*match);
  unexpected_.erase(match);
  if (message.frame.kind == Frame::Kind::offer) {
    accept(receive, message.source, message.frame);
  } else if (begin_receive(receive, message.source, message.payload.size())) {
    std::copy(message.payload.begin(), message.payload.end(), receive->data);
    finish(receive, nullptr);
  }
  return true;
}

void PointToPoint::State::accept(const MessagePtr& receive, int source, const Frame& offer) {
  // A message that does not fit is accepted too, so that its sender ends; its pieces find no buffer and are dropped.
  if (begin_receive(receive, source, offer.bytes)) {
    accepted_[{source, offer.id}] = receive;
  } else {
    ensure_thread();  // the receive has ended, but somebody must take the pieces
  }
  outgoing_[static_cast<std::size_t>(source)].push_back(
      {{Frame::Kind::accept, offer.tag, offer.channel, offer.id, 0}, nullptr});
}

void PointToPoint::State::on_accept(int source, const Frame& frame) {
  auto& queue = outgoing_[static_cast<std::size_t>(source)];
  const auto offered = offered_.find(frame.id);
  if (offered == offered_.end()) {
    queue.push_back({{Frame::Kind::cancel, frame.tag, frame.channel, frame.id, 0}, nullptr});
    return;
  }
  queue.push_back({{Frame::Kind::piece, frame.tag, frame.channel, frame.id, 0}, offered->second});
  offered_.erase(offered);
}

void PointToPoint::State::on_piece(int source, const Frame& frame, Ring& ring) {
  const auto found = accepted_.find({source, frame.id});
  if (found == accepted_.end()) {
    ring.take(nullptr, 0, frame.bytes);
    return;
  }
  const MessagePtr receive = found->second;
  ring.take(receive->data + receive->moved, frame.bytes, frame.bytes);
  receive->moved += frame.bytes;
  if (receive->moved == receive->incoming) {
    accepted_.erase(found);
    finish(receive, nullptr);
  }
}

void PointToPoint::State::on_cancel(int source, const Frame& frame) {
  const auto found = accepted_.find({source, frame.id});
  if (found == accepted_.end()) return;
  const MessagePtr receive = found->second;
  accepted_.erase(found);
  finish(receive,
         std::make_exception_ptr(PeerError(concat("receive on rank ", world_->rank(), " of ", world_->size(),
                                                  " from rank ", source, ", tag ", frame.tag, ": the sender gave up"),
                                           {source})));
}

// --- peers that are gone -------------------------------------------------------------------------------------------

std::exception_ptr PointToPoint::State::why_gone(std::uint64_t channel, int peer) {
  if (peer == world_->rank()) return nullptr;
  const auto found = channels_.find(channel);
  if (found != channels_.end()) {
    if (auto error = found->second(peer)) return error;
  }
  if (!world_->is_gone(peer)) return nullptr;
  return std::make_exception_ptr(PeerError(concat("point to point on rank ", world_->rank(), " of ", world_->size(),
                                                  ": rank ", peer, " (", world_->describe_peer(peer), ") died"),
                                           {peer}));
}

std::exception_ptr PointToPoint::State::why_unreachable(const Message& message) {
  if (message.peer != kAnySource) return why_gone(message.channel, message.peer);
  std::exception_ptr last;
  for (int peer = 0; peer < world_->size(); ++peer) {
    if (peer == world_->rank()) continue;
    last = why_gone(message.channel, peer);
    if (last == nullptr) return nullptr;  // somebody may still send
  }
  return last;
}

void PointToPoint::State::fail_unreachable() {
  std::vector<std::pair<MessagePtr, std::exception_ptr>> lost;
  for (const MessagePtr& message : pending()) {
    if (auto error = why_unreachable(*message)) lost.emplace_back(message, error);
  }
  if (lost.empty()) return;
  progress();  // what they sent before they went counts
  for (const auto& [message, error] : lost) forget(message, error);
}

// --- the thread ----------------------------------------------------------------------------------------------------

void PointToPoint::State::ensure_thread() {
  if (thread_.joinable() || stopping_) return;
  thread_ = Thread("gradwire-p2p", [this] { run(); });
}

void PointToPoint::State::run() {
  Bell& own = bell(world_->rank());
  for (bool idle_before = false;;) {
    const std::uint32_t seen = own.rings.load(std::memory_order_seq_cst);
    bool work = false;
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
      if (progress()) {
        idle_before = false;
        continue;
      }
      if (idle_before) fail_unreachable();
      work = !pending().empty();
    }
    own.sleeping.store(1, std::memory_order_seq_cst);
    if (own.rings.load(std::memory_order_seq_cst) == seen) futex_wait(own.rings, seen, work ? kSlice : kIdle);
    own.sleeping.store(0, std::memory_order_seq_cst);
    idle_before = own.rings.load(std::memory_order_seq_cst) == seen;
  }
}

void PointToPoint::State::stop() {
  Thread last;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const MessagePtr& message : pending()) {
      forget(message, std::make_exception_ptr(AbortedError(
                          concat("point to point on rank ", world_->rank(), ": the group was destroyed meanwhile"))));
    }
    last = std::move(thread_);
  }
  ring_bell(world_->rank());
  last.join();
}

// --- the outside ---------------------------------------------------------------------------------------------------

namespace {

template <class State, class Message>
class MessageRequest final : public Request {
 public:
  MessageRequest(std::shared_ptr<State> state, std::shared_ptr<Message> message)
      : state_(std::move(state)), message_(std::move(message)) {}
  ~MessageRequest() override {
    if (!owner_.is_current()) return;
    state_->cancel(message_, std::make_exception_ptr(AbortedError("the request was dropped before it ended")));
  }
  Status wait(Deadline deadline) override {
    owner_.require_current("this request");
    return state_->wait(message_, deadline);
  }
  bool done() override {
    owner_.require_current("this request");
    return state_->done(message_);
  }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Message> message_;
  OwnerProcess owner_;
};

}  // namespace

PointToPoint::PointToPoint(std::shared_ptr<World> world, Region region)
    : state_(std::make_shared<State>(std::move(world), std::move(region))) {}

PointToPoint::~PointToPoint() {
  if (owner_.is_current()) state_->stop();
}

void PointToPoint::add_channel(std::uint64_t channel, FailureOf failure_of) {
  state_->add_channel(channel, std::move(failure_of));
}

void PointToPoint::end_channel(std::uint64_t channel, std::exception_ptr reason) noexcept {
  state_->end_channel(channel, std::move(reason));
}

void PointToPoint::remove_channel(std::uint64_t channel) noexcept { state_->remove_channel(channel); }

std::shared_ptr<Request> PointToPoint::isend(std::uint64_t channel, const void* data, std::size_t bytes,
                                             int destination, std::uint32_t tag) {
  auto* from = const_cast<std::byte*>(static_cast<const std::byte*>(data));  // a send only reads it
  return std::make_shared<MessageRequest<State, Message>>(
      state_, state_->post({Message::Direction::send, channel, destination, tag, from, bytes}));
}

std::shared_ptr<Request> PointToPoint::irecv(std::uint64_t channel, void* data, std::size_t bytes, int source,
                                             std::uint32_t tag) {
  return std::make_shared<MessageRequest<State, Message>>(
      state_, state_->post({Message::Direction::receive, channel, source, tag, static_cast<std::byte*>(data), bytes}));
}

}  // namespace gradwire::shared
