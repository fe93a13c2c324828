// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/ucx/session_internal.h"

#include <chrono>
#include <utility>

#include "gradwire/backend/messages/group_channel_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::ucx {
namespace {

using std::chrono::microseconds;

// How long a waiter asks the wire again and again, where it has a processor for itself.
constexpr microseconds kSpin{100};

messages::Engine::Options engine_options(bool may_spin) {
  messages::Engine::Options options;
  options.limits.eager_message = messages::kEagerMessage;
  options.rhythm.spin = may_spin ? kSpin : microseconds(0);
  options.rhythm.waiter_leads = true;
  options.rhythm.posting_reads = false;
  options.makes_thread = false;
  return options;
}

}  // namespace

Session::Session(std::unique_ptr<UcxWire> wire, int rank, bool may_spin)
    : rank_(rank),
      wire_(wire.get()),
      engine_(std::make_shared<messages::Engine>(std::move(wire), engine_options(may_spin))),
      thread_("gradwire-ucx", [this] { engine_->serve(); }) {}

Session::~Session() {
  if (owner_.is_current()) leave();
}

messages::Loss Session::loss_of(int rank) const {
  const auto absence = wire_->absence_of_awaited(rank);
  if (!absence) return {};
  const std::string who = concat("rank ", rank, absence->host.empty() ? "" : concat(" (on ", absence->host, ")"));
  const std::string text = !absence->left         ? concat(who, " is gone: ", absence->why)
                           : absence->why.empty() ? concat(who, " left the group")
                                                  : concat(who, " has left the group, or is gone: ", absence->why);
  return {std::make_exception_ptr(PeerError(text, {rank})), absence->left};
}

void Session::leave() noexcept {
  const messages::Notice notice{concat("rank ", rank_, " left the group"), true, {}};
  engine_->close(std::make_exception_ptr(AbortedError(concat("rank ", rank_, ": the group was destroyed meanwhile"))),
                 &notice);
  thread_.join();
  // A peer that takes nothing is found silent, and is not waited for then; twice that time is for a peer that gives
  // signs of life and takes nothing all the same.
  const Deadline patience = Deadline::after(2 * wire_->silence());
  constexpr microseconds kNap{20'000};
  while (engine_->drain() || !wire_->idle()) {
    if (patience.expired() || engine_->is_broken()) break;
    wire_->sleep(wire_->bell(), kNap);
  }
  wire_->say_goodbye();
  while (!wire_->may_go() && !patience.expired() && !engine_->is_broken()) {
    wire_->sleep(wire_->bell(), kNap);
    engine_->drain();
  }
  wire_->close();
}

}  // namespace gradwire::ucx
