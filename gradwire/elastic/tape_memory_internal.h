// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory for the entries of a tape. The step waits for the copy of what its calls brought, and fresh memory makes a
// copy several times as long. So a thread makes memory ready for the next step, which mostly has entries of the same
// sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/process.h"

namespace gradwire::internal {

// Thread-safe. Held by a std::shared_ptr: the tensors keep the object.
class TapeMemory final : public std::enable_shared_from_this<TapeMemory> {
 public:
  TapeMemory();
  // Waits for the thread.
  ~TapeMemory();
  TapeMemory(const TapeMemory&) = delete;
  TapeMemory& operator=(const TapeMemory&) = delete;

  // A row of so many bytes with any values: in memory that is ready where there is some, else in fresh memory. When the
  // last tensor over the row is gone, the memory serves again.
  at::Tensor take(std::size_t bytes) GRADWIRE_EXCLUDES(mutex_);
  // The steps will take such a row where this one might have: makes memory ready as if it had.
  void expect(std::size_t bytes) GRADWIRE_EXCLUDES(mutex_);
  // Another step begins. Memory of sizes that the last two steps did not take is given back to the system,
  // and the thread makes ready what the steps took and what did not come back.
  void begin_step() GRADWIRE_EXCLUDES(mutex_);
  // How much memory is ready.
  std::size_t ready_bytes() const GRADWIRE_EXCLUDES(mutex_);

 private:
  // The blocks of a size.
  struct Shelf {
    std::size_t taken = 0;   // in this step
    std::size_t wanted = 0;  // so many are to be ready: the most that a step took
    std::size_t due = 0;     // so many the thread is to make ready
    std::vector<Mapping> ready;
    std::int64_t step = 0;  // that took one last
  };

  Shelf& note(std::size_t bytes) GRADWIRE_REQUIRES(mutex_);
  void make_ready() noexcept GRADWIRE_EXCLUDES(mutex_);
  void give_back(Mapping block) noexcept GRADWIRE_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::map<std::size_t, Shelf> shelves_ GRADWIRE_GUARDED_BY(mutex_);  // by bytes
  std::int64_t step_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> stops_{false};
  Thread thread_;  // the last: it uses the others until it is joined
};

}  // namespace gradwire::internal
