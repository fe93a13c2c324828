// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What tests of wires share.
#pragma once

#include <cstddef>
#include <vector>

#include "gradwire/backend/ucx/ucx_wire_internal.h"

namespace gradwire::ucx {

// Keeps the frames that come; refuses them on demand.
class Keeper final : public messages::FrameSink {
 public:
  struct Kept {
    int peer;
    messages::Frame frame;
    std::vector<std::byte> payload;
  };
  bool on_frame(int peer, const messages::Frame& frame, const messages::Payload& payload) override {
    if (refuses) return false;
    std::vector<std::byte> copy(payload.size());
    payload.copy_to(copy.data());
    kept.push_back({peer, frame, std::move(copy)});
    return true;
  }
  bool refuses = false;
  std::vector<Kept> kept;
};

inline Token token(int value) {
  Token made{};
  made.fill(static_cast<std::byte>(value));
  return made;
}

}  // namespace gradwire::ucx
