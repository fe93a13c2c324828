// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which message belongs to which receive, over frames (transport_internal.h).
//
// A small message goes at once and waits at its destination if nobody receives it yet. A large one is offered, goes
// in pieces when its receive is there, and so waits at its sender. Whatever ends a request, its buffer is not touched
// afterwards: pieces that still come are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/mpi/transport_internal.h"

namespace gradwire::mpi {

struct ChannelKey {
  std::uint64_t group = 0;
  std::uint32_t channel = 0;
  friend bool operator==(const ChannelKey&, const ChannelKey&) = default;
};

// One send or receive.
struct Message {
  enum class Direction { send, receive };
  Direction direction = Direction::send;
  ChannelKey key;
  int peer = 0;  // rank in the group, or kAnySource
  std::uint32_t tag = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  // The rest is written by Messages.
  std::uint64_t id = 0;      // of a large send
  std::size_t moved = 0;     // bytes of a large message so far
  std::size_t incoming = 0;  // a receive's: the size of the message that was matched
  bool done = false;
  std::exception_ptr error = nullptr;
  Request::Status status = {};
};
using MessagePtr = std::shared_ptr<Message>;

// Used by one thread at a time.
class Messages {
 public:
  explicit Messages(Transport& transport) : transport_(transport) {}

  // Frames of a group that was not added, or is removed, are dropped. place_group() says which process each rank is.
  void add_group(std::uint64_t group, int rank);
  void place_group(std::uint64_t group, std::vector<int> processes);
  void remove_group(std::uint64_t group);

  // Ends the channel on this rank: its requests under way end with `reason`, the others are told `text`.
  void end_channel(const ChannelKey& key, const std::exception_ptr& reason, std::string_view text);
  // The same, with this rank's leaving as the reason unless it has ended before; later frames of it are dropped.
  void remove_channel(const ChannelKey& key);

  // Starts a message. It may be done at once.
  MessagePtr post(Message description);
  // Ends a message that is not done, with `reason`.
  void forget(const MessagePtr& message, const std::exception_ptr& reason);
  // Ends everything under way: MPI itself has failed.
  void fail_all(const std::exception_ptr& reason);

  // Moves what can be moved; whether anything did.
  bool poll();
  // Whether a request is under way, or frames are.
  bool busy() const noexcept { return open_ > 0 || !transport_.idle(); }
  // Ends all channels that are left and tells the others.
  void end_all();

 private:
  struct Unexpected {
    int source;
    std::uint32_t tag;
    std::uint64_t id;  // of an offer, 0 otherwise
    std::size_t bytes;
    std::vector<std::byte> payload;
  };
  struct Channel {
    std::exception_ptr ended;                      // on this rank
    std::map<int, std::exception_ptr> peer_ended;  // by rank
    std::deque<Unexpected> unexpected;
    std::deque<MessagePtr> posted;  // receives without a message
  };
  struct Group {
    int rank = 0;
    std::vector<int> processes;  // by rank
    std::map<std::uint32_t, Channel> channels;
    std::set<std::uint32_t> removed;
  };
  using LargeKey = std::pair<int, std::uint64_t>;  // sending process, its number for the message

  Group& group_of(const ChannelKey& key);
  int process_of(const Message& message) { return group_of(message.key).processes.at(std::size_t(message.peer)); }
  FrameHeader header_for(FrameKind kind, const Message& message);
  void start_send(const MessagePtr& message, Channel& channel);
  void start_receive(const MessagePtr& message, Channel& channel);
  std::exception_ptr why_unreachable(const Message& message, const Channel& channel);
  bool match_unexpected(const MessagePtr& receive, Channel& channel);
  MessagePtr match_posted(Channel& channel, int source, std::uint32_t tag);
  bool begin_receive(const MessagePtr& receive, int source, std::size_t bytes);
  void accept(const MessagePtr& receive, int source, std::uint64_t id, std::size_t bytes);
  void finish(const MessagePtr& message, const std::exception_ptr& error);
  template <class Predicate>
  void finish_where(Channel& channel, const std::exception_ptr& error, Predicate concerns);

  void on_frame(int process, const FrameHeader& header, std::span<const std::byte> payload);
  void on_accept(const FrameHeader& header);
  void on_piece(int process, const FrameHeader& header, std::span<const std::byte> payload);
  void on_arrival(Channel& channel, const FrameHeader& header, std::span<const std::byte> payload);
  void on_cancel(int process, Channel& channel, const FrameHeader& header);
  void on_end(Channel& channel, const FrameHeader& header, std::span<const std::byte> payload);
  bool send_pieces();

  Transport& transport_;
  std::map<std::uint64_t, Group> groups_;
  std::map<std::uint64_t, MessagePtr> offered_;    // large sends that wait for accept
  std::map<int, std::deque<MessagePtr>> sending_;  // large sends, by receiving process
  std::map<LargeKey, MessagePtr> accepted_;        // large receives
  std::uint64_t last_id_ = 0;
  std::size_t open_ = 0;  // messages that are not done
};

}  // namespace gradwire::mpi
