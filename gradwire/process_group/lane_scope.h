// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Lanes: threads on which DDP runs hooks, each with duplicates of the groups that the hooks may use.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// While one of these lives on a thread, that thread is a lane:
//   - a call on an `original` group goes to its `duplicate` instead (a hook that captured a group is right without
//     knowing of lanes);
//   - a call on a duplicate itself is itself; a call on any other group throws InvalidArgument that says to name the
//     group when the hook is registered;
//   - every collective runs at once on this thread and returns a completed Work, so wait() on it, or on any future made
//     of it, returns; but for those under an Overlap;
//   - each collective carries `tag`, whose stage counts up by one a call.
// Scopes nest; the inner one holds. Not movable; lives on the stack of its thread.
class LaneScope {
 public:
  struct Route {
    std::shared_ptr<ProcessGroup> original;
    std::shared_ptr<ProcessGroup> duplicate;
  };
  explicit LaneScope(const std::vector<Route>& routes, CallTag tag = {});
  ~LaneScope();
  LaneScope(const LaneScope&) = delete;
  LaneScope& operator=(const LaneScope&) = delete;

  // While it lives, this thread is no lane: what a group calls on groups of its own, inside of a call that was led to
  // it already, goes where it says.
  class Pause {
   public:
    Pause() noexcept;
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    LaneScope* paused_;
  };

  // While it lives, calls on this lane that are asynchronous stay so, for a hook that has work of its own to do
  // meanwhile. It waits for them, those of an error too, before its run() ends. Without a lane it does nothing.
  class Overlap {
   public:
    Overlap() noexcept;
    ~Overlap();
    Overlap(const Overlap&) = delete;
    Overlap& operator=(const Overlap&) = delete;

   private:
    LaneScope* const lane_;
    const bool before_;
  };
  bool overlaps() const noexcept { return overlaps_; }

  // The innermost scope of this thread, or null.
  static LaneScope* current() noexcept;

  // Where a call on `group` goes from this lane. Throws InvalidArgument for a group that no route names.
  ProcessGroup& route(ProcessGroup& group) const;

  // The tag of the next collective.
  CallTag next_tag() noexcept;

 private:
  const std::vector<Route>& routes_;
  CallTag tag_;
  LaneScope* outer_;
  bool overlaps_ = false;
};

}  // namespace gradwire
