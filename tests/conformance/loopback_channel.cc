// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/loopback_channel.h"

#include <algorithm>
#include <cstring>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::testing {

// All fields are guarded by the hub's mutex.
class LoopbackRequest final : public Request {
 public:
  // A send of `bytes` bytes, which ends at once.
  LoopbackRequest(std::shared_ptr<LoopbackHub> hub, std::size_t bytes) : hub_(std::move(hub)), done_(true) {
    status_.bytes = bytes;
  }
  LoopbackRequest(std::shared_ptr<LoopbackHub> hub, LoopbackHub::Address at, void* data, std::size_t bytes, int source,
                  std::uint32_t tag)
      : hub_(std::move(hub)), at_(std::move(at)), data_(data), bytes_(bytes), source_(source), tag_(tag) {}
  ~LoopbackRequest() override {
    const MutexLock lock(hub_->mutex_);
    if (!done_) hub_->mailboxes_[at_].waiting.remove(this);
  }

  Status wait(Deadline deadline) override {
    MutexLock lock(hub_->mutex_);
    while (!done_) {
      if (deadline.expired())
        throw TimeoutError(concat("no message from rank ", source_, " by the deadline"), {source_});
      if (deadline.point() == Deadline::Clock::time_point::max()) {
        changed().wait(lock);
      } else {
        changed().wait_until(lock, deadline.point());
      }
    }
    if (error_ != nullptr) std::rethrow_exception(error_);
    return status_;
  }

  bool done_by(Deadline deadline) override {
    MutexLock lock(hub_->mutex_);
    while (!done_ && !deadline.expired()) changed().wait_until(lock, deadline.point());
    return done_;
  }

  bool done() override {
    const MutexLock lock(hub_->mutex_);
    return done_;
  }

  // The rest with the hub's mutex held.
  bool matches(int source, std::uint32_t tag) const {
    return tag == tag_ && (source_ == kAnySource || source == source_);
  }
  int source() const { return source_; }
  int rank() const { return at_.second; }
  const std::string& channel() const { return at_.first; }

  void take(const LoopbackHub::Message& message) {
    done_ = true;
    if (message.bytes.size() > bytes_) {
      error_ = std::make_exception_ptr(MismatchError(
          concat("rank ", message.source, " sent ", message.bytes.size(), " bytes, the buffer has ", bytes_)));
      return;
    }
    if (!message.bytes.empty()) std::memcpy(data_, message.bytes.data(), message.bytes.size());
    status_ = {message.source, message.bytes.size()};
  }

  void fail(std::exception_ptr error) {
    done_ = true;
    error_ = std::move(error);
  }

 private:
  ConditionVariable& changed() const { return hub_->changed_[static_cast<std::size_t>(at_.second)]; }

  const std::shared_ptr<LoopbackHub> hub_;
  const LoopbackHub::Address at_;
  void* const data_ = nullptr;
  const std::size_t bytes_ = 0;
  const int source_ = kAnySource;
  const std::uint32_t tag_ = 0;
  bool done_ = false;
  Status status_;
  std::exception_ptr error_;
};

void LoopbackHub::deliver(const Address& to, Message message) {
  const MutexLock lock(mutex_);
  ++sent_[message.source];
  Mailbox& mailbox = mailboxes_[to];
  const auto taker = std::find_if(mailbox.waiting.begin(), mailbox.waiting.end(), [&](const LoopbackRequest* request) {
    return request->matches(message.source, message.tag);
  });
  if (taker == mailbox.waiting.end()) {
    mailbox.arrived.push_back(std::move(message));
    return;
  }
  (*taker)->take(message);
  mailbox.waiting.erase(taker);
  changed_[static_cast<std::size_t>(to.second)].notify_all();
}

void LoopbackHub::await(const Address& at, LoopbackRequest& request) {
  const MutexLock lock(mutex_);
  Mailbox& mailbox = mailboxes_[at];
  const auto message = std::find_if(mailbox.arrived.begin(), mailbox.arrived.end(), [&](const Message& candidate) {
    return request.matches(candidate.source, candidate.tag);
  });
  if (message != mailbox.arrived.end()) {
    request.take(*message);
    mailbox.arrived.erase(message);
    return;
  }
  mailbox.waiting.push_back(&request);
  if (!ended_.empty() || !left_.empty()) fail_waiting();
}

void LoopbackHub::end(const Address& who, End end) {
  const MutexLock lock(mutex_);
  ended_.emplace(who, std::move(end));
  fail_waiting();
}

std::size_t LoopbackHub::sent(int rank) const {
  const MutexLock lock(mutex_);
  const auto found = sent_.find(rank);
  return found == sent_.end() ? 0 : found->second;
}

void LoopbackHub::leave(int rank) {
  const MutexLock lock(mutex_);
  left_.emplace(rank, concat("rank ", rank, " left"));
  fail_waiting();
}

std::optional<LoopbackHub::End> LoopbackHub::ended(const std::string& channel, int source) {
  if (const auto end = ended_.find({channel, source}); end != ended_.end()) return end->second;
  if (const auto left = left_.find(source); left != left_.end()) return End{left->second, {source}};
  return std::nullopt;
}

void LoopbackHub::fail_waiting() {
  for (auto& [at, mailbox] : mailboxes_) {
    for (auto request = mailbox.waiting.begin(); request != mailbox.waiting.end();) {
      const auto own = ended_.find(at);
      const auto peer = ended(at.first, (*request)->source());
      if (own != ended_.end()) {
        (*request)->fail(std::make_exception_ptr(AbortedError(own->second.reason)));
      } else if (peer) {
        const int source = (*request)->source();
        (*request)->fail(
            std::make_exception_ptr(PeerError(concat("rank ", source, " failed: ", peer->reason), peer->at_fault)));
      } else {
        ++request;
        continue;
      }
      request = mailbox.waiting.erase(request);
    }
  }
  for (ConditionVariable& each : changed_) each.notify_all();
}

std::shared_ptr<Request> LoopbackChannel::start_send(const void* data, std::size_t bytes, int destination,
                                                     std::uint32_t tag) {
  LoopbackHub::Message message{rank_, tag, std::vector<std::byte>(bytes)};
  if (bytes > 0) std::memcpy(message.bytes.data(), data, bytes);
  hub_->deliver({name_, destination}, std::move(message));
  return std::make_shared<LoopbackRequest>(hub_, bytes);
}

std::shared_ptr<Request> LoopbackChannel::start_receive(void* data, std::size_t bytes, int source, std::uint32_t tag) {
  auto request = std::make_shared<LoopbackRequest>(hub_, LoopbackHub::Address{name_, rank_}, data, bytes, source, tag);
  hub_->await({name_, rank_}, *request);
  return request;
}

void LoopbackChannel::announce_end(std::string_view reason, std::span<const int> at_fault) noexcept {
  std::vector<int> ranks(at_fault.begin(), at_fault.end());
  if (ranks.empty()) ranks.push_back(rank_);
  hub_->end({name_, rank_}, {std::string(reason), std::move(ranks)});
}

std::unique_ptr<Channel> LoopbackChannel::duplicate(const CallOptions& options) {
  std::unique_ptr<Channel> channel;
  run(fingerprint_of(Operation::duplicate), options,
      [&] { channel = std::make_unique<LoopbackChannel>(hub_, concat(name_, ".", ++duplicates_), rank_); });
  return channel;
}

}  // namespace gradwire::testing
