// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/trigger.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <system_error>
#include <utility>

namespace gradwire::testing {

Trigger::Trigger(std::string_view point, int occurrence, std::function<void()> strike)
    : point_(point), strike_(std::move(strike)), left_(occurrence) {
  trace::set_sink(&Trigger::on_event, this);
}

Trigger::~Trigger() { trace::set_sink(nullptr, nullptr); }

void Trigger::on_event(void* context, const trace::Event& event) noexcept {
  auto* self = static_cast<Trigger*>(context);
  if (event.name == self->point_ && self->left_.fetch_sub(1) == 0) self->strike_();
}

void kill_this_process_after(std::chrono::nanoseconds from_now) {
  constexpr long kSecond = 1'000'000'000;
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) {
    throw std::system_error(errno, std::generic_category(), "timer_create");
  }
  const long ns = std::max<long>(1, static_cast<long>(from_now.count()));
  itimerspec when{};
  when.it_value = {ns / kSecond, ns % kSecond};
  if (::timer_settime(timer, 0, &when, nullptr) != 0) {
    throw std::system_error(errno, std::generic_category(), "timer_settime");
  }
}

}  // namespace gradwire::testing
