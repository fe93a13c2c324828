// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The generic collectives over mailboxes in one process. With them the conformance suite tests GenericChannel by
// itself.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/base/mutex.h"

namespace gradwire::testing {

class LoopbackRequest;

// The mailboxes of all ranks and channels of one world, which its ranks share. A send copies the whole message, so it
// completes at once. Thread-safe.
class LoopbackHub {
 public:
  // A channel is named by its path of duplications, the same on all ranks: "0", "0.1", "0.1.1", ...
  using Address = std::pair<std::string, int>;  // channel, rank

  explicit LoopbackHub(int size) : size_(size), changed_(static_cast<std::size_t>(size)) {}
  int size() const noexcept { return size_; }
  // How many messages the rank has sent so far.
  std::size_t sent(int rank) const GRADWIRE_EXCLUDES(mutex_);

 private:
  friend class LoopbackRequest;
  friend class LoopbackChannel;
  friend class LoopbackBackend;

  struct Message {
    int source;
    std::uint32_t tag;
    std::vector<std::byte> bytes;
  };
  struct Mailbox {
    std::deque<Message> arrived;
    std::list<LoopbackRequest*> waiting;
  };

  void deliver(const Address& to, Message message) GRADWIRE_EXCLUDES(mutex_);
  void await(const Address& at, LoopbackRequest& request) GRADWIRE_EXCLUDES(mutex_);
  // Why a rank sends no more messages, and whose fault that is.
  struct End {
    std::string reason;
    std::vector<int> at_fault;
  };
  void end(const Address& who, End end) GRADWIRE_EXCLUDES(mutex_);
  void leave(int rank) GRADWIRE_EXCLUDES(mutex_);
  // Why `source` sends no more messages, if it does not.
  std::optional<End> ended(const std::string& channel, int source) GRADWIRE_REQUIRES(mutex_);
  void fail_waiting() GRADWIRE_REQUIRES(mutex_);

  const int size_;
  mutable Mutex mutex_;
  std::vector<ConditionVariable> changed_;  // by rank
  std::map<Address, Mailbox> mailboxes_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<Address, End> ended_ GRADWIRE_GUARDED_BY(mutex_);
  std::map<int, std::size_t> sent_ GRADWIRE_GUARDED_BY(mutex_);  // by rank
  std::map<int, std::string> left_ GRADWIRE_GUARDED_BY(mutex_);
};

class LoopbackChannel final : public GenericChannel {
 public:
  LoopbackChannel(std::shared_ptr<LoopbackHub> hub, std::string name, int rank)
      : GenericChannel(hub->size()), hub_(std::move(hub)), name_(std::move(name)), rank_(rank) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return hub_->size(); }
  std::unique_ptr<Channel> duplicate(const CallOptions& options) override;

 protected:
  std::shared_ptr<Request> start_send(const void* data, std::size_t bytes, int destination, std::uint32_t tag) override;
  std::shared_ptr<Request> start_receive(void* data, std::size_t bytes, int source, std::uint32_t tag) override;
  void announce_end(std::string_view reason, std::span<const int> at_fault) noexcept override;

 private:
  const std::shared_ptr<LoopbackHub> hub_;
  const std::string name_;
  const int rank_;
  int duplicates_ = 0;
};

class LoopbackBackend final : public Backend {
 public:
  LoopbackBackend(std::shared_ptr<LoopbackHub> hub, int rank) : hub_(hub), channel_(hub, "0", rank) {}
  ~LoopbackBackend() override { hub_->leave(rank()); }

  std::string_view name() const noexcept override { return "loopback"; }
  int rank() const noexcept override { return channel_.rank(); }
  int size() const noexcept override { return channel_.size(); }
  Capabilities capabilities() const noexcept override {
    return {.in_place_memory = false,
            .bitwise_equal = true,
            .detects_mismatch = true,
            .detects_death = true,
            .crosses_hosts = false};
  }
  Channel& channel() noexcept override { return channel_; }

 private:
  const std::shared_ptr<LoopbackHub> hub_;
  LoopbackChannel channel_;
};

}  // namespace gradwire::testing
