// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Monitored barriers of a group through its store.
#pragma once

#include <cstdint>
#include <functional>

#include "gradwire/base/deadline.h"
#include "gradwire/base/mutex.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// The barriers of one group. Every rank sets a key; rank 0 waits for the keys, and tells the others in a key of its own
// which ranks were late and which died. The keys of a barrier are deleted when the ranks have met in the next one.
// Thread-safe.
class StoreBarriers {
 public:
  // What a rank looks at between two waits.
  struct Look {
    std::function<void()> check;             // throws where the group has failed, or this thread is interrupted
    std::function<bool(int rank)> has_died;  // whether the process of a rank has ended
  };

  // As ProcessGroup::monitored_barrier() of `group`, with this thread's own handle on the store.
  void meet(const ProcessGroup& group, Store& store, Milliseconds timeout, bool wait_all, const Look& look);

 private:
  std::uint64_t next();
  void delete_keys_before(std::uint64_t number, const ProcessGroup& group, Store& store);

  Mutex mutex_;
  std::uint64_t next_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::uint64_t first_left_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // on rank 0: the first barrier whose keys are there
};

}  // namespace gradwire::internal
