// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a backend gives so that messages can be made of it: frames that move between peers, and a bell.
//
// A wire joins this endpoint with peers 0 to size() - 1, one of which may be the endpoint itself. The frames of a pair
// of peers arrive whole and in the order in which they were written. A wire may refuse a frame for want of room; it
// never waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/kernels/copy.h"

namespace gradwire::messages {

enum class FrameKind : std::uint32_t {
  message = 1,  // a whole small message
  offer,        // a message is there; it stays with its sender until its receive is there
  accept,       // the receive of an offer is there
  piece,        // a part of an accepted message
  cancel,       // the sender takes an offer back, or stops an accepted message
  credit,       // room that the receiver of messages and offers has again
  end,          // the sender's end of a channel; the payload says why
  report,       // the receiver has read the message of an offer out of its sender's memory
  confirm,      // the message of a report was there all the time
  passed_end,   // the end of a channel of another peer, by a failure; the payload says why
  ask,          // a message of the channel is awaited: the peer answers with the channel's end, if that was
};

// As it lies in memory at the beginning of a frame: both sides are of one build on one kind of machine.
struct Frame {
  FrameKind kind = FrameKind::message;
  // end, passed_end: how many ranks at fault (int) stand in the payload before the text; 0: the one whose end it is.
  std::uint32_t tag = 0;
  std::uint64_t channel = 0;
  // offer, cancel: the sender's number for the message. accept, report: that number again. piece, confirm: the
  // receiver's number. credit: offers. end, passed_end: the rank whose end it is.
  std::uint64_t id = 0;
  // accept, report: the receiver's number for the message; accept: 0: the sender may forget the message. offer: what
  // Wire::lend() said. end: whether the sender left in good order. passed_end: the peer whose end it is.
  std::uint64_t reply = 0;
  // offer: of the whole message; message, piece, end, passed_end: of the payload; credit: of messages.
  std::uint64_t bytes = 0;
};
static_assert(sizeof(Frame) == 40);

// The bytes that follow a frame.
inline std::size_t payload_bytes(const Frame& frame) noexcept {
  const bool has_payload = frame.kind == FrameKind::message || frame.kind == FrameKind::piece ||
                           frame.kind == FrameKind::end || frame.kind == FrameKind::passed_end;
  return has_payload ? frame.bytes : 0;
}

// A payload where the wire has it: in one part or, at the end of a ring, in two. Valid during on_frame() only.
struct Payload {
  std::span<const std::byte> first;
  std::span<const std::byte> second;

  std::size_t size() const noexcept { return first.size() + second.size(); }
  void copy_to(std::byte* to) const noexcept { copy_to(to, size()); }
  // `message_bytes`: of the whole message that the payload is a part of.
  void copy_to(std::byte* to, std::size_t message_bytes) const noexcept {
    kernels::copy_from_peer(to, first.data(), first.size(), message_bytes);
    kernels::copy_from_peer(to + first.size(), second.data(), second.size(), message_bytes);
  }
};

// Takes the frames that have come.
class FrameSink {
 public:
  // Returns false when there is no memory for the frame; nothing has changed then, and the wire keeps the frame and
  // brings it again. Throws InternalError when the frame makes no sense. Does not write to the wire.
  virtual bool on_frame(int peer, const Frame& frame, const Payload& payload) = 0;

 protected:
  ~FrameSink() = default;
};

// write(), read() and flush() are called by one thread at a time; size() and max_payload() by any; bell(), sleep() and
// wake() by any thread beside them.
class Wire {
 public:
  virtual ~Wire() = default;

  virtual int size() const noexcept = 0;
  // The bytes of the largest payload of one frame.
  virtual std::size_t max_payload() const noexcept = 0;

  // Writes a frame to a peer; `payload` is the caller's again at return. Returns false, without effect, when the wire
  // cannot take the frame now; the bell rings when it can. Throws InternalError when the engine below fails.
  virtual bool write(int peer, const Frame& frame, std::span<const std::byte> payload) = 0;

  // Hands on what has come, each peer's frames in order, and keeps a frame that the sink refuses, with those behind it.
  // Returns whether anything moved. Throws what write() and the sink throw.
  virtual bool read(FrameSink& sink) = 0;

  // Where the peers find memory of this process for pull(); 0 where they cannot, or where frames are quicker.
  virtual std::uint64_t lend(std::span<const std::byte> /*memory*/) noexcept { return 0; }
  // Reads memory of the peer's process from where its lend() said. Returns false when that cannot be. What is read may
  // be anything where the peer does not keep the memory as it is.
  virtual bool pull(int /*peer*/, std::uint64_t /*from*/, std::span<std::byte> /*to*/) noexcept { return false; }

  // Whether the wire is connected with the peer from the start, and the peer with this endpoint; true for the endpoint
  // itself. What is said to all partners, and passed on by them to theirs, reaches everyone. Never changes.
  virtual bool is_partner(int /*peer*/) const noexcept { return true; }
  // Whether the wire is connected with the peer now. A peer that it is not connected with asks when it must know.
  virtual bool is_joined(int /*peer*/) const noexcept { return true; }

  // Whether a peer has gone since the last call: the ranks that are waited for are looked at then, without waiting for
  // the clock. A wire that does not know says no.
  virtual bool take_lost() noexcept { return false; }

  // Called after a round of reads and writes: tells the peers of it.
  virtual void flush() = 0;

  // A number that changes when a peer has written or made room.
  virtual std::uint32_t bell() const noexcept = 0;
  // Sleeps while the bell says `seen`, until wake(), or for `limit`. May end early. A wire that cannot be told of
  // frames sleeps for `limit`.
  virtual void sleep(std::uint32_t seen, std::chrono::microseconds limit) noexcept = 0;
  // Ends the sleep() of this endpoint.
  virtual void wake() noexcept = 0;
};

}  // namespace gradwire::messages
