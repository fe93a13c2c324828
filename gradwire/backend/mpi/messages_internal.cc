// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/mpi/messages_internal.h"

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::mpi {
namespace {

// The largest message that goes without being asked for.
constexpr std::size_t kSmallMessage = std::size_t{32} << 10;
constexpr std::size_t kMaxReason = 4000;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), std::min(text.size(), kMaxReason)));
}

void copy(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty()) std::copy(from.begin(), from.end(), to);
}

}  // namespace

// --- groups and channels -------------------------------------------------------------------------------------------

void Messages::add_group(std::uint64_t group, int rank) { groups_[group].rank = rank; }

void Messages::place_group(std::uint64_t group, std::vector<int> processes) {
  groups_.at(group).processes = std::move(processes);
}

void Messages::remove_group(std::uint64_t group) { groups_.erase(group); }

Messages::Group& Messages::group_of(const ChannelKey& key) { return groups_.at(key.group); }

template <class Predicate>
void Messages::finish_where(Channel& channel, const std::exception_ptr& error, Predicate concerns) {
  const auto end = [&](const MessagePtr& message) {
    if (!concerns(*message)) return false;
    finish(message, error);
    return true;
  };
  std::erase_if(channel.posted, end);
  std::erase_if(offered_, [&](const auto& entry) { return end(entry.second); });
  std::erase_if(accepted_, [&](const auto& entry) { return end(entry.second); });
  for (auto& [process, queue] : sending_) std::erase_if(queue, end);
}

void Messages::end_channel(const ChannelKey& key, const std::exception_ptr& reason, std::string_view text) {
  Group& group = group_of(key);
  Channel& channel = group.channels[key.channel];
  if (channel.ended != nullptr) return;
  channel.ended = reason;
  finish_where(channel, reason, [&](const Message& message) { return message.key == key; });
  FrameHeader header;
  header.kind = FrameKind::end;
  header.group = key.group;
  header.channel = key.channel;
  header.source = static_cast<std::uint16_t>(group.rank);
  for (std::size_t peer = 0; peer < group.processes.size(); ++peer) {
    if (static_cast<int>(peer) != group.rank) transport_.send(group.processes[peer], header, bytes_of(text));
  }
}

void Messages::remove_channel(const ChannelKey& key) {
  Group& group = group_of(key);
  end_channel(key,
              std::make_exception_ptr(AbortedError(concat("rank ", group.rank, ": the group was destroyed meanwhile"))),
              concat("rank ", group.rank, " left the group"));
  group.channels.erase(key.channel);
  group.removed.insert(key.channel);
}

void Messages::end_all() {
  for (auto& [number, group] : groups_) {
    const std::string text = concat("rank ", group.rank, " has ended");
    const auto reason = std::make_exception_ptr(AbortedError(concat(text, ": MPI is no longer there")));
    for (const auto& entry : group.channels) end_channel({number, entry.first}, reason, text);
  }
}

// --- requests ------------------------------------------------------------------------------------------------------

FrameHeader Messages::header_for(FrameKind kind, const Message& message) {
  FrameHeader header;
  header.kind = kind;
  header.group = message.key.group;
  header.channel = message.key.channel;
  header.tag = message.tag;
  header.source = static_cast<std::uint16_t>(group_of(message.key).rank);
  header.id = message.id;
  header.bytes = message.bytes;
  return header;
}

MessagePtr Messages::post(Message description) {
  auto message = std::make_shared<Message>(std::move(description));
  ++open_;
  Channel& channel = group_of(message->key).channels[message->key.channel];
  if (channel.ended != nullptr) {
    finish(message, channel.ended);
  } else if (message->direction == Message::Direction::send) {
    start_send(message, channel);
  } else {
    start_receive(message, channel);
  }
  transport_.flush();
  return message;
}

void Messages::start_send(const MessagePtr& message, Channel& channel) {
  if (const auto error = why_unreachable(*message, channel)) return finish(message, error);
  if (message->bytes <= kSmallMessage) {
    const auto header = header_for(FrameKind::message, *message);
    transport_.send(process_of(*message), header, {message->data, message->bytes});
    return finish(message, nullptr);
  }
  message->id = ++last_id_;
  offered_[message->id] = message;
  transport_.send(process_of(*message), header_for(FrameKind::offer, *message), {});
}

void Messages::start_receive(const MessagePtr& message, Channel& channel) {
  if (match_unexpected(message, channel)) return;
  if (const auto error = why_unreachable(*message, channel)) return finish(message, error);
  channel.posted.push_back(message);
}

void Messages::finish(const MessagePtr& message, const std::exception_ptr& error) {
  if (message->done) return;
  message->done = true;
  message->error = error;
  --open_;
}

void Messages::forget(const MessagePtr& message, const std::exception_ptr& reason) {
  if (message->done) return;
  if (message->id != 0) transport_.send(process_of(*message), header_for(FrameKind::cancel, *message), {});
  Channel& channel = group_of(message->key).channels[message->key.channel];
  finish_where(channel, reason, [&](const Message& other) { return &other == message.get(); });
  transport_.flush();
}

void Messages::fail_all(const std::exception_ptr& reason) {
  for (auto& [number, group] : groups_) {
    for (auto& [name, channel] : group.channels) {
      if (channel.ended == nullptr) channel.ended = reason;
      finish_where(channel, reason, [](const Message&) { return true; });
    }
  }
}

std::exception_ptr Messages::why_unreachable(const Message& message, const Channel& channel) {
  if (message.peer != kAnySource) {
    const auto found = channel.peer_ended.find(message.peer);
    return found == channel.peer_ended.end() ? nullptr : found->second;
  }
  // Somebody may still send as long as one other rank is there; alone, this rank itself may.
  const std::size_t others = group_of(message.key).processes.size() - 1;
  return others > 0 && channel.peer_ended.size() == others ? channel.peer_ended.begin()->second : nullptr;
}

// --- matching ------------------------------------------------------------------------------------------------------

bool Messages::begin_receive(const MessagePtr& receive, int source, std::size_t bytes) {
  receive->incoming = bytes;
  receive->status = {source, bytes};
  if (bytes <= receive->bytes) return true;
  finish(receive,
         std::make_exception_ptr(MismatchError(concat("receive on rank ", group_of(receive->key).rank, ": rank ",
                                                      source, " sent ", bytes, " bytes with tag ", receive->tag,
                                                      ", the buffer has ", receive->bytes, "; nothing was written"))));
  return false;
}

void Messages::accept(const MessagePtr& receive, int source, std::uint64_t id, std::size_t bytes) {
  const int process = group_of(receive->key).processes.at(static_cast<std::size_t>(source));
  // What does not fit is asked for too, so that its sender ends; nobody takes the pieces then.
  if (begin_receive(receive, source, bytes)) accepted_[{process, id}] = receive;
  FrameHeader header = header_for(FrameKind::accept, *receive);
  header.id = id;
  transport_.send(process, header, {});
}

bool Messages::match_unexpected(const MessagePtr& receive, Channel& channel) {
  const auto match = std::find_if(channel.unexpected.begin(), channel.unexpected.end(), [&](const Unexpected& other) {
    return other.tag == receive->tag && (receive->peer == kAnySource || receive->peer == other.source);
  });
  if (match == channel.unexpected.end()) return false;
  const Unexpected message = std::move(*match);
  channel.unexpected.erase(match);
  if (message.id != 0) {
    accept(receive, message.source, message.id, message.bytes);
  } else if (begin_receive(receive, message.source, message.bytes)) {
    copy(receive->data, message.payload);
    finish(receive, nullptr);
  }
  return true;
}

MessagePtr Messages::match_posted(Channel& channel, int source, std::uint32_t tag) {
  const auto match = std::find_if(channel.posted.begin(), channel.posted.end(), [&](const MessagePtr& receive) {
    return receive->tag == tag && (receive->peer == kAnySource || receive->peer == source);
  });
  if (match == channel.posted.end()) return nullptr;
  MessagePtr receive = std::move(*match);
  channel.posted.erase(match);
  return receive;
}

// --- frames that come ----------------------------------------------------------------------------------------------

bool Messages::poll() {
  const bool came = transport_.poll([this](int process, const FrameHeader& header, std::span<const std::byte> payload) {
    on_frame(process, header, payload);
  });
  const bool went = send_pieces();
  if (came || went) transport_.flush();
  return came || went;
}

void Messages::on_frame(int process, const FrameHeader& header, std::span<const std::byte> payload) {
  if (header.kind == FrameKind::accept) return on_accept(header);
  if (header.kind == FrameKind::piece) return on_piece(process, header, payload);
  const auto group = groups_.find(header.group);
  if (group == groups_.end() || group->second.removed.contains(header.channel)) return;
  // A rank that made a duplicate may use it before this one has: then the channel begins here.
  Channel& channel = group->second.channels[header.channel];
  if (header.kind == FrameKind::cancel) return on_cancel(process, channel, header);
  if (header.kind == FrameKind::end) return on_end(channel, header, payload);
  on_arrival(channel, header, payload);
}

void Messages::on_arrival(Channel& channel, const FrameHeader& header, std::span<const std::byte> payload) {
  const int source = header.source;
  const bool offer = header.kind == FrameKind::offer;
  const MessagePtr receive = match_posted(channel, source, header.tag);
  if (receive == nullptr) {
    channel.unexpected.push_back(
        {source, header.tag, offer ? header.id : 0, header.bytes, {payload.begin(), payload.end()}});
  } else if (offer) {
    accept(receive, source, header.id, header.bytes);
  } else if (begin_receive(receive, source, header.bytes)) {
    copy(receive->data, payload);
    finish(receive, nullptr);
  }
}

void Messages::on_accept(const FrameHeader& header) {
  const auto found = offered_.find(header.id);
  if (found == offered_.end()) return;  // it was forgotten, and its receiver has been told
  const MessagePtr message = found->second;
  offered_.erase(found);
  sending_[process_of(*message)].push_back(message);
}

bool Messages::send_pieces() {
  bool sent = false;
  for (auto& [process, queue] : sending_) {
    // In turn, so that the large message of one channel does not hold up another's.
    while (!queue.empty() && transport_.has_room(process)) {
      const MessagePtr message = std::move(queue.front());
      queue.pop_front();
      const std::size_t length = std::min(Transport::kMaxPayload, message->bytes - message->moved);
      transport_.send(process, header_for(FrameKind::piece, *message), {message->data + message->moved, length});
      message->moved += length;
      sent = true;
      if (message->moved < message->bytes) {
        queue.push_back(message);
      } else {
        finish(message, nullptr);
      }
    }
  }
  return sent;
}

void Messages::on_piece(int process, const FrameHeader& header, std::span<const std::byte> payload) {
  const auto found = accepted_.find({process, header.id});
  if (found == accepted_.end()) return;
  const MessagePtr receive = found->second;
  if (payload.size() > receive->incoming - receive->moved) {
    throw InternalError(concat("backend mpi: rank ", int{header.source}, " sent more than it said"));
  }
  copy(receive->data + receive->moved, payload);
  receive->moved += payload.size();
  if (receive->moved < receive->incoming) return;
  accepted_.erase(found);
  finish(receive, nullptr);
}

void Messages::on_cancel(int process, Channel& channel, const FrameHeader& header) {
  std::erase_if(channel.unexpected,
                [&](const Unexpected& message) { return message.source == header.source && message.id == header.id; });
  const auto found = accepted_.find({process, header.id});
  if (found == accepted_.end()) return;
  const MessagePtr receive = found->second;
  accepted_.erase(found);
  const int source = header.source;
  finish(receive,
         std::make_exception_ptr(PeerError(concat("receive on rank ", group_of(receive->key).rank, " from rank ",
                                                  source, ", tag ", header.tag, ": the sender gave up"),
                                           {source})));
}

void Messages::on_end(Channel& channel, const FrameHeader& header, std::span<const std::byte> payload) {
  const int source = header.source;
  const std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
  channel.peer_ended.try_emplace(source, std::make_exception_ptr(PeerError(text, {source})));
  std::erase_if(channel.unexpected,
                [&](const Unexpected& message) { return message.source == source && message.id != 0; });
  const ChannelKey key{header.group, header.channel};
  // A large message that was matched has a source, whatever its receive had asked for.
  const auto concerns = [&](const Message& message) {
    if (!(message.key == key)) return false;
    return message.peer == source || (message.incoming > 0 && message.status.source == source);
  };
  finish_where(channel, channel.peer_ended.at(source), concerns);
  finish_where(channel, channel.peer_ended.at(source), [&](const Message& message) {
    return message.key == key && message.peer == kAnySource && message.incoming == 0 &&
           why_unreachable(message, channel) != nullptr;
  });
}

}  // namespace gradwire::mpi
