// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// When a fault strikes: at a named trace point, or at a moment that the kernel's clock chooses.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string_view>

#include "gradwire/base/trace.h"

namespace gradwire::testing {

// While it lives, calls `strike` on the thread that passes the trace point `point` for the `occurrence`th time (0: the
// first). One at a time in a process.
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

// Has the kernel raise SIGKILL on this process `from_now`, whatever it does then. Cannot be taken back.
void kill_this_process_after(std::chrono::nanoseconds from_now);

}  // namespace gradwire::testing
