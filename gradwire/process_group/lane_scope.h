// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Lanes: threads on which DDP runs hooks, each with duplicates of the groups that the hooks may use.
#pragma once

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// While a LaneScope exists on a thread, the thread is a lane:
//   - A call on an `original` group is made on its `duplicate` instead; a hook that captured a group needs no change.
//     A call on a duplicate is made on the duplicate. A call on any other group throws InvalidArgument, which says to
//     name the group when the hook is registered.
//   - Every collective has ended when the call returns. So wait() on its Work, or on a future made from it, returns at
//     once. Collectives under an Overlap are the exception. Messages stay asynchronous.
//   - Each collective carries `tag`; the tag's stage grows by one with each collective.
// Scopes nest: the innermost one applies. A scope lives on the stack of its thread.
class LaneScope {
 public:
  struct Route {
    std::shared_ptr<ProcessGroup> original;
    std::shared_ptr<ProcessGroup> duplicate;
  };
  // `routes` must outlive the scope.
  explicit LaneScope(const std::vector<Route>& routes, CallTag tag = {});
  ~LaneScope();
  LaneScope(const LaneScope&) = delete;
  LaneScope& operator=(const LaneScope&) = delete;

  // While a Pause exists, this thread is no lane. A group that was reached through a lane may call groups of its own:
  // these calls go to the groups that it names.
  class Pause {
   public:
    Pause() noexcept;
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    LaneScope* paused_;
  };

  // While an Overlap exists, asynchronous collectives on this lane stay asynchronous, so that a hook can compute while
  // they run. The hook waits for all of them before its run() ends, also when it fails. On a thread that is no lane, an
  // Overlap does nothing.
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
  // Returns whether an Overlap exists in this scope.
  bool overlaps() const noexcept { return overlaps_; }

  // The error with which the first collective of this scope failed; null where none has. A future that a hook made from
  // that collective may have lost it: Python's futures keep the text alone.
  const std::exception_ptr& error() const noexcept { return error_; }
  void note_error(std::exception_ptr error) noexcept {
    if (error_ == nullptr) error_ = std::move(error);
  }

  // Returns the innermost scope of this thread; null when the thread is no lane.
  static LaneScope* current() noexcept;

  // Returns the group on which a call on `group` is made. Throws InvalidArgument for a group that no route names.
  ProcessGroup& route(ProcessGroup& group) const;

  // Returns the tag of the next collective, and counts that collective.
  CallTag next_tag() noexcept;

 private:
  const std::vector<Route>& routes_;
  CallTag tag_;
  LaneScope* outer_;
  bool overlaps_ = false;
  std::exception_ptr error_;
};

}  // namespace gradwire
