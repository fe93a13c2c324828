// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a wire knows of one peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gradwire/backend/ucx/admission_internal.h"
#include "gradwire/backend/ucx/endpoint_internal.h"
#include "gradwire/backend/ucx/note_order_internal.h"
#include "gradwire/base/deadline.h"

namespace gradwire::ucx {

struct PeerOptions {
  std::string address;    // UCX's; empty: not known yet
  Token sends;            // of the frames to the peer
  Token receives;         // of the frames of the peer
  std::string host = {};  // its name, for messages
};

// How far the first words to a peer have come; UcxWire::open() says which they are.
enum class Opening {
  connecting,
  greeted,  // the first word has gone
  open,     // notes may go
};

struct Peer {
  PeerOptions options;
  bool is_partner = false;

  Endpoint endpoint;
  Opening opening = Opening::connecting;
  Deadline open_by = Deadline::never();
  bool here = false;                // it has been heard of
  NoteOrder order;                  // of its notes
  std::uint64_t sent = 0;           // notes
  std::size_t longest_at_once = 0;  // payload that UCX has taken at once

  // What is to be done.
  bool connect_due = false;  // it has connected to this rank
  bool beat_due = false;
  bool ping_due = false;
  bool answer_due = false;  // to its goodbye
  bool goodbye_due = false;

  // The end.
  std::string why_lost;     // not empty: the peer is gone
  bool is_refused = false;  // it is no partner, and took no connection
  bool left = false;        // it said goodbye
  bool has_all = false;     // it has what this rank wrote before its goodbye

  bool is_gone() const noexcept { return left || !why_lost.empty(); }
};

}  // namespace gradwire::ucx
