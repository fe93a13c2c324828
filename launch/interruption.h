// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a thread that waits for other hosts is called away.
#pragma once

#include "gradwire/base/deadline.h"

namespace gradwire::launch {

// Both functions throw when the calling thread must stop waiting.
class Interruption {
 public:
  virtual ~Interruption() = default;
  // Does not wait.
  virtual void check() = 0;
  // Waits for the time.
  virtual void pause(Milliseconds time) = 0;
};

}  // namespace gradwire::launch
