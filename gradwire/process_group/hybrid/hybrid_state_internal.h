// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The end of a HybridGroup and its duplicates, which the Works of its messages know too.
#pragma once

#include <cstdint>
#include <exception>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/process_group/duplicate_list_internal.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"

namespace gradwire {

struct HybridGroup::State {
  // Throws the group's error where there is one, and in a forked child.
  void require_alive() {
    owner.require_current("a process group");
    MutexLock lock(mutex);
    if (!error) return;
    const std::exception_ptr thrown = error;
    lock.unlock();
    std::rethrow_exception(thrown);
  }

  const OwnerProcess owner;
  Mutex mutex;
  std::exception_ptr error GRADWIRE_GUARDED_BY(mutex);
  internal::DuplicateList duplicates;
};

}  // namespace gradwire
