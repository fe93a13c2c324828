// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The frame around every collective of a SharedChannel.
#pragma once

#include <algorithm>

#include "gradwire/backend/shared/shared_channel_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/trace.h"

namespace gradwire::shared {

template <class Body>
void SharedChannel::collective(Operation operation, const CallOptions& options, Body&& body) {
  world_->owner().require_current("this group");
  check();
  operation_ = operation;
  options_ = options;
  direct_ = false;
  try {
    body();
  } catch (const ResourceError&) {
    entry_step_.store(0, std::memory_order_relaxed);
    ++sequence_;  // agreed on by all ranks: the channel goes on
    throw;
  } catch (...) {
    end(std::current_exception());
  }
  entry_step_.store(0, std::memory_order_relaxed);
  ++sequence_;
}

template <class Longest, class Direct, class Window>
void SharedChannel::transfer(const Fingerprint& mine, const Offer& offer, std::size_t parts, Location location,
                             Longest&& longest, Direct&& direct, Window&& window) {
  const std::size_t slice = slice_of(parts);
  // A private buffer makes the call a staged one whatever the others have, so its first window can be filled before
  // entry.
  const bool staged_early = location.segment == 0;
  if (staged_early) stage(offer, slice, 0);
  expect_direct_use(location);
  enter(mine, location);
  const std::size_t bytes = longest();
  if (all_in_place()) {
    trace::point("collective.copy", rank(), sequence_);
    direct();
    trace::point("collective.exit", rank(), sequence_);
    meet();
    return;
  }
  if (any_in_place()) {
    if (!staged_early) stage(offer, slice, 0);
    meet();
  }
  trace::point("collective.copy", rank(), sequence_);
  for (std::size_t begin = 0; begin < bytes; begin += slice) {
    if (begin != 0) {
      stage(offer, slice, begin);
      meet();
    }
    window(begin, std::min(slice, bytes - begin));
    ++window_;
  }
  trace::point("collective.exit", rank(), sequence_);
}

}  // namespace gradwire::shared
