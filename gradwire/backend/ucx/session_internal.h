// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One rank's connections: a wire, the engine of messages over it, and the thread that moves both.
#pragma once

#include <memory>

#include "gradwire/backend/messages/engine_internal.h"
#include "gradwire/backend/ucx/ucx_wire_internal.h"
#include "gradwire/base/process.h"

namespace gradwire::ucx {

// Thread-safe. In a forked child nothing is torn down.
class Session {
 public:
  // `may_spin`: whether every rank of this host has a processor of its own.
  // Throws ResourceError when a thread is refused.
  Session(std::unique_ptr<UcxWire> wire, int rank, bool may_spin);
  // Leaves in good order: returns when the other ranks have what this one has sent, or are gone, or have been silent
  // for too long.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::shared_ptr<messages::Engine>& engine() const noexcept { return engine_; }
  // Why the part of the rank, which is waited for, cannot come any more. As Engine::FailureOf.
  messages::Loss loss_of(int rank) const;

 private:
  void leave() noexcept;

  const OwnerProcess owner_;
  const int rank_;
  UcxWire* const wire_;  // the engine's
  const std::shared_ptr<messages::Engine> engine_;
  Thread thread_;
};

}  // namespace gradwire::ucx
