// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Frames between the processes of an MPI job.
//
// MPI can neither take back a message nor be told by when to be done with a buffer. So no buffer of a user is ever
// MPI's: frames are copied into memory of the wire on the way out and handed on from its memory on the way in, and
// what has not arrived by somebody's deadline goes on in peace. MPI tells nobody that something has come: the bell
// rings for wake() only.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "gradwire/backend/messages/wire_internal.h"

namespace gradwire::mpi {

class MpiWire final : public messages::Wire {
 public:
  // `size` processes of `communicator`, this one being `rank`.
  MpiWire(MPI_Comm communicator, int rank, int size);
  ~MpiWire() override;
  MpiWire(const MpiWire&) = delete;
  MpiWire& operator=(const MpiWire&) = delete;

  int size() const noexcept override { return static_cast<int>(peers_.size()); }
  std::size_t max_payload() const noexcept override;
  bool write(int peer, const messages::Frame& frame, std::span<const std::byte> payload) override;
  bool read(messages::FrameSink& sink) override;
  void flush() override {}
  std::uint32_t bell() const noexcept override { return bell_.load(std::memory_order_seq_cst); }
  void sleep(std::uint32_t seen, std::chrono::microseconds limit) noexcept override;
  void wake() noexcept override;

  // Cancels the receives; frames not yet taken by their destination are lost: see idle(). Before MPI_Finalize; nothing
  // is to be read or written afterwards. A wire that was not closed leaves MPI as it is, which in a forked child is its
  // parent's.
  void close() noexcept;

  // Whether every frame written is with its destination.
  bool idle() const noexcept { return in_flight_ == 0 && local_.empty(); }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity = 0;
    std::size_t bytes = 0;
  };
  struct Peer {
    std::uint64_t sent = 0;      // frames
    std::uint64_t received = 0;  // frames handed on
    int in_flight = 0;           // frames that MPI has, to the peer
  };
  // A receive that MPI has, or a frame that has come.
  struct Arrival {
    bool here = false;
    int source = 0;
    std::uint64_t sequence = 0;
  };

  Buffer take_memory(std::size_t bytes);
  void give_back(Buffer buffer) noexcept;
  void post_receive(std::size_t slot);
  void start_send(int destination, Buffer buffer);
  bool test();
  void on_received(std::size_t slot, const MPI_Status& status);
  bool hand_on_arrivals(messages::FrameSink& sink);
  bool hand_on_local(messages::FrameSink& sink);
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  const MPI_Comm communicator_;
  const int rank_;
  std::vector<Peer> peers_;
  // Parallel arrays, as MPI_Testsome wants them: first the receives, then the sends, of which some are free.
  std::vector<MPI_Request> requests_;
  std::vector<Buffer> buffers_;
  std::vector<int> destinations_;  // of sends
  std::vector<Arrival> arrivals_;  // of receives
  std::vector<std::size_t> free_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::deque<Buffer> local_;
  std::vector<Buffer> spare_;
  std::size_t held_ = 0;  // frames that have come and were not handed on
  std::size_t in_flight_ = 0;
  std::atomic<std::uint32_t> bell_{0};
};

}  // namespace gradwire::mpi
