// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/mpi/mpi_wire_internal.h"

#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "gradwire/backend/mpi/library_internal.h"
#include "gradwire/backend/shared/futex_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::mpi {
namespace {

// What MPI carries: this, then the payload.
struct Header {
  std::uint64_t sequence;  // the how-many-th frame from this source to this destination
  messages::Frame frame;
};
static_assert(std::is_trivially_copyable_v<Header>);

constexpr std::size_t kLargestFrame = std::size_t{128} << 10;
constexpr std::size_t kSmallFrame = 4096;  // smaller ones are not worth keeping memory for
constexpr std::size_t kReceives = 16;      // that are posted, from whomever
constexpr int kWindow = 4;                 // frames to one destination that MPI has at a time
constexpr std::size_t kSpareBuffers = 32;
constexpr int kTag = 0;  // the communicator is ours alone

Header header_of(const std::byte* frame) {
  Header header;
  std::memcpy(&header, frame, sizeof(header));
  return header;
}

bool hand_on(messages::FrameSink& sink, int source, const std::byte* memory) {
  const Header header = header_of(memory);
  return sink.on_frame(source, header.frame, {{memory + sizeof(header), payload_bytes(header.frame)}, {}});
}

}  // namespace

MpiWire::MpiWire(MPI_Comm communicator, int rank, int size)
    : communicator_(communicator),
      rank_(rank),
      peers_(static_cast<std::size_t>(size)),
      requests_(kReceives, MPI_REQUEST_NULL),
      buffers_(kReceives),
      destinations_(kReceives, -1),
      arrivals_(kReceives) {
  if (size == 1) return;  // MPI sees no frame
  for (std::size_t slot = 0; slot < kReceives; ++slot) {
    buffers_[slot] = take_memory(kLargestFrame);
    post_receive(slot);
  }
}

MpiWire::~MpiWire() {
  // What MPI still has, it keeps: giving the memory back would have it use what is no longer there.
  for (std::size_t slot = 0; slot < requests_.size(); ++slot) {
    if (requests_[slot] != MPI_REQUEST_NULL) static_cast<void>(buffers_[slot].memory.release());
  }
}

void MpiWire::close() noexcept {
  for (std::size_t slot = 0; slot < kReceives; ++slot) {
    if (requests_[slot] == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&requests_[slot]);
    MPI_Wait(&requests_[slot], MPI_STATUS_IGNORE);
  }
}

std::size_t MpiWire::max_payload() const noexcept { return kLargestFrame - sizeof(Header); }

MpiWire::Buffer MpiWire::take_memory(std::size_t bytes) {
  if (bytes > kSmallFrame && !spare_.empty()) {
    Buffer buffer = std::move(spare_.back());
    spare_.pop_back();
    buffer.bytes = bytes;
    return buffer;
  }
  const std::size_t capacity = bytes > kSmallFrame ? kLargestFrame : bytes;
  return {std::make_unique_for_overwrite<std::byte[]>(capacity), capacity, bytes};
}

void MpiWire::give_back(Buffer buffer) noexcept {
  if (spare_.capacity() == 0) spare_.reserve(kSpareBuffers);
  if (buffer.capacity == kLargestFrame && spare_.size() < kSpareBuffers) spare_.push_back(std::move(buffer));
}

// --- frames that go ------------------------------------------------------------------------------------------------

bool MpiWire::write(int destination, const messages::Frame& frame, std::span<const std::byte> payload) {
  Peer& to = peer(destination);
  const std::size_t under_way = destination == rank_ ? local_.size() : static_cast<std::size_t>(to.in_flight);
  if (under_way >= kWindow) return false;
  try {
    const Header header{to.sent, frame};
    Buffer buffer = take_memory(sizeof(header) + payload.size());
    std::memcpy(buffer.memory.get(), &header, sizeof(header));
    if (!payload.empty()) std::memcpy(buffer.memory.get() + sizeof(header), payload.data(), payload.size());
    if (destination == rank_) {
      local_.push_back(std::move(buffer));
    } else {
      start_send(destination, std::move(buffer));
    }
  } catch (const std::bad_alloc&) {
    return false;  // tried again later
  }
  ++to.sent;
  return true;
}

void MpiWire::start_send(int destination, Buffer buffer) {
  if (free_.empty()) {
    // The memory for all of it first, so that a refusal leaves the arrays alike.
    const std::size_t more = 2 * requests_.size() + 16;
    free_.reserve(more);
    requests_.reserve(more);
    buffers_.reserve(more);
    destinations_.reserve(more);
    free_.push_back(requests_.size());
    requests_.push_back(MPI_REQUEST_NULL);
    buffers_.emplace_back();
    destinations_.push_back(-1);
  }
  const std::size_t slot = free_.back();
  require_success(MPI_Isend(buffer.memory.get(), static_cast<int>(buffer.bytes), MPI_BYTE, destination, kTag,
                            communicator_, &requests_[slot]),
                  "MPI_Isend");
  free_.pop_back();
  buffers_[slot] = std::move(buffer);
  destinations_[slot] = destination;
  ++peer(destination).in_flight;
  ++in_flight_;
}

// --- frames that come ----------------------------------------------------------------------------------------------

bool MpiWire::read(messages::FrameSink& sink) {
  const bool local = hand_on_local(sink);
  if (peers_.size() == 1) return local;
  const bool tested = test();
  return hand_on_arrivals(sink) || tested || local;
}

bool MpiWire::test() {
  try {
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
  } catch (const std::bad_alloc&) {
    return false;
  }
  int done = 0;
  require_success(
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done, indices_.data(), statuses_.data()),
      "MPI_Testsome");
  if (done == MPI_UNDEFINED) return false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(done); ++i) {
    const auto slot = static_cast<std::size_t>(indices_[i]);
    if (slot < kReceives) {
      on_received(slot, statuses_[i]);
      continue;
    }
    give_back(std::move(buffers_[slot]));
    --peer(destinations_[slot]).in_flight;
    --in_flight_;
    free_.push_back(slot);
  }
  return done > 0;
}

void MpiWire::post_receive(std::size_t slot) {
  arrivals_[slot].here = false;
  require_success(MPI_Irecv(buffers_[slot].memory.get(), static_cast<int>(kLargestFrame), MPI_BYTE, MPI_ANY_SOURCE,
                            kTag, communicator_, &requests_[slot]),
                  "MPI_Irecv");
}

void MpiWire::on_received(std::size_t slot, const MPI_Status& status) {
  int count = 0;
  require_success(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  const int source = status.MPI_SOURCE;
  const auto bytes = static_cast<std::size_t>(count);
  if (bytes < sizeof(Header)) throw InternalError(concat("backend mpi: a torn frame of rank ", source));
  const Header header = header_of(buffers_[slot].memory.get());
  if (payload_bytes(header.frame) != bytes - sizeof(Header) || header.sequence < peer(source).received) {
    throw InternalError(concat("backend mpi: a frame of rank ", source, " that makes no sense"));
  }
  arrivals_[slot] = {true, source, header.sequence};
  ++held_;
}

// Receives are posted in one order and may end in another: a short frame may be here before a long one. A frame keeps
// its slot until it is handed on. Those before it have slots of their own by then, so they come.
bool MpiWire::hand_on_arrivals(messages::FrameSink& sink) {
  bool moved = false;
  for (bool again = held_ > 0; again;) {
    again = false;
    for (std::size_t slot = 0; slot < kReceives; ++slot) {
      const Arrival& arrival = arrivals_[slot];
      if (!arrival.here || arrival.sequence != peer(arrival.source).received) continue;
      if (!hand_on(sink, arrival.source, buffers_[slot].memory.get())) continue;
      ++peer(arrival.source).received;
      --held_;
      post_receive(slot);
      moved = true;
      again = held_ > 0;
    }
  }
  return moved;
}

bool MpiWire::hand_on_local(messages::FrameSink& sink) {
  bool moved = false;
  while (!local_.empty() && hand_on(sink, rank_, local_.front().memory.get())) {
    give_back(std::move(local_.front()));
    local_.pop_front();
    moved = true;
  }
  return moved;
}

// --- waiting -------------------------------------------------------------------------------------------------------

void MpiWire::sleep(std::uint32_t seen, std::chrono::microseconds limit) noexcept {
  shared::futex_wait(bell_, seen, limit);
}

void MpiWire::wake() noexcept {
  bell_.fetch_add(1, std::memory_order_seq_cst);
  shared::futex_wake_all(bell_);
}

}  // namespace gradwire::mpi
