// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Frames between the ranks of a group, as active messages of UCX.
//
// A frame goes as one active message: an envelope (whose it is, its token, its number, the frame) as its header, then
// the payload. UCX takes it at once, straight from the user's buffer, or not at all; a transport that takes a frame of
// that length never at once gets a copy. What comes is handed on from UCX's memory. So no buffer of a user is ever
// UCX's.
//
// A rank is connected with its partners from the start, and with another rank from when one of the two first needs the
// other. Making an endpoint does not block, and the thread of every rank serves whoever connects, whatever its caller
// waits for: so no rank waits for a rank that waits for it.
//
// A peer is gone when UCX says that its connection broke, or when nothing has come of it for the group's silence.
// Partners tell each other that they are there. Another peer is asked whether it is, for as long as it is waited for.
// Where not all ranks are partners, who finds a partner gone tells its other partners, who tell theirs:
// so all ranks hear it, and beats go between partners only. Another peer that cannot be reached may have left: only
// this rank loses it. Frames to a peer that is gone are dropped. A rank that leaves says so after its last frame, and
// stays until the others have said that they have it all: a connection that is closed may take with it what is still on
// the way.
//
// UcxWire decides what is said to whom and when, and who is gone. What it needs for that has files of its own:
// Endpoint, NoteCopies, NoteOrder, HeldFrames, LossNews, Liveness and Bell, none of which knows the wire.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradwire/backend/messages/wire_internal.h"
#include "gradwire/backend/ucx/admission_internal.h"
#include "gradwire/backend/ucx/bell_internal.h"
#include "gradwire/backend/ucx/endpoint_internal.h"
#include "gradwire/backend/ucx/held_frames_internal.h"
#include "gradwire/backend/ucx/library_internal.h"
#include "gradwire/backend/ucx/liveness_internal.h"
#include "gradwire/backend/ucx/loss_news_internal.h"
#include "gradwire/backend/ucx/note_copies_internal.h"
#include "gradwire/backend/ucx/note_internal.h"
#include "gradwire/backend/ucx/peer_internal.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"

namespace gradwire::ucx {

// Thread-safe. In a forked child only the destructor may be called, and it leaves everything as it is.
class UcxWire final : public messages::Wire {
 public:
  struct Options {
    int rank = 0;
    std::vector<PeerOptions> peers;  // by rank; this rank's own is not read
    std::vector<int> partners = {};  // empty: all others
    Milliseconds silence{0};
    // Signs of life go often enough for a partner that waits no longer than this. Zero: as `silence`.
    Milliseconds shortest_silence{0};
  };
  // Why a peer's part cannot come any more.
  struct Absence {
    // It said so, and all that it sent is here; `why` is empty then. Or it is no partner, takes no connection, and
    // nobody has said that it is gone.
    bool left = false;
    std::string why;   // "its connection was closed (...)"
    std::string host;  // as PeerOptions::host; empty: not known yet
  };

  // Begins to connect with the partners. Throws as require_ok() does.
  UcxWire(std::unique_ptr<Worker> worker, Options options);
  ~UcxWire() override;
  UcxWire(const UcxWire&) = delete;
  UcxWire& operator=(const UcxWire&) = delete;

  int size() const noexcept override { return static_cast<int>(peers_.size()); }
  // After which a peer of which nothing has come is gone.
  Milliseconds silence() const;
  std::size_t max_payload() const noexcept override;
  bool write(int peer, const messages::Frame& frame, std::span<const std::byte> payload) override;
  bool read(messages::FrameSink& sink) override;
  void flush() override {}
  std::uint32_t bell() const noexcept override { return bell_.number(); }
  void sleep(std::uint32_t seen, std::chrono::microseconds limit) noexcept override;
  void wake() noexcept override { bell_.ring(); }
  bool is_partner(int peer) const noexcept override;
  bool is_joined(int peer) const noexcept override;
  bool take_lost() noexcept override { return lost_some_.exchange(false); }

  // Tells how to reach a peer, unless that is known. Before this is called, what comes of the peer is dropped.
  void introduce(int peer, PeerOptions options);
  // Makes the silence longer, where `silence` is.
  void extend_silence(Milliseconds silence);
  // Before the first read(): moves what comes, and keeps the frames in it. Returns whether anything moved.
  bool advance();
  // The partners of which nothing has come yet that bears their token.
  std::vector<int> unheard() const;
  // Begins to give signs of life, and to watch for silence of the partners that have been heard of: a partner may be
  // there and wait for others.
  void watch();
  // Lets no stranger connect any more. When all peers have heard of this rank, too.
  void close_door();
  // Nothing while the peer's part may still come.
  std::optional<Absence> absence(int peer) const;
  // The same of a peer that is waited for. One that is no partner, but is connected, is watched for silence until
  // nobody has called this for as long as the silence.
  std::optional<Absence> absence_of_awaited(int peer);

  // Whether every frame written is on its way.
  bool idle() const;
  // Tells the peers that nothing follows. Nothing is written afterwards.
  void say_goodbye();
  // Whether every peer has said that it has everything, or leaves or is gone itself.
  bool may_go();
  // Takes UCX down. Frames that are still under way are lost. Nothing is read or written afterwards.
  void close() noexcept;

 private:
  static ucs_status_t on_active_message(void* wire, const void* header, std::size_t header_bytes, void* data,
                                        std::size_t bytes, const ucp_am_recv_param_t* param);

  void connect(std::size_t index) GRADWIRE_REQUIRES(mutex_);
  std::optional<Absence> absence_of(std::size_t index) const GRADWIRE_REQUIRES(mutex_);
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  // Notes that go.
  Envelope next_envelope(const Peer& to, Note note, const messages::Frame& frame) const;
  bool open(std::size_t index) GRADWIRE_REQUIRES(mutex_);
  // Return whether UCX took the note, or the peer is lost.
  bool send(std::size_t index, Note note, const messages::Frame& frame, std::span<const std::byte> payload)
      GRADWIRE_REQUIRES(mutex_);
  bool send_copy(std::size_t index, const Envelope& envelope, std::span<const std::byte> payload, std::uint32_t flags)
      GRADWIRE_REQUIRES(mutex_);
  // What a send came to.
  bool note_sent(std::size_t index, ucs_status_t status) GRADWIRE_REQUIRES(mutex_);
  bool send_dues() GRADWIRE_REQUIRES(mutex_);
  bool give_sign_of_life(std::size_t index, Note note) GRADWIRE_REQUIRES(mutex_);
  bool tell_loss(std::size_t index) GRADWIRE_REQUIRES(mutex_);

  // Notes that come.
  bool progress(messages::FrameSink* sink) GRADWIRE_REQUIRES(mutex_);
  void arrive(const Envelope& envelope, std::span<const std::byte> payload) GRADWIRE_REQUIRES(mutex_);
  void take(std::size_t index, const Envelope& envelope, std::span<const std::byte> payload) GRADWIRE_REQUIRES(mutex_);
  void take_frame(std::size_t index, const messages::Frame& frame, std::span<const std::byte> payload)
      GRADWIRE_REQUIRES(mutex_);

  // Peers that go.
  void lose(std::size_t index, std::string why) GRADWIRE_REQUIRES(mutex_);
  bool look_after_peers() GRADWIRE_REQUIRES(mutex_);
  void await(std::size_t index) GRADWIRE_REQUIRES(mutex_);
  void look_for_silence() GRADWIRE_REQUIRES(mutex_);
  void take_loss(std::size_t teller, const messages::Frame& frame, std::span<const std::byte> bytes)
      GRADWIRE_REQUIRES(mutex_);
  void close_endpoint(std::size_t index) noexcept GRADWIRE_REQUIRES(mutex_);

  const OwnerProcess owner_;
  const int rank_;
  Bell bell_;

  mutable Mutex mutex_;
  Milliseconds silence_ GRADWIRE_GUARDED_BY(mutex_);
  const Milliseconds shortest_silence_;
  std::unique_ptr<Worker> worker_ GRADWIRE_GUARDED_BY(mutex_);  // null after close()
  std::vector<Peer> peers_;                                     // guarded too, but for its size and is_partner
  // Something may have to be said to a peer, or a peer may be gone: looked for then only, as peers may be many.
  std::atomic<bool> attention_{true};
  std::atomic<bool> lost_some_{false};
  LossNews losses_ GRADWIRE_GUARDED_BY(mutex_);
  ClosingEndpoints closing_ GRADWIRE_GUARDED_BY(mutex_);
  std::optional<Liveness> liveness_ GRADWIRE_GUARDED_BY(mutex_);
  NoteCopies copies_ GRADWIRE_GUARDED_BY(mutex_);
  HeldFrames held_ GRADWIRE_GUARDED_BY(mutex_);
  FrameQueue local_ GRADWIRE_GUARDED_BY(mutex_);  // frames to this rank itself
  messages::FrameSink* sink_ GRADWIRE_GUARDED_BY(mutex_) = nullptr;
  std::exception_ptr error_ GRADWIRE_GUARDED_BY(mutex_);
  bool is_leaving_ GRADWIRE_GUARDED_BY(mutex_) = false;  // it has said goodbye, or is about to
  bool moved_ GRADWIRE_GUARDED_BY(mutex_) = false;       // since the progress under way began
};

}  // namespace gradwire::ucx
