// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/mpi/transport_internal.h"

#include <cstring>
#include <utility>

#include "gradwire/backend/mpi/library_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::mpi {
namespace {

constexpr std::size_t kLargestFrame = sizeof(FrameHeader) + Transport::kMaxPayload;
constexpr std::size_t kSmallFrame = 4096;  // smaller ones are not worth keeping memory for
constexpr std::size_t kReceives = 16;      // that are posted, from whomever
constexpr int kWindow = 4;                 // sends to one destination that MPI has at a time
constexpr std::size_t kSpareFrames = 32;
constexpr int kTag = 0;  // the communicator is ours alone

FrameHeader header_of(const std::byte* frame) {
  FrameHeader header;
  std::memcpy(&header, frame, sizeof(header));
  return header;
}

}  // namespace

Transport::Transport(MPI_Comm communicator, int rank, int size)
    : communicator_(communicator),
      rank_(rank),
      peers_(static_cast<std::size_t>(size)),
      requests_(kReceives, MPI_REQUEST_NULL),
      frames_(kReceives),
      destinations_(kReceives, -1) {
  if (size == 1) return;  // MPI sees no frame
  for (std::size_t slot = 0; slot < kReceives; ++slot) {
    frames_[slot] = take_memory(kLargestFrame);
    post_receive(slot);
  }
}

Transport::~Transport() {
  for (std::size_t slot = 0; slot < kReceives; ++slot) {
    if (requests_[slot] == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&requests_[slot]);
    MPI_Wait(&requests_[slot], MPI_STATUS_IGNORE);
  }
  // What MPI still has, it keeps: giving the memory back would have it read what is no longer there.
  for (std::size_t slot = kReceives; slot < requests_.size(); ++slot) {
    if (requests_[slot] != MPI_REQUEST_NULL) static_cast<void>(frames_[slot].memory.release());
  }
}

Transport::Frame Transport::take_memory(std::size_t bytes) {
  if (bytes > kSmallFrame && !spare_.empty()) {
    Frame frame = std::move(spare_.back());
    spare_.pop_back();
    frame.bytes = bytes;
    return frame;
  }
  const std::size_t capacity = bytes > kSmallFrame ? kLargestFrame : bytes;
  return {std::make_unique_for_overwrite<std::byte[]>(capacity), capacity, bytes};
}

void Transport::give_back(Frame frame) {
  if (frame.capacity == kLargestFrame && spare_.size() < kSpareFrames) spare_.push_back(std::move(frame));
}

void Transport::post_receive(std::size_t slot) {
  require_success(MPI_Irecv(frames_[slot].memory.get(), static_cast<int>(kLargestFrame), MPI_BYTE, MPI_ANY_SOURCE, kTag,
                            communicator_, &requests_[slot]),
                  "MPI_Irecv");
}

void Transport::send(int destination, FrameHeader header, std::span<const std::byte> payload) {
  Frame frame = take_memory(sizeof(header) + payload.size());
  header.payload = static_cast<std::uint32_t>(payload.size());
  header.sequence = peer(destination).sent++;
  std::memcpy(frame.memory.get(), &header, sizeof(header));
  if (!payload.empty()) std::memcpy(frame.memory.get() + sizeof(header), payload.data(), payload.size());
  if (destination == rank_) {
    local_.push_back(std::move(frame));
  } else {
    peer(destination).queue.push_back(std::move(frame));
    ++queued_;
  }
}

bool Transport::has_room(int destination) const {
  const Peer& to = peers_[static_cast<std::size_t>(destination)];
  if (destination == rank_) return local_.size() < kWindow;
  return to.in_flight + static_cast<int>(to.queue.size()) < kWindow;
}

void Transport::flush() {
  if (queued_ == 0) return;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& to = peers_[rank];
    while (!to.queue.empty() && to.in_flight < kWindow) {
      start_send(static_cast<int>(rank), std::move(to.queue.front()));
      to.queue.pop_front();
      --queued_;
    }
  }
}

void Transport::start_send(int destination, Frame frame) {
  if (free_.empty()) {
    free_.push_back(requests_.size());
    requests_.push_back(MPI_REQUEST_NULL);
    frames_.emplace_back();
    destinations_.push_back(-1);
  }
  const std::size_t slot = free_.back();
  free_.pop_back();
  require_success(MPI_Isend(frame.memory.get(), static_cast<int>(frame.bytes), MPI_BYTE, destination, kTag,
                            communicator_, &requests_[slot]),
                  "MPI_Isend");
  frames_[slot] = std::move(frame);
  destinations_[slot] = destination;
  ++peer(destination).in_flight;
  ++in_flight_;
}

bool Transport::poll(const Handler& handle) {
  bool moved = hand_on_local(handle);
  if (peers_.size() == 1) return moved;
  flush();
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int done = 0;
  require_success(
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done, indices_.data(), statuses_.data()),
      "MPI_Testsome");
  if (done == MPI_UNDEFINED || done == 0) return moved;
  for (int i = 0; i < done; ++i) {
    const auto slot = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    if (slot < kReceives) {
      on_received(slot, statuses_[static_cast<std::size_t>(i)], handle);
      continue;
    }
    give_back(std::move(frames_[slot]));
    --peer(destinations_[slot]).in_flight;
    --in_flight_;
    free_.push_back(slot);
  }
  flush();
  return true;
}

void Transport::on_received(std::size_t slot, const MPI_Status& status, const Handler& handle) {
  int count = 0;
  require_success(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  Frame frame = std::exchange(frames_[slot], take_memory(kLargestFrame));
  post_receive(slot);
  frame.bytes = static_cast<std::size_t>(count);
  const int source = status.MPI_SOURCE;
  if (frame.bytes < sizeof(FrameHeader)) throw InternalError(concat("backend mpi: a torn frame of rank ", source));
  const FrameHeader header = header_of(frame.memory.get());
  if (header.payload != frame.bytes - sizeof(FrameHeader) || header.sequence < peer(source).received) {
    throw InternalError(concat("backend mpi: a frame of rank ", source, " that makes no sense"));
  }
  // Receives are posted in one order and may end in another: a short frame may be here before a long one.
  if (header.sequence != peer(source).received) {
    peer(source).waiting.emplace(header.sequence, std::move(frame));
    return;
  }
  hand_on(source, frame, handle);
  give_back(std::move(frame));
  auto& waiting = peer(source).waiting;
  while (!waiting.empty() && waiting.begin()->first == peer(source).received) {
    Frame next = std::move(waiting.extract(waiting.begin()).mapped());
    hand_on(source, next, handle);
    give_back(std::move(next));
  }
}

void Transport::hand_on(int source, const Frame& frame, const Handler& handle) {
  ++peer(source).received;
  const FrameHeader header = header_of(frame.memory.get());
  handle(source, header, {frame.memory.get() + sizeof(header), header.payload});
}

bool Transport::hand_on_local(const Handler& handle) {
  // What these frames bring about is for the next poll: it may be more of them, without end.
  const std::size_t count = local_.size();
  for (std::size_t i = 0; i < count; ++i) {
    Frame frame = std::move(local_.front());
    local_.pop_front();
    hand_on(rank_, frame, handle);
    give_back(std::move(frame));
  }
  return count > 0;
}

}  // namespace gradwire::mpi
