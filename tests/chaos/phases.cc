// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/phases.h"

#include <unistd.h>

#include <csignal>

namespace gradwire::testing {
namespace {

bool belongs(std::string_view point, Phase phase) {
  switch (phase) {
    case Phase::rendezvous:
      return point == "rendezvous.begin" || point == "rendezvous.connected" || point == "collective.entry";
    case Phase::entry:
      return point == "collective.entry";
    case Phase::reduce:
      return point == "collective.reduce";
    case Phase::exit:
      return point == "collective.exit";
    case Phase::between:
      return false;
  }
  return false;
}

}  // namespace

const char* name_of(Phase phase) noexcept {
  switch (phase) {
    case Phase::rendezvous:
      return "rendezvous";
    case Phase::entry:
      return "entry";
    case Phase::reduce:
      return "reduce";
    case Phase::exit:
      return "exit";
    case Phase::between:
      return "between calls";
  }
  return "unknown";
}

FaultInjector::FaultInjector(Phase phase, int occurrence, int signal)
    : phase_(phase), signal_(signal), left_(occurrence) {
  trace::set_sink(&FaultInjector::on_event, this);
}

FaultInjector::~FaultInjector() { trace::set_sink(nullptr, nullptr); }

void FaultInjector::on_event(void* context, const trace::Event& event) noexcept {
  auto* self = static_cast<FaultInjector*>(context);
  if (belongs(event.name, self->phase_)) self->pass();
}

void FaultInjector::between_calls() noexcept {
  if (phase_ == Phase::between) pass();
}

void FaultInjector::pass() noexcept {
  if (left_.fetch_sub(1) != 0) return;
  if (on_strike) on_strike();
  ::kill(::getpid(), signal_);
}

}  // namespace gradwire::testing
