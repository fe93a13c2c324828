// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Frames between the processes of an MPI job, each in the order of its sender.
//
// MPI can neither take back a message nor be told by when to be done with a buffer. So no buffer of a user is ever
// MPI's: frames are copied into memory of the transport on the way out and handed on from its memory on the way in, and
// what has not arrived by somebody's deadline goes on in peace.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace gradwire::mpi {

enum class FrameKind : std::uint8_t {
  message = 1,  // a whole small message
  offer = 2,    // a large message waits at its sender
  accept = 3,   // its receive is there: send it
  piece = 4,    // a part of it
  cancel = 5,   // its sender gave up
  end = 6,      // the sender's end of the channel; the payload is the reason
};

// As it lies in memory at the beginning of a frame: all processes of an MPI job run on one kind of machine.
struct FrameHeader {
  std::uint64_t sequence = 0;  // the transport's: the how-many-th frame from this source to this destination
  std::uint64_t group = 0;
  std::uint64_t id = 0;     // of a large message, by its sender
  std::uint64_t bytes = 0;  // an offer's: of the whole message
  std::uint32_t channel = 0;
  std::uint32_t tag = 0;
  std::uint32_t payload = 0;  // the transport's: bytes behind this header
  std::uint16_t source = 0;   // rank in the group
  FrameKind kind = FrameKind::message;
  std::uint8_t zero = 0;
};
static_assert(sizeof(FrameHeader) == 48 && std::is_trivially_copyable_v<FrameHeader>);

// Used by one thread at a time.
class Transport {
 public:
  static constexpr std::size_t kMaxPayload = (std::size_t{128} << 10) - sizeof(FrameHeader);

  // `size` processes of `communicator`, this one being `rank`.
  Transport(MPI_Comm communicator, int rank, int size);
  // Cancels the receives. Frames not yet taken by their destination are lost: see idle().
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Copies a frame and queues it. It leaves in the next poll() or flush(). The destination may be this process.
  void send(int destination, FrameHeader header, std::span<const std::byte> payload);
  // Whether a frame to `destination` would leave at once; who has much to send waits for that.
  bool has_room(int destination) const;
  // Hands queued frames to MPI as far as there is room. Never blocks.
  void flush();

  using Handler = std::function<void(int source, const FrameHeader& header, std::span<const std::byte> payload)>;
  // Moves what can be moved and calls `handle` for each frame that has come, in its sender's order; `handle` may
  // send(). Returns whether anything happened. Never blocks. Throws InternalError when MPI fails.
  bool poll(const Handler& handle);

  // Whether every frame sent is with its destination.
  bool idle() const noexcept { return queued_ == 0 && in_flight_ == 0 && local_.empty(); }

 private:
  struct Frame {
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity = 0;
    std::size_t bytes = 0;
  };
  struct Peer {
    std::uint64_t sent = 0;                  // frames
    std::uint64_t received = 0;              // frames handed on
    std::deque<Frame> queue;                 // to it
    int in_flight = 0;                       // to it
    std::map<std::uint64_t, Frame> waiting;  // from it, which overtook others
  };

  Frame take_memory(std::size_t bytes);
  void give_back(Frame frame);
  void post_receive(std::size_t slot);
  void start_send(int destination, Frame frame);
  void on_received(std::size_t slot, const MPI_Status& status, const Handler& handle);
  void hand_on(int source, const Frame& frame, const Handler& handle);
  bool hand_on_local(const Handler& handle);
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  const MPI_Comm communicator_;
  const int rank_;
  std::vector<Peer> peers_;
  // Parallel arrays, as MPI_Testsome wants them: first the receives, then the sends, of which some are free.
  std::vector<MPI_Request> requests_;
  std::vector<Frame> frames_;
  std::vector<int> destinations_;  // of sends
  std::vector<std::size_t> free_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::deque<Frame> local_;
  std::vector<Frame> spare_;
  std::size_t queued_ = 0;
  std::size_t in_flight_ = 0;
};

}  // namespace gradwire::mpi
