// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What goes from one wire to another: an active message whose header is an envelope.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gradwire/backend/messages/wire_internal.h"
#include "gradwire/backend/ucx/admission_internal.h"

namespace gradwire::ucx {

// ping: answered with a beat. lost: the peer whose number is the frame's id is gone; the payload says why.
enum class Note : std::uint32_t { frame = 1, beat, goodbye, goodbye_seen, lost, ping };

struct Envelope {
  Token token{};
  std::uint64_t number = 0;  // the how-many-th note from this source to this destination
  std::uint32_t source = 0;
  Note note = Note::frame;
  messages::Frame frame{};
};
static_assert(std::is_trivially_copyable_v<Envelope>);

}  // namespace gradwire::ucx
