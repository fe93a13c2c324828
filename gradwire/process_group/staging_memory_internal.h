// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The staging memory that a group keeps for its large calls with tensors on a device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/process_group/pinned_range_internal.h"

namespace gradwire::internal {

// Two buffers in memory that the ranks of a host reduce where it lies (ProcessGroup::allocate()), pinned where the
// device is CUDA. Made by the first call that needs it. Thread-safe; one call at a time has the buffers.
class StagingMemory {
 public:
  static constexpr std::int64_t kBufferBytes = std::int64_t{4} << 20;

  // Returns `bytes` of such memory, or an undefined tensor where the group has none. Collective: all ranks get memory,
  // or none does.
  using Allocate = std::function<at::Tensor(std::int64_t bytes)>;

  // The buffers, for one call whose copies run on one stream.
  class Lease {
   public:
    // By lend() alone.
    Lease(StagingMemory& owner, at::Tensor memory, const c10::Stream& stream);
    // The stream has queued all copies of the call when the lease goes.
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    // Buffer 0 or 1, as elements of `dtype`.
    at::Tensor buffer(int which, at::ScalarType dtype) const;

   private:
    StagingMemory& owner_;
    const at::Tensor memory_;
    const c10::Stream stream_;
  };

  StagingMemory() = default;
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // Lends the buffers to a call whose copies run on `stream`, which waits for the copies of the call before. Null where
  // there is no such memory, where it cannot be pinned, or while another call has it: the call then needs memory of its
  // own. All ranks make the call, because the first one allocates. The calling thread has a context of the device.
  std::unique_ptr<Lease> lend(const c10::Stream& stream, const Allocate& allocate);

  // Lets the memory go, unless a call has it. Later calls get none.
  void release();

 private:
  struct Kept {
    explicit Kept(at::Tensor its_memory) : memory(std::move(its_memory)) {}
    ~Kept();
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    void settle() noexcept;  // waits for the last copies

    at::Tensor memory;
    std::unique_ptr<PinnedRange> pinned;  // null: not for CUDA
    std::optional<c10::Event> last_copies;
  };

  const OwnerProcess owner_;
  Mutex mutex_;
  bool asked_ GRADWIRE_GUARDED_BY(mutex_) = false;
  bool lent_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Kept> kept_ GRADWIRE_GUARDED_BY(mutex_);  // null: none yet, or there is none
};

}  // namespace gradwire::internal
