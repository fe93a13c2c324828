// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The groups of this process that exist, so that code which ends the process can end their threads first; and what
// lives as long as a group does.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Every group is listed from its construction to its destruction. A forked child begins with an empty list.
// Thread-safe.
void list_group(ProcessGroup& group);
void unlist_group(ProcessGroup& group) noexcept;

// The listed groups that a shared_ptr holds, the youngest first: a group comes before the groups that it is made of.
std::vector<std::shared_ptr<ProcessGroup>> live_groups();

// The duplicate of `group` for layers that communicate: what keep_for_layers() got, or null. It goes when `group` is
// shut down or destroyed, so all ranks that use the group hold the duplicate, whatever their layers did. Thread-safe.
std::shared_ptr<ProcessGroup> kept_for_layers(const ProcessGroup& group);
void keep_for_layers(const ProcessGroup& group, std::shared_ptr<ProcessGroup> duplicate);

// What the first abort() of a group said. Thread-safe.
class AbortNote final {
 public:
  void write(const std::string& reason) {
    MutexLock lock(mutex_);
    if (is_written()) return;
    reason_ = reason;
    is_written_.store(true, std::memory_order_release);
  }
  bool is_written() const noexcept { return is_written_.load(std::memory_order_acquire); }  // does not block
  std::string reason() const {
    MutexLock lock(mutex_);
    return reason_;
  }

 private:
  std::atomic<bool> is_written_{false};
  mutable Mutex mutex_;
  std::string reason_ GRADWIRE_GUARDED_BY(mutex_);
};

// The note of `group`, which its abort() writes. One of its own for a group that is not listed. Thread-safe.
std::shared_ptr<AbortNote> abort_note(const ProcessGroup& group);

}  // namespace gradwire::internal
