// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Triggers of a fault: at a named trace point, or after a time on the kernel's clock.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string_view>

#include "gradwire/base/trace.h"

namespace gradwire::testing {

// While this object lives, calls `strike` on the thread that passes the trace point `point` for the `occurrence`th time
// (0: the first time). A process may have one Trigger at a time.
class Trigger {
 public:
  Trigger(std::string_view point, int occurrence, std::function<void()> strike);
  ~Trigger();
  Trigger(const Trigger&) = delete;
  Trigger& operator=(const Trigger&) = delete;

 private:
  static void on_event(void* context, const trace::Event& event) noexcept;

  const std::string_view point_;
  const std::function<void()> strike_;
  std::atomic<int> left_;
};

// Makes the kernel send SIGKILL to this process after the time `from_now`. Cannot be undone.
void kill_this_process_after(std::chrono::nanoseconds from_now);

}  // namespace gradwire::testing
