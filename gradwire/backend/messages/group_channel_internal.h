// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Backends whose collectives are GenericChannel's over an engine of messages: what is left to such a backend is a wire,
// and how its ranks meet.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/messages/engine_internal.h"

namespace gradwire::messages {

// The largest message that goes without being asked for: what two ranks may send at a call's entry, with its
// fingerprint.
inline constexpr std::size_t kEagerMessage = GenericChannel::kAtOnceOfTwoBytes + (std::size_t{2} << 10);

// What the channels of one backend have in common. Thread-safe, but for place().
class Group final {
 public:
  struct Options {
    std::string backend;  // its name, for errors
    std::shared_ptr<Engine> engine;
    std::shared_ptr<void> keeps;      // what the engine needs for as long as the group lives; may be null
    std::uint64_t first_channel = 0;  // the group's channels have this number and those after it, up to kChannels
    int rank = 0;
    int size = 1;
    Engine::FailureOf failure_of;  // may be null
  };
  static constexpr std::uint64_t kChannels = std::uint64_t{1} << 24;

  explicit Group(Options options);
  // Forgets the channels: what still comes for them is dropped.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Which peer of the wire each rank is. Before the first channel is made.
  void place(std::vector<int> peers);

  const std::string& backend() const noexcept { return options_.backend; }
  Engine& engine() const noexcept { return *options_.engine; }
  const std::shared_ptr<const Members>& members() const noexcept { return members_; }
  const Engine::FailureOf& failure_of() const noexcept { return options_.failure_of; }
  std::uint64_t channel(std::uint32_t number) const noexcept { return options_.first_channel + number; }
  int rank() const noexcept { return options_.rank; }
  int size() const noexcept { return options_.size; }
  // Rank 0's number for the next channel; the others take its word. Throws ResourceError when there is none left.
  std::uint32_t next_channel();
  // For the end of a channel: what the others hear, and requests of this rank.
  const Notice& left() const noexcept { return left_; }
  const std::exception_ptr& destroyed() const noexcept { return destroyed_; }

 private:
  const Options options_;
  const Notice left_;
  const std::exception_ptr destroyed_;
  std::shared_ptr<const Members> members_;
  std::atomic<std::uint32_t> channels_{1};
};

// As Channel documents it. Channels share their group.
class GroupChannel final : public GenericChannel {
 public:
  // Channel `number` of the group. Throws ResourceError.
  GroupChannel(std::shared_ptr<Group> group, std::uint32_t number);
  ~GroupChannel() override;

  int rank() const noexcept override { return group_->rank(); }
  int size() const noexcept override { return group_->size(); }
  std::unique_ptr<Channel> duplicate(const CallOptions& options) override;
  // Collective. Everyone's `bytes` bytes at `mine` arrive at `all`, by rank, over the few connections that share()
  // takes.
  void tell_all(const void* mine, void* all, std::size_t bytes, const CallOptions& options);

 protected:
  std::shared_ptr<Request> start_send(const void* data, std::size_t bytes, int destination, std::uint32_t tag) override;
  std::shared_ptr<Request> start_receive(void* data, std::size_t bytes, int source, std::uint32_t tag) override;
  void announce_end(std::string_view reason, std::span<const int> at_fault) noexcept override;

 private:
  const std::shared_ptr<Group> group_;
  const std::uint64_t number_;
};

// The backend over such channels. Owns its first one.
class GroupBackend final : public Backend {
 public:
  // Throws ResourceError.
  GroupBackend(std::shared_ptr<Group> group, Capabilities capabilities)
      : group_(std::move(group)), capabilities_(capabilities), channel_(group_, 0) {}
  std::string_view name() const noexcept override { return group_->backend(); }
  int rank() const noexcept override { return group_->rank(); }
  int size() const noexcept override { return group_->size(); }
  Capabilities capabilities() const noexcept override { return capabilities_; }
  GroupChannel& channel() noexcept override { return channel_; }

 private:
  const std::shared_ptr<Group> group_;
  const Capabilities capabilities_;
  GroupChannel channel_;
};

}  // namespace gradwire::messages
